"""Normalizing flows: densities that integrate to one, draws that follow them, fits, storage."""

import copy
import functools
import io
import math
import pickle
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.base import clone
from sklearn.datasets import make_moons
from torch import nn

from skebm import NCEDensity, ScoreMatchingDensity
from skebm.base import Clamp
from skebm.distributions import Affine, Gaussian, GaussianMixture, NormalizingFlow
from skebm.distributions.transformed import flow
from skebm.distributions.transformed import flow as flow_module
from skebm.energies import MLP
from tests.distributions.test_mixture import assert_contract, grid
from tests.support.distributions import NoTensors
from tests.support.oracle import DOUBLE, P_FLOOR, mean_is, row_gradients, seeded
from tests.support.storage import by_skops
from tests.support.tiers import full, leading, named, only_full

zuko = pytest.importorskip("zuko")

CENTRE, SCALE = (10.0, -3.0, 0.5), (2.0, 0.1, 30.0)


def make_flow(kind, d, *, dtype=DOUBLE, seed=0, size=0.5):
    """A flow as it might come out of training: no map of it is nearly the identity."""
    common = {"transforms": 2, "hidden_features": (8,), "activation": nn.Tanh}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kinds = {"maf": zuko.flows.MAF, "nsf": zuko.flows.NSF, "coupling": zuko.flows.NSF}
        flow = kinds[kind](d, **common | ({"passes": 2} if kind == "coupling" else {}))
        for p in flow.parameters():
            p.data.add_(size * torch.randn_like(p))
    return flow.to(dtype)


def make_noise(kind, d, **params):
    units = (torch.tensor(part[:d], dtype=DOUBLE) for part in (CENTRE, SCALE))
    return NormalizingFlow(make_flow(kind, d, **params), d, *units)


class Shifted(nn.Module):
    """A flow of a user: a normal distribution around a learned place."""

    def __init__(self, d=2):
        super().__init__()
        self.at = nn.Parameter(torch.zeros(d))

    def forward(self):
        normal = torch.distributions.Normal(self.at, torch.ones_like(self.at))
        return torch.distributions.Independent(normal, 1)


INSTANCES = {
    "line": make_noise("nsf", 1),
    "maf": make_noise("maf", 2),
    "nsf": make_noise("nsf", 2),
    "coupling": make_noise("coupling", 3),
    "module": NormalizingFlow(Shifted(3).double(), 3),
}


@functools.cache
def flow_of_name(kind):
    x = torch.randn(60, 2, generator=seeded(), dtype=DOUBLE).cumsum(1) * 3 + 1
    return NormalizingFlow.fit(x, flow=kind, transforms=2, hidden_sizes=(8,), n_steps=5)


@pytest.fixture(params=INSTANCES)
def noise(request):
    return INSTANCES[request.param]


def moons(n, seed):
    x, _ = make_moons(n, noise=0.1, random_state=seed)
    return torch.as_tensor(x, dtype=torch.float32)


# ------------------------------------------------------------------------------
# The distribution
# ------------------------------------------------------------------------------


class Refuses(pickle.Pickler):
    """Refuses to store a live object of torch."""

    def reducer_override(self, value):
        assert not isinstance(value, torch.Tensor | nn.Module)
        return NotImplemented


@pytest.mark.parametrize("kind", named(["maf"], flow.FLOWS))
def test_they_keep_the_contract(kind):
    assert_contract(flow_of_name(kind))


@pytest.mark.parametrize("name", ["line", "maf", only_full("nsf")])
def test_it_integrates_to_one(name):
    noise = INSTANCES[name]
    d = noise.domain.n_columns
    z, cell = grid(-7.0, 7.0, {1: 20_001, 2: 801}[d], d)
    log_p = noise.log_prob(noise.centre + noise.scale * z)
    total = log_p.exp().sum() * cell * noise.scale.prod()
    assert float(total) == pytest.approx(1, abs=5e-3)


def test_draws_follow_the_density_on_the_line():
    noise = INSTANCES["line"]
    x = torch.linspace(0, 20, 200_001, dtype=DOUBLE)[:, None]
    reached = noise.log_prob(x).exp().cumsum(0) * float(x[1] - x[0])
    draws = noise.sample(2000, seeded(1))[:, 0].numpy()
    at = np.interp(draws, x[:, 0].numpy(), reached.numpy())
    assert scipy.stats.kstest(at, "uniform").pvalue > P_FLOOR


