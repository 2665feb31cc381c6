"""Chow-Liu trees: all sums against enumeration, the best of all trees, accurate messages."""

import functools
import heapq
import itertools
import math

import numpy as np
import pytest
import torch

from skebm.base import Clamp
from skebm.distributions import ChowLiuTree, Distribution, IndependentBernoulli
from skebm.distributions.trees.chow_liu import maximum_spanning_tree
from tests.support.oracle import DOUBLE, P_FLOOR, bits, chi_square, count_states, seeded
from tests.support.tiers import leading, only_full

# Parents, not sorted by level; the root anywhere.
SHAPES = {
    "chain": [1, 2, 3, -1, 3, 4],
    "star": [4, 4, 4, 4, -1, 4, 4],
    "random": [2, 5, -1, 0, 2, 2, 0, 3],
    "deep": [6, 0, 1, 1, 3, 4, -1, 5],
    "pair": [1, -1],
    "single": [-1],
}
every_shape = pytest.mark.parametrize("name", SHAPES)


@functools.cache
def make_tree(name):
    d = len(SHAPES[name])
    logits = 2 * torch.randn(d, 2, generator=seeded(d), dtype=DOUBLE)
    root = SHAPES[name].index(-1)
    logits[root, 1] = logits[root, 0]
    return ChowLiuTree(torch.tensor(SHAPES[name]), logits)


def spelled_out(tree, x):
    """log q(x), one conditional probability at a time."""
    log_q = torch.zeros(len(x), dtype=DOUBLE)
    for i, (above, (off, on)) in enumerate(
        zip(tree.parent.tolist(), tree.logits.tolist(), strict=True)
    ):
        for row, one in enumerate(x.tolist()):
            odds = on if above >= 0 and one[above] else off
            p = 1 / (1 + np.exp(-odds))
            log_q[row] += np.log(p if one[i] else 1 - p)
    return log_q


def random_field(name, n=5, scale=2.0, seed=1):
    return scale * torch.randn(n, len(SHAPES[name]), generator=seeded(seed), dtype=DOUBLE)


def random_clamp(field, seed=0):
    """Another one in each row: the first row free, the last one known; nan where unknown."""
    generator = seeded(seed)
    mask = torch.rand(field.shape, generator=generator) < 0.5
    mask[0], mask[-1] = False, True
    value = (torch.rand(field.shape, generator=generator) < 0.5).to(field.dtype)
    return Clamp(mask, torch.where(mask, value, torch.nan))


def enumerate_tilt(tree, field, power=1.0, clamp=None):
    """All states, and their log-weights under each row of the field, (n, 2 ** d)."""
    x = bits(field.shape[1])
    log_weight = power * spelled_out(tree, x) + field @ x.t()
    if clamp is not None:
        wrong = (clamp.mask[:, None] & (x != clamp.value[:, None])).any(2)
        log_weight = log_weight.masked_fill(wrong, -torch.inf)
    return x, log_weight


def correlated_rows(n, d, seed=0, dtype=DOUBLE):
    """Each column depends on a random one before it."""
    generator = seeded(seed)
    x = torch.rand(n, d, generator=generator) < 0.4
    for i in range(1, d):
        above = int(torch.randint(i, (), generator=generator))
        copied = torch.rand(n, generator=generator) < torch.rand((), generator=generator)
        x[:, i] = torch.where(copied, x[:, above], x[:, i])
    return x.to(dtype)


def spanning_trees(d):
    """Edges of every tree on d nodes, from their Pruefer sequences."""
    for sequence in itertools.product(range(d), repeat=d - 2):
        degree = [1 + sequence.count(i) for i in range(d)]
        leaves = [i for i in range(d) if degree[i] == 1]
        heapq.heapify(leaves)
        edges = []
        for node in sequence:
            edges.append((heapq.heappop(leaves), node))
            degree[node] -= 1
            if degree[node] == 1:
                heapq.heappush(leaves, node)
        yield [*edges, (heapq.heappop(leaves), heapq.heappop(leaves))]


