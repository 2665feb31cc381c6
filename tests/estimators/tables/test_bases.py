"""Columns of few values, spread over the gaps between them before a base is fitted."""

import numpy as np
import pytest
import torch

from skebm.estimators.tables.bases import (
    fit_normal,
    in_units_of_all,
    resolution,
    spread_ties,
)
from skebm.training.rows import Rows
from tests.support.oracle import DOUBLE, seeded


def rows(x, weight=None):
    return Rows(x, weight, dtype=x.dtype, device=torch.device("cpu"))


def table(n=600):
    """A column of numbers, one of the values 0, 1, 2 and 10, a constant one."""
    few = torch.tensor([0.0, 1.0, 2.0, 10.0], dtype=DOUBLE)[torch.arange(n) % 4]
    return torch.stack([torch.randn(n, generator=seeded(), dtype=DOUBLE), few, few * 0 + 3], 1)


def test_the_resolution_is_the_median_gap_of_columns_of_few_values():
    assert resolution(table()).tolist() == [0, 1, 0]


def test_values_are_spread_to_half_of_the_gap():
    x = table()
    found = spread_ties(rows(x), 0).block(0, len(x))
    assert torch.equal(found[:, [0, 2]], x[:, [0, 2]])
    off = found[:, 1] - x[:, 1]
    assert 0.45 < float(off.abs().max()) <= 0.5
    assert abs(float(off.abs().mean()) - 0.25) < 0.02
    close = x[:, 1] == 10  # the gap of 8 is not one of the resolution
    assert float(off[close].abs().max()) <= 0.5


def test_rows_for_copies_are_spread_like_these():
    x, weight = table(8), torch.tensor([1.0, 2, 3, 4, 1, 2, 3, 4], dtype=DOUBLE)
    x = torch.cat([x, x + torch.tensor([9.0, 0.0, 0.0], dtype=DOUBLE)])
    found = spread_ties(rows(x, torch.cat([weight, weight])), 0)
    assert len(found) == 40
    assert torch.equal(found.counts, torch.ones(40, dtype=DOUBLE))
    assert len(found.block(0, 40)[:, 1].unique()) == 40


def test_numbers_stay_as_they_are():
    some = rows(table()[:, :1])
    assert spread_ties(some, 0) is some


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_normal_distribution_covers_heavy_tails_alone(diagonal):
    x = torch.as_tensor(np.random.default_rng(0).standard_normal((500, 3)))
    x[:, 2] += x[:, 0]
    x, weight = (x - x.mean(0)) / x.std(0, correction=0), torch.ones(500, dtype=torch.float64)
    plain = fit_normal(x, weight, diagonal=diagonal)
    assert not plain.covers_tails
    torch.testing.assert_close(plain.covariance.diagonal(), torch.ones(3, dtype=DOUBLE))

    x[0, 0] = x[0, 2] = 40.0
    x = (x - x.mean(0)) / x.std(0, correction=0)
    wide = fit_normal(x, weight, diagonal=diagonal)
    assert wide.covers_tails
    assert wide.to("cpu", torch.float32).covers_tails
    least = torch.linalg.eigvalsh(wide.covariance - torch.cov(x.t(), correction=0))[0]
    assert least > -1e-9


def test_rows_that_do_not_set_the_units_are_moved_apart():
    x = torch.tensor([[-0.1, -2.0, 0.0], [0.1, 2.0, 0.0]], dtype=DOUBLE)
    found = in_units_of_all(x, torch.ones(2, dtype=DOUBLE))
    expected = torch.tensor([[-1.0, -2.0, 0.0], [1.0, 2.0, 0.0]], dtype=DOUBLE)
    torch.testing.assert_close(found, expected)
    known = torch.tensor([[True, True, True], [False, True, True]])
    assert torch.equal(in_units_of_all(x, torch.ones(2, dtype=DOUBLE), known)[:, 0], x[:, 0])
