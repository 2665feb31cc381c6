"""Block trees: sums against enumeration, fits of one-hot codes, weights as repetitions."""

import functools
import itertools

import numpy as np
import pytest
import torch

from skebm.base import Clamp
from skebm.distributions import BlockTree, ChowLiuTree
from tests.support.oracle import DOUBLE, bits, mean_is, seeded
from tests.support.tiers import leading

# Blocks of unequal sizes, a hub, a chain, a single block, a single column.
SHAPES = {
    "uneven": ([[4, 0, 2], [1, 6, -1], [3, 5, 7], [8, -1, -1]], [2, 2, -1, 1]),
    "bits": ([[1], [0], [3], [2], [4]], [-1, 0, 0, 1, 3]),
    "pairs": ([[0, 1], [4, 5], [2, 3]], [1, -1, 1]),
    "one block": ([[2, 0, 1, 3]], [-1]),
    "one column": ([[0]], [-1]),
    "five": ([[0, 1, 2, 3, 4], [5, 6, -1, -1, -1]], [1, -1]),
}


def random_tables(blocks, seed=0):
    blocks = torch.tensor(blocks)
    m, width = blocks.shape
    n_patterns = 2**width
    logits = torch.randn(m, n_patterns, n_patterns, generator=seeded(seed), dtype=DOUBLE) * 1.5
    exists = torch.arange(n_patterns) < 2 ** (blocks >= 0).sum(1, keepdim=True)
    return logits.masked_fill(~exists[:, None], -torch.inf).log_softmax(2).nan_to_num(neginf=-7.0)


@functools.cache
def tree(name):
    blocks, parent = SHAPES[name]
    return BlockTree(blocks, parent, random_tables(blocks))


def spelled_out(name, x):
    """log q(x) of binary rows, a table look-up at a time."""
    blocks, parent = SHAPES[name]
    tables = random_tables(blocks)

    def pattern(row, u):
        return sum(2**j * int(row[c]) for j, c in enumerate(blocks[u]) if c >= 0)

    return torch.stack(
        [
            sum(
                tables[u, pattern(row, p) if p >= 0 else 0, pattern(row, u)]
                for u, p in enumerate(parent)
            )
            for row in x
        ]
    )


def fields(name, n=4, scale=2.0, seed=1):
    d = tree(name).domain.n_columns
    return scale * torch.randn(n, d, generator=seeded(seed), dtype=DOUBLE)


