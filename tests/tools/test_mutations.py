"""The faults that tools.mutate plants: each operator on a line of its own, what is left alone."""

import ast

import pytest

from tools.mutations import mutations, package_of, sample

# A line of code, and every line that one mutation makes of it.
LINES = {
    "y = a < b": {"y = (a <= b)"},
    "y = a + b": {"y = (a - b)"},
    "y = a ** b": {"y = (a * b)"},
    "y = a and b": {"y = (a or b)"},
    "y = not a": {"y = (a)"},
    "y = -a": {"y = (a)"},
    "y = 3": {"y = 4"},
    "y = 0.5": {"y = 1.0"},
    "y = True": {"y = False"},
    "y += a": {"y -= a", "pass"},
    "y = max(a, b)": {"y = (min(a, b))"},
    "y = a.amin(d)": {"y = (a.amax(d))"},
    "y = a.clamp(b)": {"y = (a)"},
    "y = np.clip(a, b, c)": {"y = (a)"},
    "y = a.sum(1)": {"y = a.sum(2)", "y = a.sum(0)"},
    "y = torch.cat(a, dim=-1)": {
        "y = torch.cat(a, dim=(1))",
        "y = torch.cat(a, dim=-2)",
        "y = torch.cat(a, dim=0)",
    },
    "y = a if b else c": {"y = a if (not (b)) else c"},
    "f(a)": {"pass"},
    "a.b = c": {"pass"},
    "a[b] = c": {"pass"},
    "y = 'é' * a < b": {"y = ('é' * a <= b)"},
    "MOST = y = 100": {"MOST = y = 101"},
    "y = {'zorder': 2, 'a': 3}": {"y = {'zorder': 2, 'a': 4}"},
}
LEFT_ALONE = [
    '"""Twice 2 is 4."""',
    "import a",
    "raise ValueError(2)",
    "assert a < 2",
    "warnings.warn(f'{a - 1}', stacklevel=2)",
    "y = f'{a + 1}'",
    "def f(a=1, *, b: int = 2) -> 3: pass",
    "class A:\n    b: int = 2",
    "@f(2)\ndef g(): pass",
    "if TYPE_CHECKING:\n    f(2)",
    "MOST = 100",
    "SMALL, LARGE = 0.5 * 2, 3",
    "y = f(linewidth=2.0)",
    'y = {"zorder": 2, "color": a}',
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_becomes_each_of_its_mutants(line):
    made = [mutation.apply(line) for mutation in mutations(line, "a.py")]
    assert set(made) == LINES[line]
    assert len(made) == len(set(made))


@pytest.mark.parametrize("source", LEFT_ALONE)
def test_what_says_nothing_when_it_changes_is_left_alone(source):
    assert mutations(source, "a.py") == []


def test_a_guard_is_turned_round_or_lifted():
    source = "def f(a):\n    if a:\n        return b\n    return c\n"
    made = [mutation.apply(source) for mutation in mutations(source, "a.py")]
    assert made == [
        source.replace("if a", "if (not (a))"),
        source.replace("if a", "if (False and (a))"),
    ]


SOURCE = """
class A:
    def f(self, x):
        if (
            x > 0
        ):
            x = x + 1
        return [
            x,
            -x,
        ]
"""


def test_a_mutation_knows_its_statement_and_what_is_around_it():
    found = {mutation.operator: mutation for mutation in mutations(SOURCE, "a.py")}
    assert found["comparison"].lines == (4, 6)
    assert found["arithmetic"].lines == (7, 7)
    assert found["sign"].lines == (8, 11)
    assert found["sign"].scopes == ((3, 11), (2, 11))


def test_every_mutant_of_skebm_is_python(request):
    source = (request.config.rootpath / "skebm" / "samplers" / "langevin.py").read_text()
    made = mutations(source, "skebm/samplers/langevin.py")
    assert len(made) > 50
    for mutation in made:
        assert mutation.apply(source) != source
        ast.parse(mutation.apply(source))


def test_a_sample_is_decided_by_its_seed_and_spread_over_packages():
    large = "\n".join(f"y = a + {i}" for i in range(90))
    sources = {"skebm/a/b.py": large, "skebm/c/d.py": "y = a + 1\nz = y", "skebm/e.py": "y = 1"}
    drawn = sample(sources, 20, seed=0)
    assert drawn == sample(sources, 20, seed=0)
    assert drawn != sample(sources, 20, seed=1)
    packages = [package_of(mutation.path) for mutation in drawn]
    assert {name: packages.count(name) for name in packages} == {"a": 18, "c": 1, "skebm": 1}
    assert len({(mutation.path, mutation.lines) for mutation in drawn}) == 20
