"""Trees: the best split by brute force, values of leaves, bins, sums as networks."""

import math

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeRegressor

from skebm.energies import TreeSum
from skebm.energies.trees import Bins, Growth, divided_columns, grow_tree
from tests.support.oracle import DOUBLE, seeded
from tests.support.tiers import only_full


def table(n=300, d=3, seed=0):
    return torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE)


def steps(x):
    """A function of two columns with steps."""
    right = (x[:, 0] > 0.3).double()
    return 2 * right - (1 - right) * (x[:, 1] > -0.5)


def of_squares(x, y, growth):
    """A tree of the gradients of the squared error, from 0: leaves are shrunk means."""
    bins = Bins.of_samples(x)
    codes = bins.codes(x)
    tree = grow_tree(codes.t().contiguous(), -y, torch.ones_like(y), growth)
    return tree, bins, tree.values(codes)


def test_leaves_are_the_means_that_a_regression_tree_has():
    x = table()
    y = steps(x) + 0.1 * torch.randn(len(x), generator=seeded(1), dtype=DOUBLE)
    tree, _, found = of_squares(x, y, Growth(max_leaf_nodes=3, l2=0.0, min_rows=1))
    theirs = DecisionTreeRegressor(max_leaf_nodes=3).fit(x.numpy(), y.numpy())
    # Their thresholds are between any two rows, ours between quantiles.
    assert np.abs(found.numpy() - theirs.predict(x.numpy())).mean() < 0.02
    assert len(tree.value) == 3


def best_gain(x, y, l2):
    """The largest fall of the squared error by a single split, tried one by one."""

    def fall(part):
        return float(part.sum()) ** 2 / (len(part) + l2)

    whole, found = fall(y), -math.inf
    for j in range(x.shape[1]):
        for value in x[:, j].unique()[:-1]:
            left = x[:, j] <= value
            found = max(found, fall(y[left]) + fall(y[~left]) - whole)
    return found


@pytest.mark.parametrize("l2", [0.0, 5.0])
def test_a_split_is_the_best_of_all(l2):
    x, y = table(100), torch.randn(100, generator=seeded(2), dtype=DOUBLE)
    tree, _, found = of_squares(x, y, Growth(max_leaf_nodes=2, l2=l2, min_rows=1))
    leaf = found.unique(return_inverse=True)[1]
    # The fall of sum (y - v)^2 + l2 sum v^2 by the two leaves, against one.
    one = float(y.sum()) ** 2 / (len(y) + l2)
    parts = [y[leaf == k] for k in leaf.unique()]
    both = sum(float(part.sum()) ** 2 / (len(part) + l2) for part in parts)
    assert both - one == pytest.approx(best_gain(x, y, l2), rel=1e-9)
    for k in leaf.unique():
        own = y[leaf == k]
        assert float(found[leaf == k][0]) == pytest.approx(float(own.sum()) / (len(own) + l2))


def test_no_leaf_is_smaller_than_allowed():
    x, y = table(200), torch.randn(200, generator=seeded(3), dtype=DOUBLE)
    tree, _, found = of_squares(x, y, Growth(max_leaf_nodes=32, min_rows=15))
    counts = found.unique(return_counts=True)[1]
    assert int(counts.min()) >= 15
    assert 2 < len(counts) <= 32


def test_constant_columns_and_equal_gradients_leave_a_single_leaf():
    x = torch.ones(50, 2, dtype=DOUBLE)
    tree, _, found = of_squares(x, torch.linspace(0, 1, 50, dtype=DOUBLE), Growth(l2=0.0))
    assert len(tree.column) == 0
    assert found.tolist() == pytest.approx([0.5] * 50)


@pytest.mark.parametrize("most", [4, only_full(63)])
def test_a_sum_of_trees_has_the_values_of_its_leaves(most):
    """Of more trees than are evaluated together, of 2 to `most` leaves."""
    x, trees, bins, total = table(), [], [], 0.0
    for seed in range(300):
        y = torch.randn(len(x), generator=seeded(seed), dtype=DOUBLE)
        growth = Growth(max_leaf_nodes=2 + 7 * seed % (most - 1), min_rows=1)
        tree, binned, found = of_squares(x, y, growth)
        trees.append(tree)
        bins.append(binned)
        total = total + found
    assert max(len(tree.value) for tree in trees) == most
    network = TreeSum.of_trees(trees, bins, DOUBLE)
    assert network.n_trees == 300
    torch.testing.assert_close(-network(x), total)
    torch.testing.assert_close(TreeSum(network.arrays(), dtype=DOUBLE)(x), network(x))
    far = torch.tensor([[1e30, -1e30, 0.0], [math.nan, 0.0, 0.0]], dtype=DOUBLE)
    assert network(far).isfinite().all()  # missing entries go to the left
    value, grad = network.value_and_input_grad(x)
    torch.testing.assert_close(value, network(x))
    assert not grad.any()


