"""Tables of blocks: what every kind of block owes to the others, and to the rows that it is in."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone

from skebm import ScoreMatchingDensity
from skebm.base import Binary, Categorical, DataWarning, Real
from skebm.estimators.neural.conditional.table import conditional_table
from skebm.estimators.rbm.gated.table import pair_table, with_any_y
from skebm.estimators.sequences.label_family import LabelBlock
from skebm.estimators.tables.blocks import (
    BitBlock,
    LevelBlock,
    NumberBlock,
    ProbabilityBlock,
    SpinBlock,
    StateBlock,
)
from skebm.estimators.tables.columns import Coding, column_numbers
from skebm.estimators.tables.table import Table, column_table, one_kind_table
from skebm.estimators.tables.units import Units, learn_units

KIND = {"device": torch.device("cpu"), "dtype": torch.float64}
UNITS = Units(np.array([3.0, -1.0]), np.array([2.0, 0.5]), Real((2,)))
BOX = Units(np.array([3.0, -1.0]), np.array([2.0, 0.5]), Real((2,), 0.0, 1.0))
NAMES = ["p", "q"]


def numbers(rng):
    return rng.normal(size=(20, 2))


def bits(rng):
    return rng.integers(2, size=(20, 2)).astype(float)


def one_hot(rng):
    return np.hstack([np.eye(3)[rng.integers(3, size=20)], np.eye(2)[rng.integers(2, size=20)]])


def levels(rng):
    return np.stack([rng.integers(3, size=20), rng.integers(2, size=20)], 1).astype(float)


BLOCKS = {
    "probabilities": (lambda X: ProbabilityBlock.learn(X, names=NAMES), numbers),
    "spins": (lambda X: SpinBlock(2, NAMES), lambda rng: 2 * bits(rng) - 1),
    "bits": (lambda X: BitBlock([0, 1], NAMES), bits),
    "states": (lambda X: StateBlock(Categorical((3, 2))), one_hot),
    "levels": (lambda X: LevelBlock([0, 1], (3, 2), NAMES), levels),
    "numbers": (lambda X: NumberBlock([0, 1], UNITS, NAMES), numbers),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_come_back_in_the_units_of_the_data(name):
    make, draw = BLOCKS[name]
    X = draw(np.random.default_rng(0))
    table = Table([make(X)])
    rows = table.rows(X, **KIND)
    assert rows.n_columns == table.domain.n_columns == sum(table.widths)
    assert_allclose(table.invert(rows.block(0, 20)), X)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_missing_column_is_missing_in_its_entries_alone(name):
    make, draw = BLOCKS[name]
    X = draw(np.random.default_rng(0))
    table = Table([make(X)])
    width = table.widths[0]
    X[3, 0] = np.nan
    if name == "states":
        X[3, :3] = np.nan  # of a group all entries or none
        width = 3
    missing = np.isnan(table.to_energy(X))
    assert missing[3, :width].all()
    assert missing.sum() == width


def test_blocks_stand_side_by_side_and_return_in_the_order_of_the_columns():
    blocks = [
        LevelBlock([2], (3,), ["city"]),
        NumberBlock([3, 0], UNITS, ["age", "height"]),
        BitBlock([1], ["member"]),
    ]
    table = Table(blocks)
    X = np.array([[1.0, 0.0, 2.0, 5.0], [-1.0, 1.0, 0.0, 3.0]])
    x = table.to_energy(X)
    assert_allclose(x, [[0, 0, 1, 1, 4, 0], [1, 0, 0, 0, 0, 1]])
    assert_allclose(table.invert(torch.as_tensor(x)), X)
    assert [table.column_at(k) for k in range(6)] == ["'city'"] * 3 + [
        "'age'",
        "'height'",
        "'member'",
    ]
    assert table.log_volume == 0.0  # 2 times 1 / 2
    known = np.array([[1, 1, 1, 1, 0, 1]], dtype=bool)
    assert_allclose(table.log_volumes(known), np.log(2))


def test_values_beyond_bounds_return_to_them():
    table = Table([NumberBlock([0, 1], BOX, NAMES, bounded=True)])
    rows = torch.tensor([[-0.5, 2.0]])
    assert_allclose(table.invert(rows), [[3.0, -0.5]])


@pytest.mark.parametrize(
    ("name", "X", "said"),
    [
        ("spins", [[1.0, 0.0]], "'q'.*spins"),
        ("bits", [[1.0, 0.5]], "'q' was binary in fit"),
        ("states", [[1.0, 1, 0, 1, 0]], "not one-hot in group 0"),
        ("states", [[2.0, 0, 0, 1, 0]], "1 values other than 0 and 1"),
    ],
)
def test_values_that_columns_cannot_have(name, X, said):
    make, draw = BLOCKS[name]
    table = Table([make(draw(np.random.default_rng(0)))])
    with pytest.raises(ValueError, match=said):
        table.rows(np.array(X), **KIND)


def test_sparse_bits_are_the_same_rows():
    X = bits(np.random.default_rng(0))
    table = Table([ProbabilityBlock.learn(X)])
    found = table.rows(sparse.csr_array(X), **KIND)
    assert_array_equal(found.block(0, 20), X)
    assert_array_equal(table.with_imputations(sparse.csr_array(X), found.block(0, 20)), X)


def test_a_category_of_two_levels_is_a_bit():
    rng = np.random.default_rng(0)
    X = np.stack([rng.choice(["a", "b"], 30), rng.choice(["u", "v", "w"], 30)], 1).astype(object)
    coding = Coding.learn(X, "from_dtype")
    table = column_table(coding.encode(X), None, coding, None)
    assert [type(block) for block in table.blocks] == [BitBlock, LevelBlock]
    rows = table.rows(coding.encode(X), **KIND)
    assert_array_equal(table.invert(rows.block(0, 30)), X)


def test_images_are_flat_rows_of_places():
    X = np.random.default_rng(0).normal(size=(20, 2, 3))
    table = one_kind_table(X, None)
    assert (table.image_shape, table.domain) == ((2, 3), Real((6,)))
    assert table.column_at(4) == (1, 1)
    assert_allclose(table.invert(table.rows(X, **KIND).block(0, 20)), X)


def test_conditions_are_not_returned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4)) @ rng.normal(size=(4, 4))
    table = conditional_table(X, [2, 0], None, None, list("abcd"))
    x = torch.as_tensor(table.to_energy(X))
    assert_allclose(table.invert(x), X[:, [1, 3]])
    assert_allclose(table.conditions(X), x[:, : table.n_conditions])
    assert [table.column_at(k) for k in range(4)] == ["'c'", "'a'", "'b'", "'d'"]


def test_a_condition_may_have_values_that_were_not_in_fit():
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(2, size=40), rng.normal(size=40)], 1)
    table = conditional_table(X, [0], None, None, ["c", "x"])
    assert isinstance(table.blocks[0], BitBlock)
    assert_allclose(table.rows(np.array([[0.5, 1.0]]), **KIND).block(0, 1)[0, 0], 0.5)


def test_pairs_whose_second_half_is_unknown():
    X = np.random.default_rng(0).normal(size=(20, 5)) + 7
    table = pair_table(X, 3, None, "auto", None)
    rows = table.rows(with_any_y(X[:, :3], table), **KIND).block(0, 20)
    assert_allclose(rows[:, :3], table.to_energy(X)[:, :3])
    assert_allclose(rows[:, 3:], 0, atol=1e-12)
    assert (table.column_at(0), table.column_at(4)) == ("'x0'", "'y[1]'")
    assert not table.copies_are_one


def test_a_label_is_a_block_without_columns():
    X = bits(np.random.default_rng(0))
    table = Table([ProbabilityBlock.learn(X), LabelBlock(3)])
    x = table.to_energy(X)
    assert_array_equal(x, np.hstack([X, np.zeros((20, 3))]))
    assert_array_equal(table.invert(torch.as_tensor(x)), X)
    assert isinstance(table.domain.parts[0], Binary)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("b", [1]),
        (-1, [2]),
        (["c", 0], [2, 0]),
        ([True, False, True], [0, 2]),
        (np.array([1, 1]), [1, 1]),
        ([], []),
    ],
)
def test_numbers_of_columns(asked, found):
    assert column_numbers("given", asked, list("abc"), 3) == found


@pytest.mark.parametrize(
    ("asked", "said"),
    [("d", "'d', which is no column"), (3, "names or numbers"), ([0.5], "n_features=3")],
)
def test_columns_that_are_not_there(asked, said):
    with pytest.raises(ValueError, match=said):
        column_numbers("given", asked, list("abc"), 3)
    with pytest.raises(ValueError, match="no names"):
        column_numbers("given", ["a"], None, 3)


def test_rounding_errors_do_not_vary():
    """A column of 0.1 + 0.2 and 0.3 is a constant, and so it is said to be."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40, 2)) * [1e-15, 1.0]
    X = noise + [0.3, 5.0]
    assert len(np.unique(X[:, 0])) > 2
    units = learn_units(X, None, True, None)
    assert not units.apply(X)[:, 0].any()
    assert_allclose(units.apply(X + 1)[:, 0], 1, rtol=1e-6)
    with pytest.warns(DataWarning, match=r"Columns \[0\] are constant"):
        model = ScoreMatchingDensity(base="gaussian", n_iter=1, random_state=0).fit(X)
    constant = np.column_stack([np.full(40, 0.3), X[:, 1]])
    with pytest.warns(DataWarning, match="constant"):
        expected = clone(model).fit(constant)
    assert_allclose(model.score_samples(X), expected.score_samples(constant), rtol=1e-4)
