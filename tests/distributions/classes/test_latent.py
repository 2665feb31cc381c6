"""Latent class models: sums and integrals, EM, the number of classes."""

import math

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from skebm.base import Binary, Categorical, Clamp, Mixed, Real
from skebm.distributions import Gaussian, LatentClasses
from tests.support.oracle import DOUBLE, log_classes, seeded, standard_normal

MIXED = Mixed((Binary((2,)), Categorical((3,)), Real((1,))))


def model(domain=MIXED, n=3):
    n_real = domain.parts[-1].n_columns
    d = domain.n_columns - n_real
    scale = standard_normal(n, n_real, seed=3).exp()
    return LatentClasses(
        standard_normal(n, seed=0),
        domain,
        logits=standard_normal(n, d, seed=1),
        mean=3 * standard_normal(n, n_real, seed=0),
        scale=scale,
    )


def grid():
    """All rows of `MIXED`, the number on a line, and the log of a node's volume."""
    line = torch.linspace(-40, 40, 4001, dtype=DOUBLE)
    states = torch.cat(list(Mixed(MIXED.parts[:2]).enumerate(dtype=DOUBLE)))
    x = torch.cat([states.repeat_interleave(len(line), 0), line.repeat(len(states))[:, None]], 1)
    return x, math.log(float(line[1] - line[0]))


def test_it_is_normalised_and_what_its_classes_say():
    q, (x, log_volume) = model(), grid()
    log_p = q.log_prob(x)
    assert float(log_p.logsumexp(0)) + log_volume == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(log_p, log_classes(q, x, torch.ones(1, dtype=DOUBLE)))


def test_draws_have_its_moments():
    q, (x, _) = model(), grid()
    drawn, p = q.sample(200_000, seeded(1)), q.log_prob(x).softmax(0)
    assert MIXED.contains(drawn).all()
    for power in (1, 2):
        mean, square = p @ x**power, p @ x ** (2 * power)
        error = ((square - mean**2) / len(drawn)).sqrt()
        assert ((drawn**power).mean(0) - mean).abs().div(error).max() < 5


def test_conditionals_given_known_entries_are_those_of_the_sum():
    q, (x, log_volume) = model(), grid()
    row = torch.tensor([[1.0, 0, 0, 1, 0, 2.0]], dtype=DOUBLE)
    for known in ([0], [2, 3, 4], [5], [1, 5], []):
        mask = torch.zeros(1, 6, dtype=torch.bool)
        mask[0, known] = True
        given = q.given(Clamp(mask, row))
        where = [i for i in known if i < 5]
        agrees = (x[:, where] == row[0, where]).all(1)
        volume = log_volume
        if 5 in known:  # on the one line through the known number
            nodes = x[agrees].clone()
            nodes[:, 5] = 2.0
            nodes, volume = nodes.unique(dim=0), 0.0
        else:
            nodes = x[agrees]
        log_p = q.log_prob(nodes)
        assert float(given.log_normaliser[0]) == pytest.approx(
            float(log_p.logsumexp(0)) + volume, abs=1e-9
        )
        torch.testing.assert_close(given.mean[0], log_p.softmax(0) @ nodes, rtol=0, atol=1e-8)
        drawn = given.sample(seeded())
        assert torch.equal(drawn[mask], row[mask])


def test_the_score_is_the_gradient():
    q, x = model(), model().sample(20, seeded(2)).requires_grad_()
    value, score = q.log_prob_and_score(x)
    torch.testing.assert_close(value, q.log_prob(x))
    torch.testing.assert_close(score, torch.autograd.grad(q.log_prob(x).sum(), x)[0])


def test_the_precision_score_is_the_derivative():
    q, x = model(), model().sample(20, seeded(2))
    s = torch.zeros(1, dtype=DOUBLE, requires_grad=True)
    (own,) = torch.autograd.functional.jacobian(lambda s: q.with_precision(s).log_prob(x), (s,))
    torch.testing.assert_close(q.precision_score(x), own)


