"""Small faults to plant in Python sources: one expression or statement, replaced by another.

What is left alone says nothing wrong when it changes: docstrings, annotations, messages of errors
and warnings, and choices: defaults of parameters, constants of a module and styles of a drawing. A
test that catches another choice is a snapshot.
"""

import ast
import copy
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple


class Mutation(NamedTuple):
    """Bytes `start` to `end` of the file at `path`, which say `before`, replaced by `after`."""

    path: str
    lines: tuple[int, int]  # of the statement that is changed
    scopes: tuple[tuple[int, int], ...]  # lines of the functions and classes around it, inner first
    operator: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """The source with this fault in it."""
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()


# ------------------------------------------------------------------------------
# Operators: from a node to pairs of a name and what stands in its place
# ------------------------------------------------------------------------------

Change = tuple[str, ast.AST, str]  # operator, the node that is replaced, its replacement

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
_PAIRS = [
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("floor", "ceil"),
]
SWAPS = dict(_PAIRS) | {b: a for a, b in _PAIRS}
LIMITS = {"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "nan_to_num", "abs", "detach"}
MODULES = {"torch", "np", "math", "F"}
REDUCTIONS = {
    *("sum", "mean", "var", "std", "prod", "all", "any", "amin", "amax", "argmin", "argmax"),
    *("logsumexp", "softmax", "log_softmax", "cumsum", "flip", "unsqueeze", "squeeze", "flatten"),
}


def _with(node: ast.AST, **fields: object) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def compared(node: ast.Compare) -> Iterator[Change]:
    """< becomes <=, == becomes !=, and so on."""
    first, *others = node.ops
    yield "comparison", node, _with(node, ops=[COMPARISONS[type(first)](), *others])


def arithmetic(node: ast.BinOp) -> Iterator[Change]:
    """+ and - change places, * and / too; ** and % become *."""
    if type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        yield "arithmetic", node, _with(node, op=ARITHMETIC[type(node.op)]())


def in_place(node: ast.AugAssign) -> Iterator[Change]:
    """+= and -= change places, or nothing happens."""
    if type(node.op) in ARITHMETIC:
        yield "arithmetic", node, _with(node, op=ARITHMETIC[type(node.op)]())[1:-1]
    yield "deleted statement", node, "pass"


def boolean(node: ast.BoolOp) -> Iterator[Change]:
    """And becomes or."""
    other = ast.Or if isinstance(node.op, ast.And) else ast.And
    yield "and/or", node, _with(node, op=other())


def unary(node: ast.UnaryOp) -> Iterator[Change]:
    """A sign or a not is dropped."""
    if isinstance(node.op, ast.USub | ast.Not):
        name = "sign" if isinstance(node.op, ast.USub) else "dropped not"
        yield name, node, f"({ast.unparse(node.operand)})"


def constant(node: ast.Constant) -> Iterator[Change]:
    """Whole numbers are off by one, others twice as large, flags the other way round."""
    value = node.value
    if isinstance(value, bool):
        yield "flag", node, str(not value)
    elif isinstance(value, int):
        yield "off by one", node, str(value + 1)
    elif isinstance(value, float):
        yield "constant", node, repr(2 * value if value else 1.0)


def _name(node: ast.expr) -> str:
    """What a call calls, without what it is an attribute of."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def call(node: ast.Call) -> Iterator[Change]:
    """Min for max, any for all; limits are lifted; reductions go along another dimension."""
    name = _name(node.func)
    if name in SWAPS:
        if isinstance(node.func, ast.Attribute):
            other: ast.expr = ast.Attribute(node.func.value, SWAPS[name])
        else:
            other = ast.Name(SWAPS[name])
        yield "min/max", node, _with(node, func=other)
    if name in LIMITS and isinstance(node.func, ast.Attribute):
        inner = node.func.value
        if _name(inner) in MODULES and node.args:
            inner = node.args[0]
        yield "lifted limit", node, f"({ast.unparse(inner)})"
    yield from _dimension(node, name)


def _dimension(node: ast.Call, name: str) -> Iterator[Change]:
    given = [word.value for word in node.keywords if word.arg in ("dim", "axis")]
    positional = isinstance(node.func, ast.Attribute) and _name(node.func.value) not in MODULES
    if name in REDUCTIONS and positional:
        given += node.args[:1]
    for value in given:
        text = ast.unparse(value)
        if text.lstrip("-").isdigit():
            yield "dimension", value, "1" if text == "0" else "0"


def branch(node: ast.If | ast.IfExp) -> Iterator[Change]:
    """The other branch is taken; a guard that leaves early never does."""
    test = ast.unparse(node.test)
    yield "other branch", node.test, f"(not ({test}))"
    leaves = ast.Return | ast.Raise | ast.Continue | ast.Break
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], leaves):
        yield "lifted guard", node.test, f"(False and ({test}))"


def statement(node: ast.Expr) -> Iterator[Change]:
    """A call whose value nobody takes is not made."""
    if isinstance(node.value, ast.Call):
        yield "deleted statement", node, "pass"


def assignment(node: ast.Assign) -> Iterator[Change]:
    """An attribute or an entry keeps its old value."""
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "deleted statement", node, "pass"


OPERATORS: dict[type[ast.AST], Callable[..., Iterator[Change]]] = {
    ast.Compare: compared,
    ast.BinOp: arithmetic,
    ast.AugAssign: in_place,
    ast.BoolOp: boolean,
    ast.UnaryOp: unary,
    ast.Constant: constant,
    ast.Call: call,
    ast.If: branch,
    ast.IfExp: branch,
    ast.Expr: statement,
    ast.Assign: assignment,
}


# ------------------------------------------------------------------------------
# All mutations of a source, and a sample of those of many
# ------------------------------------------------------------------------------

# Arguments of matplotlib, and keys of dicts of them, that say what a drawing looks like.
STYLES = {
    *("alpha", "color", "fontsize", "linestyle", "linewidth", "marker", "markersize", "zorder"),
    *("capsize", "elinewidth", "markeredgewidth", "pad", "figsize", "labelpad", "s"),
}
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _name(node.func) == "warn"
    if isinstance(node, ast.Expr):
        return _is_text(node.value) or _left_alone(node.value)
    if isinstance(node, ast.keyword):
        return node.arg in STYLES
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _is_style(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value in STYLES


def _sets_constants(node: ast.AST) -> bool:
    """Whether a statement of a module gives values to names in capitals, and to nothing else."""
    if isinstance(node, ast.Assign):
        return all(
            isinstance(name, ast.Name) and name.id.isupper()
            for target in node.targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
        )
    return False


def _children(node: ast.AST, owner: ast.AST) -> list[ast.AST]:
    """Parts of a node that may be changed."""
    if isinstance(node, SCOPES):
        return list(node.body)
    if isinstance(node, ast.Lambda):
        return [node.body]
    if isinstance(node, ast.Dict):
        return [v for k, v in zip(node.keys, node.values, strict=True) if not _is_style(k)]
    if isinstance(node, ast.Module):
        return [part for part in node.body if not _sets_constants(part)]
    if isinstance(node, ast.AnnAssign):  # in a class, a field and its default
        return [node.value] if node.value and not isinstance(owner, ast.ClassDef) else []
    return list(ast.iter_child_nodes(node))


def _lines(node: ast.stmt) -> tuple[int, int]:
    """Lines of a statement, without what is indented under it."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return node.lineno, max(node.lineno, last)


def mutations(source: str, path: str) -> list[Mutation]:
    """Every mutation of a source, in its order."""
    data, found = source.encode(), []
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def visit(node: ast.AST, owners: tuple[ast.stmt, ...], lines: tuple[int, int]) -> None:
        if _left_alone(node):
            return
        if isinstance(node, ast.stmt):
            lines = _lines(node)
        for operator, old, after in OPERATORS.get(type(node), lambda _: iter(()))(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            scopes = tuple((owner.lineno, owner.end_lineno) for owner in owners)
            before = data[start:end].decode()
            found.append(Mutation(path, lines, scopes, operator, start, end, before, after))
        children = _children(node, owners[0] if owners else node)
        if isinstance(node, SCOPES):
            owners = (node, *owners)
        for child in children:
            visit(child, owners, lines)

    visit(ast.parse(source), (), (1, len(starts)))
    return found


def package_of(path: str) -> str:
    """skebm/samplers/gibbs.py -> samplers; a module of skebm itself -> skebm."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) > 2 else parts[0]


def sample(sources: Mapping[str, str], n: int, seed: int) -> list[Mutation]:
    """Draw `n` mutations of ``{path: source}``: over packages by their lines, lines uniformly.

    Every package gets one at least; a line is drawn once at most.
    """
    by_package: dict[str, dict[tuple[str, int], list[Mutation]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for path in sorted(sources):
        for mutation in mutations(sources[path], path):
            line = sources[path].encode()[: mutation.start].count(b"\n") + 1
            by_package[package_of(path)][path, line].append(mutation)
    rng = random.Random(seed)
    chosen = []
    for package, quota in _quotas({p: len(v) for p, v in by_package.items()}, n).items():
        lines = by_package[package]
        drawn = rng.sample(sorted(lines), min(quota, len(lines)))
        chosen += [rng.choice(lines[key]) for key in sorted(drawn)]
    return chosen


def _quotas(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """One each, and what is left of `n` in proportion to the sizes, by largest remainders."""
    left = max(n - len(sizes), 0)
    exact = {name: left * size / sum(sizes.values()) for name, size in sizes.items()}
    quota = {name: 1 + int(value) for name, value in exact.items()}
    remainders = sorted(exact, key=lambda name: int(exact[name]) - exact[name])
    for name in remainders[: left + len(sizes) - sum(quota.values())]:
        quota[name] += 1
    return quota
