"""Examples: figures of one style, made and filled in one block; titles of a method and its data."""

import ast
import re
from pathlib import Path

import pytest

from skebm.inspection import _drawing
from tools.gallery import STYLE, empty_panels, use_style, whole_figures

GALLERY = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(GALLERY.glob("*/*.py"))


def names(trees, context):
    """Names that are read (ast.Load) or bound (ast.Store) in parts of a program."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    if context is ast.Store:
        found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return found


def filled_later(source):
    """Figures and axes that one block makes and another one uses: (name, number of the block)."""
    starts = [i for i, line in enumerate(source.splitlines(), 1) if line.startswith("# %%")]
    blocks = {}
    for statement in ast.parse(source).body:
        blocks.setdefault(sum(start <= statement.lineno for start in starts), []).append(statement)
    made, found = set(), []
    for number, block in blocks.items():
        found += [(name, number) for name in sorted(names(block, ast.Load) & made)]
        bound = names(block, ast.Store)
        found = [(name, at) for name, at in found if at != number or name not in bound]
        makers = [
            node
            for tree in block
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and any(part in ast.unparse(node.value) for part in ("subplots(", ".figure("))
        ]
        made |= names([target for node in makers for target in node.targets], ast.Store)
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_figures_are_filled_in_the_block_that_makes_them(example):
    assert filled_later(example.read_text()) == []


def test_a_figure_that_is_filled_later_is_found():
    source = "# %%\nfigure, axes = plt.subplots(2)\naxes[0].plot([1])\n# %%\naxes[1].plot([2])\n"
    assert filled_later(source) == [("axes", 2)]
    assert filled_later(source.replace("# %%\naxes", "# %%\nfor axes in ():\n    axes")) == []


def blocks_of_comments(source):
    """Blocks of a program without statements, which a page shows as an empty box."""
    first = ast.parse(source).body[0].end_lineno
    code = "\n".join(source.splitlines()[first:])
    blocks = [block.strip() for block in re.split(r"^# %%(?:\n#.*)*", code, flags=re.M)]
    return [block for block in blocks if block and not ast.parse(block).body]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_no_block_is_of_comments_only(example):
    assert blocks_of_comments(example.read_text()) == []


def test_a_block_of_comments_is_found():
    source = '"""A."""\n\n# number = 1\n\n# %%\n# Text\n\n# And this\n\nx = 1\n\n# %%\n# End\n'
    assert blocks_of_comments(source) == ["# number = 1"]
    assert blocks_of_comments(source.replace("# number = 1\n\n", "")) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_titles_are_short_and_examples_tell_a_story(example):
    docstring = ast.get_docstring(ast.parse(example.read_text()))
    title, line, *story = docstring.splitlines()
    assert line == "=" * len(title)
    assert 20 <= len(title) <= 70  # a method and its data, on two lines of a card
    assert len(" ".join(story).split()) >= 20
    assert example.read_text().count("# %%") >= 3


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_leave_style_to_the_style_file_and_warnings_to_the_reader(example):
    source = example.read_text()
    assert "\n# sphinx_gallery_thumbnail_number = " in source
    assert not re.findall(r"#[0-9a-fA-F]{6}", source)  # colours are C0, C1, ... and names
    assert not re.findall(r"rcParams|style\.use|tight_layout|spines", source)
    assert not re.findall(r"catch_warnings|filterwarnings|simplefilter", source)


def test_displays_have_the_first_colours_of_the_style():
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context():
        use_style({}, "example.py")
        cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    assert cycle[:2] == [_drawing.NAVY, _drawing.ORANGE]
    assert STYLE.parent == GALLERY


def test_sections_have_titles():
    folders = {path.parent for path in EXAMPLES}
    assert len(folders) == 6
    assert not list(GALLERY.glob("*.py"))
    for folder in folders:
        title, line, _, text = (folder / "GALLERY_HEADER.rst").read_text().splitlines()
        assert line == "-" * len(title)
        assert text.endswith(".")


def test_empty_panels_are_named():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots(2, 3)
    axes[0, 0].plot([1, 2])
    axes[0, 1].imshow([[1.0]])
    axes[0, 2].set_title("promised")
    axes[1, 0].axis("off")
    axes[1, 1].text(0, 0, "nothing to see")
    axes[1, 2].set_visible(False)
    block = ("code", "", 7)
    assert empty_panels(figure) == ["axes 2 promised"]
    with pytest.raises(ValueError, match="story.py.*line 7"):
        whole_figures(block, {"src_file": "story.py"}, {})
    pyplot.close(figure)
