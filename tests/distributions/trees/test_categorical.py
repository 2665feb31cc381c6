"""Trees of bits and categories, against sums over all rows."""

import itertools

import pytest
import torch

from skebm.base import Binary, Categorical, Clamp, Mixed, Real
from skebm.distributions import BlockTree, CategoricalTree, ChowLiuTree, IndependentCategorical
from tests.support.distributions import assert_distribution

KINDS = {
    "mixed": Mixed((Binary((2,)), Categorical((3, 2)))),
    "levels": Categorical((3, 4, 2)),
    "bits": Binary((4,)),
}


def states(domain):
    return domain.states(0, int(domain.n_states), dtype=torch.float64, device="cpu")


def rows(domain, n=400, seed=0):
    """Rows whose columns depend on each other: states drawn with uneven probabilities."""
    generator = torch.Generator().manual_seed(seed)
    every = states(domain)
    weight = torch.rand(len(every), generator=generator).double() ** 4
    return every[torch.multinomial(weight, n, replacement=True, generator=generator)]


@pytest.fixture(params=KINDS)
def domain(request):
    return KINDS[request.param]


@pytest.fixture
def tree(domain):
    return CategoricalTree.fit(rows(domain), domain)


def by_sums(tree, field, power=1.0):
    """Probabilities of all states of a tilt, (n, states), and its log-normaliser."""
    every = states(tree.domain)
    logits = power * tree.log_prob(every) + field @ every.t()
    return logits.softmax(1), logits.logsumexp(1)


def test_probabilities_sum_to_one(tree):
    assert tree.log_prob(states(tree.domain)).exp().sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("power", [1.0, 0.3, 0.0])
def test_tilts_are_exact(tree, power):
    field = torch.randn(
        5, tree.domain.n_columns, generator=torch.Generator().manual_seed(1)
    ).double()
    tilt = tree.tilted(field, power)
    p, log_normaliser = by_sums(tree, field, power)
    torch.testing.assert_close(tilt.log_normaliser, log_normaliser)
    torch.testing.assert_close(tilt.mean, p @ states(tree.domain))