def likelihood_on(edges, x):
    """Mean log-likelihood of binary rows under the best distribution on a tree."""

    def entropy(columns):
        _, count = np.unique(x[:, columns].numpy(), axis=0, return_counts=True)
        return -(count / len(x) * np.log(count / len(x))).sum()

    d = x.shape[1]
    information = sum(entropy([i]) + entropy([j]) - entropy([i, j]) for i, j in edges)
    return information - sum(entropy([i]) for i in range(d))


def edges_of(tree):
    return {frozenset((i, p)) for i, p in enumerate(tree.parent.tolist()) if p >= 0}


# ------------------------------------------------------------------------------
# Probabilities
# ------------------------------------------------------------------------------


@every_shape
def test_log_prob_is_the_product_of_conditionals(name):
    tree = make_tree(name)
    x = bits(len(SHAPES[name]))
    torch.testing.assert_close(tree.log_prob(x), spelled_out(tree, x))
    assert float(tree.log_prob(x).exp().sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(tree.mean, tree.log_prob(x).exp() @ x)


@every_shape
def test_log_prob_inside_is_the_mean_over_independent_columns(name):
    tree, x = make_tree(name), bits(len(SHAPES[name]))
    p = torch.rand(6, x.shape[1], generator=seeded(2), dtype=DOUBLE)
    weight = torch.where(x.bool(), p[:, None], 1 - p[:, None]).prod(2)
    torch.testing.assert_close(tree.log_prob(p), weight @ spelled_out(tree, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 8, 111])
def test_a_row_does_not_depend_on_its_place(d, dtype):
    x = correlated_rows(200, d, dtype=dtype)
    tree = ChowLiuTree.fit(x)
    inside = torch.rand(50, d, generator=seeded(), dtype=dtype)
    for rows in (x, inside):
        for function in (tree.log_prob, tree.flip_log_ratio):
            assert torch.equal(function(rows), torch.cat([function(row[None]) for row in rows]))


# ------------------------------------------------------------------------------
# Tilts
# ------------------------------------------------------------------------------


@every_shape
def test_fields_of_fifty_in_single_precision(name):
    tree = make_tree(name).to("cpu", torch.float32)
    field = random_field(name, 40).sign() * 50
    field[:20] *= torch.rand(20, 1, generator=seeded(), dtype=DOUBLE)
    x, log_weight = enumerate_tilt(make_tree(name), field)
    tilt = tree.tilted(field.float())
    torch.testing.assert_close(tilt.mean.double(), log_weight.softmax(1) @ x, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        tilt.log_normaliser.double(), log_weight.logsumexp(1), atol=1e-3, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_huge_fields_determine_the_columns(scale, dtype):
    tree = make_tree("random").to("cpu", dtype)
    field = (random_field("random", 50).sign() * scale).to(dtype)
    tilt = tree.tilted(field)
    assert torch.isfinite(tilt.log_normaliser).all()
    assert torch.equal(tilt.mean, (field > 0).to(dtype))
    assert torch.equal(tilt.sample(seeded()), (field > 0).to(dtype))


@pytest.mark.parametrize("power", [0.3, 1.0])
def test_a_hub_of_many_columns_in_single_precision(power):
    d = 800
    logits = 6 * torch.randn(d, 2, generator=seeded(2), dtype=DOUBLE)
    tree = ChowLiuTree(torch.tensor([-1] + [0] * (d - 1)), logits)
    field = 10 * torch.randn(30, d, generator=seeded(3), dtype=DOUBLE)
    exact = tree.tilted(field, power)
    tilt = tree.to("cpu", torch.float32).tilted(field.float(), power)
    torch.testing.assert_close(tilt.mean.double(), exact.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        tilt.log_normaliser.double(), exact.log_normaliser, atol=0, rtol=1e-6
    )


@pytest.mark.parametrize("scale", [50.0, 1e4])
def test_a_determined_neighbour_does_not_cost_precision(scale):
    """What is certain of one column must not be paid for by the columns beside it."""
    tree = make_tree("random")
    for sign in (-1, 1):
        field = torch.zeros(1, 8, dtype=DOUBLE)
        field[0, [0, 5]] = sign * scale
        x, log_weight = enumerate_tilt(tree, field)
        mean = tree.to("cpu", torch.float32).tilted(field.float()).mean
        torch.testing.assert_close(mean.double(), log_weight.softmax(1) @ x, atol=1e-6, rtol=0)


@every_shape
def test_the_gradient_of_the_normaliser_is_the_mean(name):
    field = random_field(name).requires_grad_()
    tilt = make_tree(name).tilted(field, 0.7)
    (score,) = torch.autograd.grad(tilt.log_normaliser.sum(), field)
    torch.testing.assert_close(score, make_tree(name).tilted(field.detach(), 0.7).mean)


def test_draws_repeat_with_the_seed():
    tilt = make_tree("random").tilted(random_field("random", 100))
    for draw in (tilt.sample, functools.partial(make_tree("random").sample, 100)):
        assert torch.equal(draw(seeded(1)), draw(seeded(1)))
        assert not torch.equal(draw(seeded(1)), draw(seeded(2)))


def test_draws_do_not_change_the_tilt():
    tilt = make_tree("random").tilted(random_field("random"))
    before = tilt.log_normaliser.clone()
    first = tilt.sample(seeded(1))
    assert torch.equal(tilt.sample(seeded(1)), first)
    assert torch.equal(tilt.log_normaliser, before)
    fresh = make_tree("random").tilted(random_field("random"))
    assert torch.equal(tilt.mean, fresh.mean)


# ------------------------------------------------------------------------------
# What is known
# ------------------------------------------------------------------------------


def test_draws_follow_the_known_columns_of_their_row():
    field = random_field("random", 2)
    clamp = random_clamp(random_field("random", 4))
    clamp = Clamp(clamp.mask[1:3], clamp.value[1:3])
    assert not torch.equal(clamp.mask[0], clamp.mask[1])
    _, log_weight = enumerate_tilt(make_tree("random"), field, clamp=clamp)
    many = Clamp(clamp.mask.repeat(10_000, 1), clamp.value.repeat(10_000, 1))
    draws = make_tree("random").tilted(field.repeat(10_000, 1)).given(many).sample(seeded(5))
    assert torch.equal(draws[many.mask], many.value[many.mask])
    for i, p in enumerate(log_weight.softmax(1)):
        assert chi_square(count_states(draws[i::2]), p) > P_FLOOR


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_known_columns_override_any_field(dtype):
    tree = make_tree("random").to("cpu", dtype)
    value = (random_field("random", 40) > 0).to(dtype)
    field = (1 - 2 * value) * 1e4
    clamp = Clamp(torch.ones_like(value, dtype=torch.bool), value)
    assert torch.equal(tree.tilted(field).given(clamp).sample(seeded()), value)


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [4, only_full(5)])
@pytest.mark.parametrize("seed", leading(2, range(4)))
def test_a_fit_is_the_best_of_all_trees(seed, d):
    x = correlated_rows(60, d, seed)
    trees = list(spanning_trees(d))
    assert len({frozenset(map(frozenset, edges)) for edges in trees}) == d ** (d - 2)
    best = max(likelihood_on(edges, x) for edges in trees)
    tree = ChowLiuTree.fit(x, smoothing=1e-9)
    assert likelihood_on([tuple(e) for e in edges_of(tree)], x) == pytest.approx(best, abs=1e-9)
    assert float(tree.log_prob(x).mean()) == pytest.approx(best, abs=1e-6)


def test_a_fit_recovers_the_tree_of_rows():
    truth = make_tree("random")
    tree = ChowLiuTree.fit(truth.sample(100_000, seeded(6)), smoothing=1e-9)
    x = bits(8)
    p = truth.log_prob(x).exp()
    assert float(p @ (truth.log_prob(x) - tree.log_prob(x))) < 1e-3


def test_smoothing_mixes_with_the_uniform_distribution():
    x = correlated_rows(100, 2)
    tree = ChowLiuTree.fit(x, smoothing=0.2)
    p = 0.8 * count_states(x).to(DOUBLE) / 100 + 0.2 / 4
    torch.testing.assert_close(tree.log_prob(bits(2)).exp(), p)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_shrinkage_mixes_with_independent_columns(shrinkage):
    x = correlated_rows(100, 2)
    tree = ChowLiuTree.fit(x, smoothing=1e-12, shrinkage=shrinkage)
    apart = (bits(2) * x.mean(0) + (1 - bits(2)) * (1 - x.mean(0))).prod(1)
    p = (1 - shrinkage) * count_states(x).to(DOUBLE) / 100 + shrinkage * apart
    torch.testing.assert_close(tree.log_prob(bits(2)).exp(), p)


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1, math.nan])
def test_a_shrinkage_out_of_range_is_refused(shrinkage):
    with pytest.raises(ValueError, match=r"shrinkage must be in \[0, 1\]"):
        ChowLiuTree.fit(correlated_rows(10, 2), shrinkage=shrinkage)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 7.3, 1e8])
