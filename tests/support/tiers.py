"""The two tiers of the tests: ``make test`` runs the first, ``make test-all`` both.

The first tier shows every behaviour once, with the fewest cases that take each branch of the code.
What repeats it under other seeds, sizes and temperatures is marked `full`.
"""

import contextlib

import pytest

full = pytest.mark.full


def only_full(*values, **kwargs):
    """A case of :func:`pytest.mark.parametrize` that the first tier leaves out."""
    return pytest.param(*values, marks=full, **kwargs)


def leading(n, cases):
    """The cases of a parameter, of which at most the first `n` are in the first tier."""
    marked = type(pytest.param())  # those that are in the full tier already
    return [
        case if i < n or isinstance(case, marked) else only_full(case)
        for i, case in enumerate(cases)
    ]


def named(names, cases):
    """The cases of a parameter, of which those in `names` are in the first tier."""
    assert set(names) <= set(cases)
    return [case if case in names else only_full(case) for case in cases]


@contextlib.contextmanager
def about(*case):
    """Say in a failure which case of a loop it is about."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"This is about {case}.")
        raise
