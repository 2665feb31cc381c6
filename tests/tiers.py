"""The two tiers of the tests: ``make test`` runs the first, ``make test-all`` both.

The first tier shows every behaviour once, with the fewest cases that take each branch of the code.
What repeats it under other seeds, sizes and temperatures is marked `full`.
"""

import pytest

full = pytest.mark.full


def only_full(*values, **kwargs):
    """A case of :func:`pytest.mark.parametrize` that the first tier leaves out."""
    return pytest.param(*values, marks=full, **kwargs)


def leading(n, cases):
    """The cases of a parameter, of which the first `n` are in the first tier."""
    return [case if i < n else only_full(case) for i, case in enumerate(cases)]