def test_weights_are_repetitions_on_any_scale(scale):
    x = correlated_rows(200, 7)
    times = torch.randint(0, 4, (200,), generator=seeded())
    weighted = ChowLiuTree.fit(x, times.double() * scale)
    repeated = ChowLiuTree.fit(x.repeat_interleave(times, 0))
    torch.testing.assert_close(weighted.log_prob(bits(7)), repeated.log_prob(bits(7)))
    assert edges_of(weighted) == edges_of(repeated)


def test_a_fit_depends_on_moments_only():
    x = torch.rand(50, 6, generator=seeded(), dtype=DOUBLE)
    second = x.t() @ x / 50
    second.diagonal().copy_(x.mean(0))
    before = second.clone()
    tree = ChowLiuTree.from_moments(second, dtype=DOUBLE)
    torch.testing.assert_close(tree.log_prob(x), ChowLiuTree.fit(x).log_prob(x))
    assert torch.equal(second, before)


def test_values_inside_count_as_probabilities():
    p = torch.rand(30, 5, generator=seeded(), dtype=DOUBLE)
    weight = torch.where(bits(5).bool(), p[:, None], 1 - p[:, None]).prod(2)
    rows = ChowLiuTree.fit(bits(5), weight.sum(0))
    torch.testing.assert_close(ChowLiuTree.fit(p).log_prob(bits(5)), rows.log_prob(bits(5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "row", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 1, "a", "a"], ["a", "a", "a", "b"]]
)
def test_constant_and_duplicated_columns_stay_finite(row, dtype):
    a, b = bits(2)[:, :, None].repeat(5, 1, 1).unbind(1)
    columns = {0: a * 0, 1: a * 0 + 1, "a": a, "b": b}
    x = torch.cat([columns[kind] for kind in row], 1).to(dtype)
    tree = ChowLiuTree.fit(x)
    log_q = tree.log_prob(bits(4).to(dtype))
    assert torch.isfinite(log_q).all()
    assert float(log_q.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert float(tree.log_prob(x).exp().sum()) == pytest.approx(
        len(x) / len(x.unique(dim=0)), rel=1e-2
    )


def test_rows_of_weight_zero_are_refused():
    with pytest.raises(ValueError, match="row of positive weight"):
        ChowLiuTree.fit(bits(3), torch.zeros(8))


@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_nats_may_be_between_columns(seed):
    """Columns of many categories share more than one nat, and ties of whole nats occur."""
    nats = np.random.default_rng(seed).integers(0, 4, (5, 5)).astype(float)
    nats = np.triu(nats, 1) + np.triu(nats, 1).T
    parent = maximum_spanning_tree(nats)
    assert (parent < 0).sum() == 1
    found = sum(nats[i, p] for i, p in enumerate(parent) if p >= 0)
    assert found == max(sum(nats[i, j] for i, j in edges) for edges in spanning_trees(5))


@pytest.mark.parametrize("rows", [torch.zeros(3, 6), bits(6)])
def test_independent_columns_still_make_one_tree(rows):
    tree = ChowLiuTree.fit(rows)
    assert (tree.parent < 0).sum() == 1
    assert len(edges_of(tree)) == 5


@pytest.mark.parametrize(("d", "depth"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 4), (9, 4)])
def test_the_root_is_at_the_centre(d, depth):
    generator = seeded()
    x = torch.empty(5000, d, dtype=DOUBLE)
    x[:, 0] = torch.rand(5000, generator=generator, dtype=DOUBLE) < 0.5
    for i in range(1, d):
        flipped = torch.rand(5000, generator=generator) < 0.1
        x[:, i] = torch.where(flipped, 1 - x[:, i - 1], x[:, i - 1])
    tree = ChowLiuTree.fit(x)
    assert edges_of(tree) == {frozenset((i, i + 1)) for i in range(d - 1)}
    assert tree.depth == depth