def test_a_sum_without_trees_or_without_splits_is_constant():
    x = table(10)
    assert TreeSum()(x).tolist() == [0.0] * 10
    ones = torch.ones(50, 3, dtype=DOUBLE)
    tree, bins, _ = of_squares(ones, ones[:, 0], Growth())
    assert TreeSum.of_trees([tree], [bins])(x).tolist() == pytest.approx([-50 / 51] * 10)


def test_bins_separate_values_that_occur():
    x = torch.tensor([[0.0, 3.0], [1.0, 3.0], [1.0, 3.0], [2.0, 3.0]], dtype=DOUBLE)
    bins = Bins.of_samples(x)
    assert bins.codes(x)[0].tolist() == [0, 1, 1, 2]
    assert bins.codes(x)[1].unique().numel() == 1
    assert bins.edges[0].isfinite().sum() == 2


def test_bins_of_few_values_have_edges_between_these_alone():
    few = torch.tensor([0.0, 1.0, 2.0, 10.0], dtype=DOUBLE)[torch.arange(100) % 4][:, None]
    edges = Bins.of_samples(few, table(500, 1)).edges[0]
    assert edges[edges.isfinite()].tolist() == [0.5, 1.5, 6.0]
    many = torch.arange(1000, dtype=DOUBLE).repeat(3)[:, None]
    edges = Bins.of_samples(many, table(500, 1)).edges[0]
    assert (edges % 1).unique().tolist() == [0.5]  # and not at values
    assert len(edges.unique()) == len(edges)


def test_bins_of_rounded_numbers_do_not_single_out_a_value():
    rounded = (13 * table(75, 1)).round()
    assert 0.5 * len(rounded) < len(rounded.unique()) < 0.9 * len(rounded)
    edges = Bins.of_samples(rounded, table(500, 1, seed=1)).edges[0]
    values = rounded.unique()
    assert edges[edges.isfinite()].tolist() == ((values[1:] + values[:-1]) / 2).tolist()


def test_bins_have_edges_where_either_sample_has_rows():
    near, far = table(2000, 1), table(2000, 1, seed=1) + 100
    edges = Bins.of_samples(near, far).edges[0]
    edges = edges[edges.isfinite()]
    assert int((edges < 50).sum()) > 100
    assert int((edges > 50).sum()) > 100


def test_a_tree_of_bits_does_not_depend_on_empty_bins():
    """A column of one value in the last bin, which nothing divides, is no reason for more."""
    bits = (torch.rand(300, 4, generator=seeded(5)) < 0.5).to(torch.uint8)
    y = (bits[:, 0] ^ bits[:, 1]).double() + bits[:, 2]
    wide = torch.cat([bits, torch.full((300, 1), 254, dtype=torch.uint8)], 1)
    trees = [grow_tree(codes, -y, torch.ones_like(y), Growth()) for codes in (bits, wide)]
    for one, other in zip(*trees, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(trees[0].value) > 4


def test_of_no_columns_a_tree_is_a_leaf():
    y = torch.arange(6, dtype=DOUBLE)
    tree = grow_tree(torch.zeros(6, 0, dtype=torch.uint8), -y, torch.ones_like(y), Growth(l2=0.0))
    assert tree.value.tolist() == [2.5]
    assert len(tree.column) == 0


@pytest.mark.parametrize("least", [1, 3, 10])
def test_columns_are_divided_where_an_edge_has_enough_rows_on_both_sides(least):
    generator = seeded(0)
    rare = torch.rand(40, 30, generator=generator) < torch.rand(30, generator=generator) ** 3
    codes = (rare * torch.randint(0, 4, (40, 30), generator=generator)).to(torch.uint8)
    sides = torch.stack([(codes <= edge).sum(0) for edge in range(4)])
    divided = (torch.minimum(sides, 40 - sides) >= least).any(0)
    assert 0 < int(divided.sum()) < 30
    found = divided_columns(codes.t().contiguous(), least)
    assert found.tolist() == divided.nonzero().ravel().tolist()
    assert not len(divided_columns(codes.t().contiguous(), 21))
