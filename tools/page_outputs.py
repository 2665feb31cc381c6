"""A Sphinx extension: below each program of a page stands what it returns.

The blocks of Python of a page run in order and in one namespace, when the page is read. What an
expression returns, what is printed and the figures that are drawn follow the statement that made
them, as in a notebook. A program that fails or warns ends the build.

``page_outputs`` in ``conf.py`` lists the pages, as patterns of their names.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import io
import pprint
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from tools.gallery import STYLE

# Characters of a line of code and of output: more are cut off beside the table of contents.
WIDTH = 76
MOST_LINES = 24
FOLDER = "generated/outputs"  # of figures, below the folder of the pages


class Step(NamedTuple):
    """A part of a program, up to a statement that shows something, and what it shows."""

    source: str
    text: str
    table: str  # of a frame, as HTML
    figures: list[bytes]


def statements(program: str) -> Iterator[tuple[str, ast.stmt]]:
    """The statements of a program with their lines, comments above and beside included."""
    lines, done = program.splitlines(), 0
    body = ast.parse(program).body
    for i, statement in enumerate(body):
        end = statement.end_lineno if i + 1 < len(body) else len(lines)
        assert end is not None
        yield "\n".join(lines[done:end]), statement
        done = end


def steps(program: str, namespace: dict[str, Any], where: str = "<page>") -> Iterator[Step]:
    """Run a program, and cut it after each statement that shows something.

    `where` stands in the traceback of a program that fails.
    """
    pending: list[str] = []
    for source, statement in statements(program):
        pending.append(source)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = value_of(statement, namespace, where)
        text, table = printed.getvalue().rstrip(), ""
        if hasattr(value, "to_html") and not hasattr(value, "get_params"):
            table = value.to_html(border=0)
        elif value is not None:
            text = "\n".join(filter(None, [text, shown(value)]))
        figures = drawn_figures()
        if text or table or figures:
            yield Step("\n".join(pending).strip("\n"), text, table, figures)
            pending = []
    if pending:
        yield Step("\n".join(pending).strip("\n"), "", "", [])


def value_of(statement: ast.stmt, namespace: dict[str, Any], where: str) -> Any:
    """Execute a statement; what it returns if it is an expression, else None."""
    if isinstance(statement, ast.Expr):
        return eval(compile(ast.Expression(statement.value), where, "eval"), namespace)
    exec(compile(ast.Module([statement], []), where, "exec"), namespace)
    return None


def shown(value: Any) -> str:
    """A value as a console shows it; nothing of estimators and displays, which are `self`."""
    if hasattr(value, "get_params") or hasattr(value, "figure_"):
        return ""
    value = with_few_digits(value)
    text = repr(value)
    if isinstance(value, tuple | list | dict) and len(text) > WIDTH:
        text = pprint.pformat(value, width=WIDTH, sort_dicts=False)
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], "...", *lines[-MOST_LINES // 2 :]]
    return "\n".join(lines)


def with_few_digits(value: Any) -> Any:
    """A number, or the numbers in a tuple, list or dictionary, to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: with_few_digits(inner) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(with_few_digits, value))
    if isinstance(value, tuple | list):
        return type(value)(map(with_few_digits, value))
    return value


def drawn_figures() -> list[bytes]:
    """The open figures as PNG files, which are closed."""
    import matplotlib.pyplot as plt

    files = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=100, bbox_inches="tight")
        plt.close(number)
        files.append(file.getvalue())
    return files


@contextlib.contextmanager
def page_settings() -> Iterator[None]:
    """Numbers of few digits, figures of the gallery's style, warnings as errors, a folder."""
    import matplotlib.style
    import numpy as np
    import pandas as pd

    matplotlib.use("agg")
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        np.printoptions(
            precision=3, suppress=True, threshold=20, edgeitems=2, linewidth=WIDTH, legacy="1.25"
        ),
        pd.option_context("display.width", WIDTH, "display.precision", 3, "display.max_rows", 12),
        pd.option_context("display.max_columns", 20, "display.max_colwidth", None),
        matplotlib.style.context(STYLE),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        yield


class PageOutputs(SphinxTransform):
    """Replace each block of Python by its steps, each with what it shows."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        page = self.env.docname
        if not any(fnmatch.fnmatch(page, pattern) for pattern in self.config.page_outputs):
            return
        blocks = [
            block
            for block in self.document.findall(nodes.literal_block)
            if block.get("language") == "python"
        ]
        namespace: dict[str, Any] = {"__name__": "__main__"}
        with page_settings():
            for i, block in enumerate(blocks):
                where = f"{page}, block {i + 1} of Python"
                block.replace_self([*self.nodes_of(block, namespace, where)])

    def nodes_of(
        self, block: nodes.literal_block, namespace: dict[str, Any], where: str
    ) -> Iterator[nodes.Node]:
        """The nodes of a block: code, output, code, output, ..."""
        for i, step in enumerate(steps(block.astext(), namespace, where)):
            code = nodes.literal_block(step.source, step.source, language="python")
            code["classes"] = ["program"]
            yield code
            if step.text:
                output = nodes.literal_block(step.text, step.text, language="none")
                output["classes"] = ["output"]
                yield output
            if step.table:
                # The class lets a wide table scroll.
                box = f'<div class="output pst-scrollable-table-container">{step.table}</div>'
                yield nodes.raw(box, box, format="html")
            for j, png in enumerate(step.figures):
                yield self.image(png, f"{where}-{i}-{j}", step.source.splitlines()[-1])

    def image(self, png: bytes, name: str, source: str) -> nodes.image:
        """A figure of the page, whose text for those who cannot see it is the code that drew it."""
        file = f"{FOLDER}/{re.sub(r'[^a-z0-9]+', '-', name.lower())}.png"
        path = Path(self.env.srcdir) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)
        return nodes.image(uri=f"/{file}", alt=f"Figure of {source.strip()}", classes=["output"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the transform and its setting to a build."""
    app.add_config_value("page_outputs", [], "env")
    app.add_transform(PageOutputs)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