# ------------------------------------------------------------------------------
# Construction and storage
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parent",
    [[-1, -1, 0], [1, 2, 0], [-1, 2, 1], [-1, 1, 0], [-1, 0, 3], [0, 0, 1], [-1, 0, -2], []],
    ids=[
        "two roots",
        "no root",
        "cycle",
        "self",
        "out of range",
        "self at the top",
        "below",
        "empty",
    ],
)
def test_invalid_trees_are_refused(parent):
    with pytest.raises(ValueError, match="parent"):
        ChowLiuTree(torch.tensor(parent, dtype=torch.long), torch.zeros(len(parent), 2))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2)])
def test_log_odds_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="logits"):
        ChowLiuTree(torch.tensor([-1, 0, 0]), torch.zeros(shape))


# ------------------------------------------------------------------------------
# The other distributions
# ------------------------------------------------------------------------------


def test_missing_conditionals_are_refused():
    class Opaque(Distribution):
        def sample(self, n, generator):
            return torch.zeros(n, 1)

        def log_prob(self, x):
            return torch.zeros(len(x))

    with pytest.raises(TypeError, match="Opaque has no exact conditionals"):
        Opaque().tilted(torch.zeros(1, 1))


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("scale", [0.0, 2.0, 50.0])
def test_independent_tilts_equal_enumeration(scale, power):
    q = IndependentBernoulli(torch.tensor([-2.0, 0.0, 0.7, 25.0], dtype=DOUBLE))
    field = scale * torch.randn(3, 4, generator=seeded(), dtype=DOUBLE)
    x = bits(4)
    p = 1 / (1 + (-q.logits).exp())
    log_weight = power * (x * p.log() + (1 - x) * (1 - p).log()).sum(1) + field @ x.t()
    tilt = q.tilted(field, power)
    torch.testing.assert_close(tilt.log_normaliser, log_weight.logsumexp(1))
    torch.testing.assert_close(tilt.mean, log_weight.softmax(1) @ x)


def test_independent_draws_follow_the_tilt_of_their_row():
    q = IndependentBernoulli(torch.tensor([-2.0, 0.0, 0.7], dtype=DOUBLE))
    field = torch.randn(3, 3, generator=seeded(), dtype=DOUBLE)
    log_weight = 0.3 * q.log_prob(bits(3)) + field @ bits(3).t()
    draws = q.tilted(field.repeat(10_000, 1), 0.3).sample(seeded(7))
    for i, p in enumerate(log_weight.softmax(1)):
        assert chi_square(count_states(draws[i::3]), p) > P_FLOOR


def test_independent_flips_equal_differences():
    q = IndependentBernoulli(torch.tensor([-2.0, 0.0, 0.7], dtype=DOUBLE))
    flips = q.flip_log_ratio(bits(3))
    torch.testing.assert_close(flips, (1 - 2 * bits(3)) * q.logits)


@pytest.mark.parametrize("d", [1, 8, 111])
def test_an_independent_row_does_not_depend_on_its_place(d):
    x = correlated_rows(200, d, dtype=torch.float32)
    q = IndependentBernoulli.fit(x)
    assert torch.equal(q.log_prob(x), torch.cat([q.log_prob(row[None]) for row in x]))