def test_draws_follow_the_density(noise):
    """The importance identity: the mean of p / q over draws of q is one, for another p."""
    x = noise.sample(4000, seeded(1))
    other = Gaussian(noise.sample(4000, seeded(2)).mean(0), noise.scale / 2)
    assert mean_is((other.log_prob(x) - noise.log_prob(x)).exp(), 1.0)


def test_units_are_a_change_of_variables(noise):
    plain = NormalizingFlow(noise.flow, noise.domain.n_columns)
    x = noise.sample(20, seeded(1))
    z = (x - noise.centre) / noise.scale
    torch.testing.assert_close(plain.sample(20, seeded(1)), z)
    expected = plain.log_prob(z) - noise.scale.log().sum()
    torch.testing.assert_close(noise.log_prob(x), expected)
    both = Affine(noise, noise.centre, noise.scale)
    torch.testing.assert_close(both.log_prob(z), plain.log_prob(z))
    assert not both.has_given
    assert not both.has_convolved


def test_draws_with_their_densities_are_those_of_sample(noise):
    x, log_q = noise.rsample_and_log_prob(20, seeded(1))
    torch.testing.assert_close(x, noise.sample(20, seeded(1)))
    torch.testing.assert_close(log_q, noise.log_prob(x))
    assert not x.requires_grad


@pytest.mark.parametrize("name", INSTANCES)
def test_weights_get_gradients_when_somebody_asks(name):
    noise = copy.deepcopy(INSTANCES[name])
    assert not any(p.requires_grad for p in noise.flow.parameters())
    noise.flow.requires_grad_(True)
    x, log_q = noise.rsample_and_log_prob(30, seeded())
    (log_q.mean() + x.square().sum(1).mean()).backward()
    missing = [k for k, p in noise.flow.named_parameters() if p.grad is None or not p.grad.any()]
    assert not missing
    noise.flow.zero_grad()
    noise.log_prob_and_score(x.detach())[0].mean().backward()
    by_slope = [p.grad.clone() for p in noise.flow.parameters()]
    noise.flow.zero_grad()
    noise.log_prob(x.detach()).mean().backward()
    for p, grad in zip(noise.flow.parameters(), by_slope, strict=True):
        torch.testing.assert_close(p.grad, grad)
    assert not any(p.requires_grad for p in INSTANCES[name].flow.parameters())


def test_large_tables_go_in_chunks(monkeypatch):
    noise = INSTANCES["nsf"]
    x = noise.sample(100, seeded())
    value, slope = noise.log_prob_and_score(x)
    monkeypatch.setattr("skebm.distributions._fitting.CHUNK", 400 * 30)
    for found in (noise.log_prob(x), noise.log_prob_and_score(x)[0]):
        torch.testing.assert_close(found, value)
    torch.testing.assert_close(noise.score(x), slope)
    monkeypatch.setattr(flow_module, "CHUNK", 400 * 30)
    draws = noise.sample(100, seeded())
    assert len(draws) == len(torch.unique(draws, dim=0)) == 100