def test_tilts_given_known_entries(tree):
    """Known columns, and levels that are known not to be."""
    every, d = states(tree.domain), tree.domain.n_columns
    field = torch.randn(4, d, generator=torch.Generator().manual_seed(2)).double()
    value = every[[0, len(every) // 2, len(every) - 1, 3]]
    mask = torch.zeros(4, d, dtype=torch.bool)
    mask[0], mask[1, :2], mask[2, -1] = True, True, True
    tilt = tree.tilted(field).given(Clamp(mask, value))
    agrees = ((every == value[:, None]) | ~mask[:, None]).all(2)
    logits = (tree.log_prob(every) + field @ every.t()).masked_fill(~agrees, -torch.inf)
    torch.testing.assert_close(tilt.log_normaliser, logits.logsumexp(1))
    torch.testing.assert_close(tilt.mean, logits.softmax(1) @ every)
    drawn = tilt.sample(torch.Generator().manual_seed(0))
    assert torch.equal(torch.where(mask, drawn, 0.0), torch.where(mask, value, 0.0))
    assert tree.domain.contains(drawn).all()


def test_draws_have_the_probabilities(tree):
    drawn = tree.sample(20_000, torch.Generator().manual_seed(0))
    assert tree.domain.contains(drawn).all()
    every = states(tree.domain)
    share = (drawn[:, None] == every).all(2).double().mean(0)
    p = tree.log_prob(every).exp()
    error = (p * (1 - p) / len(drawn)).sqrt().clamp_min(1e-4)
    assert ((share - p) / error).abs().max() < 4.5


def test_bits_have_the_chow_liu_tree():
    domain = KINDS["bits"]
    x = rows(domain)
    tree, chow_liu = CategoricalTree.fit(x, domain), ChowLiuTree.fit(x)
    blocks = BlockTree.fit(x, block_size=1)
    every = states(domain)
    torch.testing.assert_close(tree.log_prob(every), chow_liu.log_prob(every), atol=0.05, rtol=0)
    torch.testing.assert_close(tree.log_prob(every), blocks.log_prob(every), atol=0.05, rtol=0)
    assert sorted(edges(tree)) == sorted(
        tuple(sorted((i, p))) for i, p in enumerate(chow_liu.parent.tolist()) if p >= 0
    )


def edges(tree):
    pairs = zip(tree.order.tolist(), tree.parent.tolist(), strict=True)
    return [tuple(sorted((i, int(tree.order[above])))) for i, above in pairs if above >= 0]


def test_no_tree_is_more_likely():
    """Of three columns, against both other trees with the same smoothing."""
    domain = Categorical((3, 2, 4))
    x = rows(domain, 2000)
    best = CategoricalTree.fit(x, domain, smoothing=1e-9)
    found = set(edges(best))
    columns = x.split(domain.groups, 1)
    independent = IndependentCategorical.fit(x, domain.groups, pseudo_count=1e-6).log_prob(x).mean()

    def information(i, j):
        both = columns[i].t() @ columns[j] / len(x)
        apart = both.sum(1, keepdim=True) * both.sum(0, keepdim=True)
        return torch.xlogy(both, both / apart.clamp_min(1e-300)).sum()

    value = {pair: information(*pair) for pair in itertools.combinations(range(3), 2)}
    expected = set(sorted(value, key=value.get)[1:])
    assert found == expected
    gain = sum(value[pair] for pair in expected)
    assert best.log_prob(x).mean() == pytest.approx(float(independent + gain), abs=0.01)


def test_weights_count_rows():
    domain = KINDS["mixed"]
    x = rows(domain, 60)
    weight = torch.arange(60.0) % 3
    one = CategoricalTree.fit(x, domain, weight)
    other = CategoricalTree.fit(x.repeat_interleave(weight.long(), 0), domain)
    torch.testing.assert_close(one.log_prob(x), other.log_prob(x))


def test_levels_that_never_occur_have_a_probability():
    domain = Categorical((3, 3))
    x = rows(Categorical((2, 3)), 100)
    x = torch.cat([x[:, :2], torch.zeros(100, 1), x[:, 2:]], 1)
    tree = CategoricalTree.fit(x, domain)
    assert tree.log_prob(states(domain)).isfinite().all()
    assert tree.log_prob(states(domain)).exp().sum() == pytest.approx(1)


def test_the_distribution_satisfies_the_contract(tree):
    assert_distribution(tree.to("cpu", torch.float64))


def test_scores_are_gradients(tree):
    x = rows(tree.domain, 5)
    step = 1e-3
    score = tree.score(x)
    for i in range(x.shape[1]):
        unit = torch.eye(x.shape[1]).double()[i] * step
        slope = (tree.log_prob(x + unit) - tree.log_prob(x - unit)) / (2 * step)
        torch.testing.assert_close(score[:, i], slope, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("domain", "parent", "shape", "match"),
    [
        (Real((2,)), [-1, 0], (2, 2, 2), "bits and categories"),
        (Binary((2,)), [-1], (2, 2, 2), "parent must have shape"),
        (Binary((2,)), [-1, 0], (2, 3, 3), "log_tables must have shape"),
        (Binary((2,)), [-1, -1], (2, 2, 2), "one root"),
    ],
)
def test_bad_trees_are_refused(domain, parent, shape, match):
    with pytest.raises(ValueError, match=match):
        CategoricalTree(domain, parent, torch.zeros(shape))


def test_tables_must_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        CategoricalTree(Binary((2,)), [-1, 0], torch.zeros(2, 2, 2))


def test_tables_that_do_not_fit_are_refused():
    domain = Categorical((1_000_000, 2))
    with pytest.raises(ValueError, match="1000000 levels"):
        CategoricalTree.fit(torch.zeros(1, 1_000_002), domain)
