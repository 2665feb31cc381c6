"""Mixtures of correlated numbers and independent levels: sums, conditionals, EM."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from skebm.base import Binary, Categorical, Clamp, Mixed, Real
from skebm.distributions import CorrelatedClasses, GaussianMixture, LatentClasses, Stack
from tests.support.oracle import DOUBLE, seeded, standard_normal

MIXED = Mixed((Binary((1,)), Categorical((3,)), Real((2,))))
LEVELS = Mixed(MIXED.parts[:2])


def model(n=3):
    factors = standard_normal(n, 2, 2, seed=5)
    covariances = factors @ factors.mT + 0.3 * torch.eye(2, dtype=DOUBLE)
    numbers = GaussianMixture(
        standard_normal(n, seed=0).softmax(0), 2 * standard_normal(n, 2, seed=4), covariances
    )
    nothing = standard_normal(n, 0, seed=0)
    levels = LatentClasses(
        standard_normal(n, seed=0),
        LEVELS,
        logits=standard_normal(n, 4, seed=1),
        mean=nothing,
        scale=nothing,
    )
    return CorrelatedClasses(levels, numbers)


def joint(q, x):
    """log pi_c p(x given c) spelled out, (n, K)."""
    found = np.zeros((len(x), q.n_components))
    for c in range(q.n_components):
        p = torch.cat([q.levels.logits[c, :1].sigmoid(), q.levels.logits[c, 1:].softmax(0)]).numpy()
        number = multivariate_normal(q.numbers.means[c], q.numbers.covariances[c])
        for i, row in enumerate(x.numpy()):
            of_levels = (p[0] if row[0] == 1 else 1 - p[0]) * (p[1:] @ row[1:4])
            found[i, c] = np.log(float(q.numbers.weights[c]) * of_levels) + number.logpdf(row[4:])
    return torch.from_numpy(found)


def grid(step=0.3, size=22.2):
    """All rows of `MIXED`, the numbers on a grid, and the log of the volume of a node."""
    line = torch.arange(-size, size + step, step, dtype=DOUBLE)
    numbers = torch.cartesian_prod(line, line)
    states = torch.cat(list(LEVELS.enumerate(dtype=DOUBLE)))
    x = torch.cat([states.repeat_interleave(len(numbers), 0), numbers.repeat(len(states), 1)], 1)
    return x, 2 * math.log(step)


def test_it_is_normalised_and_the_sum_of_its_classes():
    q, (x, log_volume) = model(), grid()
    assert float(q.log_prob(x).logsumexp(0)) + log_volume == pytest.approx(0, abs=1e-8)
    some = x[:: len(x) // 40]
    torch.testing.assert_close(q.log_prob(some), joint(q, some).logsumexp(1))


@pytest.mark.parametrize("known", [[], [0], [1, 2, 3], [4], [0, 5], [1, 2, 3, 4], [0, 1, 2, 3]])
def test_marginals_and_means_given_known_entries_are_those_of_the_sum(known):
    q, (x, log_volume) = model(), grid()
    row = torch.tensor([[1.0, 0, 1, 0, 0.5, -1.0]], dtype=DOUBLE)
    mask = torch.zeros(1, 6, dtype=torch.bool)
    mask[0, known] = True
    levels = [i for i in known if i < 4]
    nodes = x[(x[:, levels] == row[0, levels]).all(1)].clone()
    for i in (4, 5):
        if i in known:  # on the line through the known number
            nodes[:, i] = row[0, i]
            log_volume -= math.log(0.3)
    nodes = nodes.unique(dim=0)
    log_p = q.log_prob(nodes)
    clamp = Clamp(mask, row)
    assert float(q.log_marginal(clamp)) == pytest.approx(
        float(log_p.logsumexp(0)) + log_volume, abs=1e-8
    )
    given, p = q.given(clamp), log_p.softmax(0)
    torch.testing.assert_close(given.mean[0], p @ nodes, rtol=0, atol=1e-7)
    drawn = q.given(Clamp(mask.expand(50_000, -1), row.expand(50_000, -1))).sample(seeded(3))
    assert MIXED.contains(drawn).all()
    for first, second in ((0, 4), (2, 5), (4, 5)):
        product = nodes[:, first] * nodes[:, second]
        of_draws = drawn[:, first] * drawn[:, second]
        error = ((p @ product**2 - (p @ product) ** 2).clamp_min(1e-12) / len(drawn)).sqrt()
        assert abs(float((of_draws.mean() - p @ product) / error)) < 5
    for entry in {4, 5} - set(known):
        column = given.column(entry)
        assert float(column.mean[0]) == pytest.approx(float(p @ nodes[:, entry]), abs=1e-7)
        square = float(p @ nodes[:, entry] ** 2 - (p @ nodes[:, entry]) ** 2)
        assert float(column.std[0]) == pytest.approx(math.sqrt(square), abs=1e-6)


def two_lines(n=2000):
    """A bit, a level, and two numbers whose correlation depends on the bit; other units."""
    rng = np.random.default_rng(0)
    bit = rng.random(n) < 0.4
    level = rng.integers(0, 2, n) + bit
    z = rng.standard_normal((n, 2))
    second = np.where(bit, 1, -1) * 0.9 * z[:, 0] + 0.3 * z[:, 1]
    x = np.column_stack([bit, np.eye(3)[level], 1000 + 50 * z[:, 0], 0.01 * second])
    return torch.tensor(x, dtype=DOUBLE)


def test_em_finds_correlations_that_depend_on_a_level():
    x = two_lines()
    q = CorrelatedClasses.fit(x[:1500], MIXED, n_components=2, generator=seeded())
    covariances = q.numbers.covariances
    scale = covariances.diagonal(dim1=1, dim2=2).sqrt()
    correlation = (covariances[:, 0, 1] / scale.prod(1)).sort().values
    expected = 0.9 / math.hypot(0.9, 0.3)
    torch.testing.assert_close(
        correlation, torch.tensor([-expected, expected], dtype=DOUBLE), atol=0.03, rtol=0
    )
    new, classes = x[1500:], LatentClasses.fit(x[:1500], MIXED)
    gain = q.log_prob(new) - classes.log_prob(new)
    assert gain.mean() > 3 * gain.std() / math.sqrt(len(new))
    clamp = Clamp(torch.tensor([[True] + 4 * [True] + [False]]).expand(len(new), -1), new)
    error = (q.given(clamp).mean[:, 5] - new[:, 5]).square().mean().sqrt()
    assert float(error) == pytest.approx(0.003, rel=0.15)


def test_a_single_class_is_a_normal_distribution_beside_independent_levels():
    x = two_lines(300)
    q = CorrelatedClasses.fit(x, MIXED)
    assert q.n_components == 1
    rest = q.log_prob(x) - q.numbers.log_prob(x[:, 4:])
    states, member = x[:, :4].unique(dim=0, return_inverse=True)
    for number in range(len(states)):
        assert rest[member == number].std() < 1e-9


def test_a_stack_of_it_and_latent_classes_answers_as_the_sum_of_both():
    q, row = model(), torch.tensor([[1.0, 0, 1, 0, 0.5, -1.0]], dtype=DOUBLE)
    classes = LatentClasses.fit(q.sample(300, seeded(1)), MIXED, n_classes=2)
    stack = Stack([q, classes], torch.tensor([0.3, 0.7], dtype=DOUBLE))
    clamp = Clamp(torch.tensor([[True, False, False, False, True, False]]), row)
    parts = [part.log_marginal(clamp).exp() for part in (q, classes)]
    expected = 0.3 * parts[0] + 0.7 * parts[1]
    torch.testing.assert_close(stack.log_marginal(clamp), expected.log())
    share = 0.3 * parts[0] / expected
    means = [part.given(clamp).mean for part in (q, classes)]
    mixed = clamp.apply(share * means[0] + (1 - share) * means[1])
    torch.testing.assert_close(stack.given(clamp).mean, mixed)


def test_columns_of_one_kind_are_refused():
    x = torch.rand(20, 2, dtype=DOUBLE)
    with pytest.raises(ValueError, match="numbers and other columns"):
        CorrelatedClasses.fit(x, Real((2,)))