def test_slopes_are_finite_differences_far_out():
    noise = INSTANCES["coupling"]
    x = noise.centre + noise.scale * torch.tensor([[30.0, -4.9, 0.0], [1e3, 7.0, -8.0]])
    numeric = row_gradients(noise.log_prob, x.to(DOUBLE))
    torch.testing.assert_close(noise.score(x.to(DOUBLE)), numeric, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------
# Copies and storage
# ------------------------------------------------------------------------------


def test_a_module_of_a_user_is_stored_as_it_is(noise):
    back = pickle.loads(pickle.dumps(noise))
    x = noise.sample(5, seeded())
    assert torch.equal(back.log_prob(x), noise.log_prob(x))
    assert type(back.flow) is type(noise.flow)


@pytest.mark.parametrize("kind", flow.FLOWS)
def test_a_named_flow_is_stored_as_arrays(kind):
    noise = flow_of_name(kind)
    buffer = io.BytesIO()
    Refuses(buffer).dump(noise)
    NoTensors(io.BytesIO()).dump(noise)
    before = torch.get_rng_state()
    back = pickle.loads(buffer.getvalue())
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(back) == repr(noise) == f"NormalizingFlow({kind}, 2 columns)"
    assert not any(p.requires_grad for p in back.flow.parameters())
    single = pickle.loads(pickle.dumps(noise.to("cpu", torch.float32)))
    assert single.sample(1, seeded()).dtype == torch.float32


# ------------------------------------------------------------------------------
# Fits
# ------------------------------------------------------------------------------


@full
def test_moons_are_no_normal_distribution():
    """In nats a row; 0.9 is what there is."""
    x, new = moons(600, 0), moons(2000, 1)
    noise = NormalizingFlow.fit(x, flow="coupling", transforms=2, hidden_sizes=(32,), n_steps=150)
    gain = noise.log_prob(new).mean() - Gaussian.fit(x).log_prob(new).mean()
    assert float(gain) > 0.5


@full
def test_a_normal_distribution_is_found():
    truth = Gaussian(torch.tensor([100.0, -2.0]), covariance=torch.tensor([[4.0, 1.2], [1.2, 1.0]]))
    noise = NormalizingFlow.fit(truth.sample(2000, seeded()), flow="maf", transforms=1, n_steps=200)
    x = truth.sample(2000, seeded(1))
    assert abs(float((truth.log_prob(x) - noise.log_prob(x)).mean())) < 0.03


def test_fits_repeat_with_the_generator_and_leave_torch_alone():
    x = moons(100, 0)
    before = torch.get_rng_state()

    def fitted(seed):
        return NormalizingFlow.fit(x, flow="maf", n_steps=5, sigma=0.1, generator=seeded(seed))

    one, two, other = (fitted(seed).log_prob(x) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_heavy_rows_count_more():
    """Two modes of equal numbers of rows, one three times as heavy."""
    z = torch.randn(600, 1, generator=seeded())
    x = torch.cat([z[:300] - 4, z[300:] / 2 + 4])
    weight = torch.cat([torch.full((300,), 1.5), torch.full((300,), 0.5)])
    noise = NormalizingFlow.fit(x, weight, flow="nsf", transforms=1, n_steps=150)
    left = float((noise.sample(4000, seeded()) < 0).float().mean())
    assert left == pytest.approx(0.75, abs=0.06)


def test_weight_zero_is_no_row_and_weights_have_no_unit():
    x = moons(120, 0)
    weight = (torch.arange(120) % 3 > 0).float()
    fit = {"flow": "maf", "n_steps": 5}
    without = NormalizingFlow.fit(x[weight > 0], **fit).log_prob(x)
    for scale in (1, 1e6):
        found = NormalizingFlow.fit(x, scale * weight, **fit).log_prob(x)
        torch.testing.assert_close(found, without, rtol=1e-4, atol=1e-4)


def test_blur_is_the_noise_of_rows():
    x = torch.cat([torch.full((200, 1), 7.0), torch.randn(200, 1, generator=seeded())], 1)
    noise = NormalizingFlow.fit(x, flow="maf", sigma=torch.tensor([0.3, 2.0]), n_steps=60)
    spread = noise.sample(4000, seeded()).std(0)
    assert float(spread[0]) == pytest.approx(0.3, rel=0.15)
    assert float(spread[1]) == pytest.approx(math.hypot(1, 2), rel=0.15)


def test_a_constant_column_has_the_scale_one():
    x = torch.cat([torch.full((100, 1), 7.0), torch.randn(100, 1, generator=seeded())], 1)
    noise = NormalizingFlow.fit(x, flow="maf", hidden_sizes=(8,), n_steps=50)
    assert noise.scale[0] == 1
    assert float(noise.sample(2000, seeded())[:, 0].std()) == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("kind", named(["maf"], flow.FLOWS))
@pytest.mark.parametrize("dtype", leading(1, [torch.float32, DOUBLE]))
def test_two_rows_of_one_column(kind, dtype):
    x = torch.tensor([[0.0], [1.0]], dtype=dtype)
    small = {"flow": kind, "transforms": 1, "hidden_sizes": (4,), "n_steps": 20}
    noise = NormalizingFlow.fit(x, **small)
    assert noise.log_prob(x).dtype == noise.sample(3, seeded()).dtype == dtype
    assert noise.log_prob(x).isfinite().all()
    assert NormalizingFlow.fit(x[:1], **small).log_prob(x).isfinite().all()


def test_a_module_is_trained_from_its_weights():
    module = Shifted(2)
    x = torch.randn(500, 2, generator=seeded()) + torch.tensor([3.0, 0.0])
    noise = NormalizingFlow.fit(x, flow=module, n_steps=20)
    assert not module.at.any()
    assert module.at.requires_grad
    assert noise.flow.at.any()
    assert repr(noise) == "NormalizingFlow(Shifted, 2 columns)"
    torch.testing.assert_close(noise.sample(4000, seeded()).mean(0), x.mean(0), atol=0.15, rtol=0)


def test_training_ends_where_held_out_rows_gain_nothing(monkeypatch):
    """And goes back to what they liked best, here the weights of the second look."""
    found = iter([1.0, 2.0, 1.5, 1.4, 1.3, 1.2])
    kept = []

    def held_out(flow, z, weight):
        kept.append(copy.deepcopy(flow.state_dict()))
        return next(found)

    monkeypatch.setattr(flow, "_mean_log_prob", held_out)
    noise = NormalizingFlow.fit(moons(100, 0), flow="maf", n_steps_no_change=30)
    assert len(kept) == 4
    for name, value in noise.flow.state_dict().items():
        assert torch.equal(value, kept[1][name])


class Broken(Shifted):
    """Its density is not finite after some steps."""

    def forward(self):
        found = super().forward()
        if self.training and self.at.abs().max() > 0.05:
            self.at.data.fill_(math.nan)
        return found


def test_a_fit_that_diverges():
    x = torch.randn(100, 2, generator=seeded()) * 1.0
    with pytest.raises(FloatingPointError, match="lower learning_rate"):
        NormalizingFlow.fit(x, flow=Broken(), learning_rate=1.0)
    # After a look there is something to go back to.
    noise = NormalizingFlow.fit(x, flow=Broken(), learning_rate=2e-3, n_steps=500)
    assert noise.log_prob(x).isfinite().all()


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self):
        return self.value


class HalfKnown(torch.distributions.Independent):
    """The densities of some rows are unknown."""

    def log_prob(self, value):
        return super().log_prob(value).masked_fill(torch.arange(len(value)) > 0, math.nan)


@pytest.mark.parametrize(
    ("flow", "error", "message"),
    [
        (lambda: None, TypeError, "must be an nn.Module"),
        (zuko.flows.MAF, TypeError, "not MAF"),
        (nn.Linear(2, 2), TypeError, "Linear cannot be called without arguments"),
        (Returns(3), TypeError, "must return a distribution .* returned int"),
        (Shifted(3), ValueError, r"rows of shape \(2, 3\), but n_columns=2"),
        (
            Returns(torch.distributions.Normal(torch.zeros(2), torch.ones(2))),
            ValueError,
            "an event is a row",
        ),
        (
            Returns(HalfKnown(torch.distributions.Normal(torch.zeros(2), torch.ones(2)), 1)),
            ValueError,
            "one finite number for each of two draws",
        ),
    ],
    ids=["function", "class", "arguments", "number", "columns", "entries", "nan"],
)
def test_what_is_no_flow(flow, error, message):
    with pytest.raises(error, match=message):
        NormalizingFlow(flow, 2)
    with pytest.raises(error, match=message.replace("n_columns=2", "")):
        NormalizingFlow.fit(torch.randn(60, 2, generator=seeded()), flow=flow)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"scale": 0.0}, "scale must be positive"),
        ({"scale": torch.ones(3)}, "scale must be"),
        ({"centre": math.nan}, "centre must be finite"),
        ({"centre": torch.ones(3)}, "one for each of 2 columns"),
    ],
    ids=repr,
)
def test_unusable_units(units, message):
    with pytest.raises(ValueError, match=message):
        NormalizingFlow(Shifted(2), 2, **units)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"flow": "realnvp"}, "'maf'.*nn.Module.*'realnvp'"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"sigma": torch.ones(3)}, "one for each of 2 columns"),
        ({"transforms": 0}, "transforms must be"),
        ({"hidden_sizes": (4, 0)}, "hidden_sizes"),
        ({"n_steps": 0}, "n_steps must be an integer"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"learning_rate": -1.0}, "learning_rate must be in"),
        ({"validation_fraction": 1.0}, "validation_fraction must be in"),
        ({"weight": torch.zeros(60)}, "above zero"),
    ],
    ids=repr,
)
def test_unusable_settings(params, message):
    with pytest.raises(ValueError, match=message):
        NormalizingFlow.fit(torch.zeros(60, 2), **params)