def test_flips_of_bits_are_differences():
    q = LatentClasses(
        standard_normal(3, seed=0),
        Binary((4,)),
        logits=standard_normal(3, 4, seed=0),
        mean=standard_normal(3, 0, seed=0),
        scale=standard_normal(3, 0, seed=0),
    )
    x = q.sample(10, seeded())
    for i in range(4):
        flipped = x.clone()
        flipped[:, i] = 1 - x[:, i]
        expected = q.log_prob(flipped) - q.log_prob(x)
        torch.testing.assert_close(q.flip_log_ratio(x)[:, i], expected)
    with pytest.raises(TypeError, match="Only bits"):
        model().flip_log_ratio(model().sample(2, seeded()))


def test_powers_have_no_closed_form():
    assert not model().has_powers
    with pytest.raises(ValueError, match="no closed form"):
        model().tilted(torch.zeros(1, 6, dtype=DOUBLE), 0.5)


def two_classes():
    return LatentClasses(
        torch.tensor([0.3, 0.7], dtype=DOUBLE).log(),
        MIXED,
        logits=torch.tensor([[2.0, -2, 1, 0, -1], [-2.0, 0, -1, 0, 1]], dtype=DOUBLE),
        mean=torch.tensor([[100.0], [140.0]], dtype=DOUBLE),
        scale=torch.tensor([[3.0], [9.0]], dtype=DOUBLE),
    )


def without_some(x, share):
    """Which entries are known, at random: all levels of a column or none."""
    known = torch.rand(len(x), 4, generator=seeded(7)) > share
    return known[:, [0, 1, 2, 2, 2, 3]]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_em_finds_the_classes_that_drew_the_rows(share):
    true = two_classes()
    x = true.sample(5000, seeded())
    known = without_some(x, share) if share else None
    if known is not None:
        x = torch.where(known, x, math.inf)  # which is never read
    found = LatentClasses.fit(x, MIXED, n_classes=2, known=known)
    order = found.mean[:, 0].argsort()
    torch.testing.assert_close(found.mean[order], true.mean, rtol=0, atol=0.8)
    torch.testing.assert_close(found.scale[order], true.scale, rtol=0.06, atol=0)
    torch.testing.assert_close(found.logits[order], true.logits, rtol=0, atol=0.2 + share)
    chosen = LatentClasses.fit(x, MIXED, known=known)
    assert chosen.n_classes in (2, 3)
    held_out = true.sample(5000, seeded(1))
    loss = true.log_prob(held_out) - chosen.log_prob(held_out)
    assert float(loss.mean()) < 0.01


def test_a_step_of_em_raises_the_likelihood_of_known_entries():
    """The sum over the missing entries, which the conditionals compute another way."""
    x = two_classes().sample(300, seeded()).clone()
    x[:, -1] = (x[:, -1] - 120) / 20
    known = without_some(x, 0.5)

    def value(q):
        return float(q.given(Clamp(known, x)).log_normaliser.mean())

    one, two = (
        LatentClasses.fit(x, MIXED, n_classes=3, prior_rows=1e-3, known=known),
        LatentClasses.fit(x, MIXED, n_classes=1, prior_rows=1e-3, known=known),
    )
    own = [float(known[:, j].double() @ x[:, j]) / float(known[:, j].sum()) for j in (0, 1)]
    torch.testing.assert_close(
        two.logits[0, :2].sigmoid(), torch.tensor(own, dtype=DOUBLE), rtol=0, atol=1e-4
    )
    assert value(one) > value(two)
    everything = torch.ones_like(known)
    same = LatentClasses.fit(x, MIXED, n_classes=2, known=everything)
    torch.testing.assert_close(
        same.log_prob(x), LatentClasses.fit(x, MIXED, n_classes=2).log_prob(x)
    )


