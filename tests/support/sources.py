"""The sources of skebm and their trees, which are parsed once a session."""

import ast
import functools
import gc
from pathlib import Path

import skebm

PACKAGE = Path(skebm.__file__).parent


@functools.cache
def parsed(source):
    return ast.parse(source)


@functools.cache
def modules():
    """The sources by their path in the package; the garbage collector skips their trees."""
    found = {
        path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    for source in found.values():
        parsed(source)
    gc.freeze()
    return found


def without_expressions(tree):
    """Its nodes but for expressions, which are most of them."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        left += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