def one_hot_chain(n_columns, n=4000, seed=0):
    """Five categories of four levels in a chain, their codes in scattered columns.

    With three columns to a code the last level has none of its own. Returns rows, the columns of
    each code, and the mean log-likelihood of the chain itself.
    """
    rng, stay = np.random.default_rng(seed), 0.5
    z = [rng.integers(0, 4, n)]
    for _ in range(4):
        z.append(np.where(rng.random(n) < stay, z[-1], rng.integers(0, 4, n)))
    x = np.concatenate([np.eye(4)[c][:, :n_columns] for c in z], 1)
    order = rng.permutation(x.shape[1])
    same = np.equal(z[1:], z[:-1])
    likelihood = np.log(1 / 4) + np.log(stay * same + (1 - stay) / 4).sum(0).mean()
    groups = [set(np.flatnonzero(order // n_columns == g).tolist()) for g in range(5)]
    return torch.tensor(x[:, order]), groups, float(likelihood)


def members(q):
    return [{int(c) for c in block if c >= 0} for block in q.blocks]


def some_rows(n=300, d=8, seed=0):
    """Correlated bits, so that there is something to find."""
    noise = torch.rand(n, d, generator=seeded(seed), dtype=DOUBLE)
    x = (noise < 0.5).double()
    x[:, 1:] = torch.where(noise[:, 1:] < 0.7, x[:, :-1], x[:, 1:])
    return x


# ------------------------------------------------------------------------------
# Sums
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_log_prob_is_the_product_of_tables(name):
    x = bits(tree(name).domain.n_columns)
    torch.testing.assert_close(tree(name).log_prob(x), spelled_out(name, x))
    assert float(tree(name).log_prob(x).exp().sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", SHAPES)
def test_log_prob_inside_is_the_mean_over_independent_columns(name):
    d = tree(name).domain.n_columns
    x, p = bits(d), torch.rand(6, d, generator=seeded(2), dtype=DOUBLE)
    p[0, 0] = 1
    weight = torch.where(x.bool(), p[:, None], 1 - p[:, None]).prod(2)  # (6, 2 ** d)
    torch.testing.assert_close(tree(name).log_prob(p), weight @ spelled_out(name, x))


def test_huge_fields_stay_finite_in_single_precision():
    q = tree("uneven").to("cpu", torch.float32)
    field = fields("uneven", scale=1e4).float()
    tilt = q.tilted(field)
    assert torch.isfinite(tilt.log_normaliser).all()
    assert torch.equal(tilt.mean.round(), (field > 0).float())
    assert torch.equal(tilt.sample(seeded()), (field > 0).float())


# ------------------------------------------------------------------------------
# Draws
# ------------------------------------------------------------------------------


def test_draws_follow_the_evidence():
    field = fields("uneven", 1).repeat(20_000, 1)
    mask = torch.zeros_like(field, dtype=torch.bool)
    mask[:, [0, 5, 8]] = True
    tilt = tree("uneven").tilted(field).given(Clamp(mask, torch.ones_like(field)))
    draws = tilt.sample(seeded(8))
    free = [1, 2, 3, 4, 6, 7]
    assert mean_is(draws[:, free], tilt.mean[0, free]) < 5


def test_draws_repeat_with_the_seed():
    tilt = tree("uneven").tilted(fields("uneven", 100))
    assert torch.equal(tilt.sample(seeded(1)), tilt.sample(seeded(1)))
    assert not torch.equal(tilt.sample(seeded(1)), tilt.sample(seeded(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_its_place(dtype):
    q = tree("uneven").to("cpu", dtype)
    x = bits(9).to(dtype)[:301]
    inside = torch.rand(5, 9, generator=seeded(), dtype=dtype)
    for function in (q.log_prob, q.flip_log_ratio):
        alone = torch.cat([function(row[None]) for row in x])
        assert torch.equal(function(x), alone)
    mixed = q.log_prob(torch.cat([inside, x]))
    assert torch.equal(mixed[5:], q.log_prob(x))
    assert torch.equal(mixed[:5], torch.cat([q.log_prob(row[None]) for row in inside]))


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


def test_one_hot_codes_become_blocks():
    x, groups, likelihood = one_hot_chain(3)
    q = BlockTree.fit(x, block_size=3)
    assert sorted(map(sorted, members(q))) == sorted(map(sorted, groups))
    assert float(q.log_prob(x).mean()) == pytest.approx(likelihood, abs=0.02)
    assert BlockTree.fit(x, block_size=1).log_prob(x).mean() < likelihood - 0.5


def test_the_last_column_of_a_one_hot_code_does_not_change_the_density():
    """It is determined by the others, in a block of its own as well as in theirs."""
    x, _, likelihood = one_hot_chain(4)
    for block_size in (3, 4):
        q = BlockTree.fit(x, block_size=block_size)
        assert float(q.log_prob(x).mean()) == pytest.approx(likelihood, abs=0.05)


@pytest.mark.parametrize("block_size", leading(2, [2, 5, 1, 3, 4]))
def test_blocks_are_a_partition_of_the_columns(block_size):
    q = BlockTree.fit(some_rows(), block_size=block_size)
    assert sorted(itertools.chain(*members(q))) == list(range(8))
    assert max(map(len, members(q))) <= block_size
    assert float(q.log_prob(bits(8)).exp().sum()) == pytest.approx(1, abs=1e-10)


def test_independent_columns_are_not_merged():
    x = (torch.rand(5000, 8, generator=seeded(), dtype=DOUBLE) < 0.3).double()
    assert BlockTree.fit(x, block_size=3).blocks.shape == (8, 1)


def test_blocks_of_one_column_are_a_chow_liu_tree():
    x = some_rows(2000, 12)
    blocks, bits_ = (
        BlockTree.fit(x, block_size=1, smoothing=1e-9),
        ChowLiuTree.fit(x, smoothing=1e-9),
    )
    torch.testing.assert_close(
        blocks.log_prob(x).mean(), bits_.log_prob(x).mean(), atol=2e-3, rtol=0
    )


@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 7.3, 1e8])
def test_weights_are_repetitions_on_any_scale(block_size, scale):
    x = some_rows(200, 9)
    weight = torch.randint(0, 4, (200,), generator=seeded(), dtype=torch.long)
    weighted = BlockTree.fit(x, weight.double() * scale, block_size)
    repeated = BlockTree.fit(x.repeat_interleave(weight, 0), None, block_size)
    assert torch.equal(weighted.blocks, repeated.blocks)
    assert torch.equal(weighted.parent, repeated.parent)
    torch.testing.assert_close(weighted.log_tables, repeated.log_tables)


@pytest.mark.parametrize("weight", [None, torch.zeros(4)])
def test_constant_columns_stay_finite(weight):
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0]]).repeat(4, 1)
    for block_size in (1, 3):
        q = BlockTree.fit(x, weight, block_size)
        assert torch.isfinite(q.log_prob(bits(4).float())).all()
        assert float(q.log_prob(bits(4).float()).exp().sum()) == pytest.approx(1, abs=1e-5)
        if weight is None:
            assert float(q.log_prob(x)[0].exp()) > 0.99


def test_a_single_column_can_be_fitted():
    q = BlockTree.fit(torch.tensor([[0.0], [1.0], [1.0], [1.0]], dtype=DOUBLE))
    assert float(q.log_prob(torch.ones(1, 1, dtype=DOUBLE)).exp()) == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("block_size", [0, 6])
def test_blocks_beyond_bounds_are_refused(block_size):
    with pytest.raises(ValueError, match="block_size must be"):
        BlockTree.fit(some_rows(), block_size=block_size)


# ------------------------------------------------------------------------------
# Construction and storage
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"blocks": [[0, 1], [1, -1]]}, "exactly one block"),
        ({"blocks": [[0, 1], [3, -1]]}, "exactly one block"),
        ({"blocks": [[0, 1], [-1, 2]]}, "padding"),
        ({"blocks": [0, 1]}, "blocks must have shape"),
        ({"parent": [-1, -1]}, "one root"),
        ({"parent": [1, 0]}, "one root"),
        ({"parent": [-1, 1]}, "one tree"),
        ({"parent": [-1, 7]}, "one tree"),
        ({"parent": [-1]}, "must have the shapes"),
        ({"log_tables": torch.zeros(2, 4, 4)}, "sum to 1"),
        ({"log_tables": torch.full((2, 4, 4), torch.nan)}, "sum to 1"),
    ],
)
def test_invalid_trees_are_refused(change, match):
    right = {"blocks": [[0, 1], [2, -1]], "parent": [-1, 0]}
    right["log_tables"] = random_tables(right["blocks"])
    BlockTree(**right)
    with pytest.raises(ValueError, match=match):
        BlockTree(**{**right, **change})


def test_zeros_and_ones_are_exchangeable():
    x = bits(4)[[0, 1, 3, 3, 7, 9, 12, 15, 15]]
    states = bits(4)
    tree, opposite = (BlockTree.fit(some, block_size=2, smoothing=0.2) for some in (x, 1 - x))
    assert torch.allclose(tree.log_prob(states), opposite.log_prob(1 - states), atol=1e-12)