def test_rows_that_are_not_finite():
    x = torch.zeros(60, 2)
    x[3] = math.nan
    with pytest.raises(ValueError, match="row 3 is not"):
        NormalizingFlow.fit(x)


def test_what_has_no_closed_form_says_so():
    noise = INSTANCES["nsf"]
    with pytest.raises(TypeError, match="no exact conditionals given real"):
        noise.given(Clamp(torch.tensor([[True, False]]), torch.zeros(1, 2)))
    with pytest.raises(TypeError, match="no closed form under added normal noise"):
        noise.convolved(0.1)
    assert GaussianMixture.fit(torch.randn(9, 2)).has_given


def test_zuko_is_not_there(monkeypatch):
    stored = pickle.dumps(flow_of_name("maf"))
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ImportError, match=r'pip install "skebm\[flows\]"'):
        NormalizingFlow.fit(moons(60, 0), flow="maf")
    with pytest.raises(ImportError, match="skebm"):
        pickle.loads(stored)
    assert NormalizingFlow.fit(moons(60, 0), flow=Shifted(), n_steps=2) is not None


# ------------------------------------------------------------------------------
# In estimators
# ------------------------------------------------------------------------------

# So few that a fit takes fifty steps.
ROWS = moons(48, 0).double().numpy() * [100.0, 1.0] + [1e3, 0.0]