def test_a_broad_class_has_the_moments_and_the_weight_of_a_row():
    x = two_classes().sample(500, seeded())
    q = LatentClasses.fit(x, MIXED, n_classes=2)
    wider = q.with_broad_class(x)
    assert wider.n_classes == 3
    assert float(wider.log_weights[2].exp()) == pytest.approx(1 / 501)
    assert float(wider.mean[2, 0]) == pytest.approx(float(x[:, -1].mean()))
    assert float(wider.scale[2, 0]) == pytest.approx(float(x[:, -1].std(correction=0)))
    far = x.clone()
    far[:, -1] += 150
    one = LatentClasses.fit(x, MIXED, n_classes=1)
    assert float((one.log_prob(far) - wider.log_prob(far)).max()) < math.log(502)
    assert one.with_broad_class(x) is one


def test_of_correlated_numbers_another_class_covers_rows_along_them():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(500, 1)) + 0.3 * rng.normal(size=(500, 3)))
    wider = LatentClasses.fit(x, Real((3,)), n_classes=2).with_broad_class(x)
    assert wider.n_classes == 4
    largest = float(torch.linalg.eigvalsh(torch.corrcoef(x.t()))[-1])
    ratio = (wider.scale[3] / wider.scale[2]).square()
    torch.testing.assert_close(ratio, torch.full_like(ratio, largest))
    log_det = float(torch.logdet(torch.corrcoef(x.t())))
    normal = Gaussian.fit(x, shrinkage=0.0)
    far = x * torch.logspace(0, 2, 500)[:, None]
    lost = float((normal.log_prob(far) - wider.log_prob(far)).max())
    assert lost < math.log(2 * 501) + 1.5 * math.log(largest) - 0.5 * log_det


def test_of_numbers_it_is_a_diagonal_mixture():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.5, (400, 2)), rng.normal(2, [2.0, 0.3], (600, 2))])
    ours = LatentClasses.fit(torch.as_tensor(X), Real((2,)), n_classes=2)
    theirs = GaussianMixture(2, covariance_type="diag", random_state=0).fit(X)
    assert float(ours.log_prob(torch.as_tensor(X)).mean()) == pytest.approx(
        theirs.score(X), abs=0.01
    )


def test_weights_are_counts_of_rows():
    x = model().sample(60, seeded())
    weight = torch.randint(1, 4, (60,), generator=seeded(1))
    one = LatentClasses.fit(x, MIXED, weight.double(), n_classes=1)
    other = LatentClasses.fit(x.repeat_interleave(weight, 0), MIXED, n_classes=1)
    torch.testing.assert_close(one.log_prob(x), other.log_prob(x))


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[0.0, 1, 1, 0, 0, 3.0]]),
        torch.tensor([[0.0, 1, 1, 0, 0, 3.0]]).repeat(50, 1),
        torch.tensor([[0.0, 1, 1, 0, 0, 1e9], [1.0, 1, 0, 1, 0, -1e9]]).repeat(20, 1),
    ],
    ids=["one row", "duplicates", "huge"],
)
def test_hard_rows_have_a_sound_model(x):
    q = LatentClasses.fit(x.double(), MIXED)
    assert q.log_prob(x.double()).isfinite().all()
    assert q.sample(5, seeded()).isfinite().all()


@pytest.mark.parametrize(
    ("domain", "match"),
    [
        (Mixed((Real((1,)), Binary((1,)))), "in this order"),
        (Real((2,), lower=0.0), "unbounded"),
        (Real((1, 2)), "flat"),
    ],
)
def test_other_rows_are_refused(domain, match):
    with pytest.raises(ValueError, match=match):
        LatentClasses.fit(torch.rand(4, 2), domain)


def test_wrong_shapes_and_scales_are_refused():
    parts = {"logits": torch.zeros(2, 0), "mean": torch.zeros(2, 1), "scale": torch.ones(2, 1)}
    with pytest.raises(ValueError, match="mean must be of shape"):
        LatentClasses(torch.zeros(2), Real((1,)), **parts | {"mean": torch.zeros(1, 1)})
    with pytest.raises(ValueError, match="positive"):
        LatentClasses(torch.zeros(2), Real((1,)), **parts | {"scale": torch.zeros(2, 1)})