def density(**params):
    return NCEDensity(MLP((16,)), n_iter=2, random_state=0, **params)


@pytest.fixture(scope="module")
def fitted():
    return density(noise="maf").fit(ROWS)


@pytest.fixture(scope="module")
def flow_of_rows():
    return NormalizingFlow.fit(torch.as_tensor(ROWS), flow="maf", n_steps=10)


@full
def test_an_estimator_on_a_flow(fitted):
    before = torch.get_rng_state()
    assert isinstance(fitted.base_, NormalizingFlow)
    assert np.isfinite(fitted.score(ROWS))
    assert np.isfinite(fitted.sample(5, random_state=0, n_steps=2)).all()
    holes = np.where([[True, False]], ROWS[:4], np.nan)
    filled = fitted.impute(holes, random_state=0, n_steps=2)
    np.testing.assert_array_equal(filled[:, 0], holes[:, 0])
    assert np.isfinite(filled).all()
    assert abs(fitted.log_partition_) < 1
    twin = clone(fitted).fit(ROWS)
    np.testing.assert_array_equal(twin.score_samples(ROWS), fitted.score_samples(ROWS))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "store", leading(1, [by_skops, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
)
def test_a_stored_estimator(fitted, store):
    again = store(fitted)
    np.testing.assert_array_equal(again.score_samples(ROWS), fitted.score_samples(ROWS))
    np.testing.assert_array_equal(
        again.sample(2, random_state=0, n_steps=1), fitted.sample(2, random_state=0, n_steps=1)
    )


def test_the_noise_of_training_is_in_the_flow():
    model = density(noise="maf", sigma=0.5).set_params(n_iter=0).fit(ROWS)
    np.testing.assert_allclose(model.base_.scale, math.sqrt(1.25), rtol=1e-5)
    plain = density(noise="maf", sigma=None).set_params(n_iter=0).fit(ROWS)
    np.testing.assert_allclose(plain.base_.scale, 1, rtol=1e-5)


@pytest.mark.parametrize("sigma", leading(1, ["auto", None]))
def test_a_fitted_flow_in_units_of_the_table(flow_of_rows, sigma):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = density(noise=flow_of_rows, sigma=sigma).set_params(n_iter=0).fit(ROWS)
    expected = flow_of_rows.log_prob(torch.as_tensor(ROWS)).numpy()
    np.testing.assert_allclose(model.score_samples(ROWS), expected, atol=2e-3)
    holes = np.where([[True, False]], ROWS[:2], np.nan)
    assert np.isfinite(model.impute(holes, random_state=0, n_steps=2)).all()


def test_a_flow_as_the_base_of_score_matching(flow_of_rows):
    model = ScoreMatchingDensity(MLP((8,)), base=flow_of_rows, n_iter=2, random_state=0).fit(ROWS)
    assert np.isfinite(model.score(ROWS))


def test_bounds_and_bits_take_no_flow():
    with pytest.raises(ValueError, match="'coupling' has mass outside `bounds`"):
        density(noise="coupling", bounds=(0, 2000)).fit(np.abs(ROWS))
    with pytest.raises(ValueError, match="'maf'"):
        density(noise="maf").fit(np.eye(4)[np.arange(40) % 4])
    with pytest.raises(ValueError, match="noise"):
        density(noise="realnvp").fit(ROWS)
    with pytest.raises(ValueError, match="base"):
        ScoreMatchingDensity(base="maf").fit(ROWS)


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "validation_fraction"])
def test_settings_of_training_may_be_zero_but_not_less(name):
    settings = flow_module.TrainingSettings(1e-3, 1e-4, 32, 10, 5, 0.1)
    assert settings._replace(**{name: 0}).for_rows(100) == settings._replace(**{name: 0})
    with pytest.raises(ValueError, match=f"{name} must be in"):
        settings._replace(**{name: -1e-9}).for_rows(100)
