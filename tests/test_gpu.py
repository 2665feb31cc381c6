"""The estimator and the samplers on a GPU. Tables are small: whether it works, not how fast."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from skebm import RBMEstimator
from skebm.base import Binary, Energy, Real, SamplingError
from skebm.estimators.base import chain_rows
from skebm.partition import compare
from skebm.samplers import (
    HMC,
    MALA,
    DiscreteLangevin,
    GibbsWithGradients,
    Langevin,
    MetropolisHastings,
    ParallelTempering,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

X = (load_digits().data > 8).astype(np.float32)


@pytest.mark.parametrize("learning", ["pcd", "cd", "exact"])
def test_a_model_fitted_on_the_gpu_scores_the_same_on_the_cpu(learning):
    model = RBMEstimator(8, learning=learning, device="cuda", n_iter=20, random_state=0).fit(X)
    assert model.energy_.weight.device.type == "cuda"
    expected = model.score_samples(X)
    moved = pickle.loads(pickle.dumps(model.set_params(device="cpu")))
    np.testing.assert_allclose(moved.score_samples(X), expected, rtol=1e-4)
    assert moved.sample(3, random_state=0).shape == (3, 64)


def test_a_stream_stays_on_the_gpu():
    model = RBMEstimator(8, learning="pcd", device="auto", random_state=0)
    model.partial_fit(X).partial_fit(X)
    assert len(model.net_.history) == 2
    assert model.energy_.weight.device.type == chain_rows(model.net_).device.type == "cuda"
    for found in (model.impute(X), model.denoise(X), model.reconstruct(X), model.transform(X)):
        assert np.isfinite(found).all()


class Bowl(Energy):
    """A parabola, nan where a column is above a bound."""

    def __init__(self, domain, bound=torch.inf):
        super().__init__()
        self.domain, self.bound = domain, bound

    def forward(self, x, cond=None):
        value = x.square().sum(1) / 2
        return torch.where(x.amax(1) > self.bound, torch.nan, value)


@pytest.mark.parametrize(
    "sampler",
    [
        MetropolisHastings(adapt=True, scale="auto"),
        Langevin(0.01),
        MALA(adapt=True, scale="dense"),
        HMC(adapt=True),
        ParallelTempering(3, MALA(adapt=True)),
        GibbsWithGradients(),
        DiscreteLangevin(adapt=True),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_samplers_stay_on_the_gpu(sampler):
    bits = isinstance(sampler, GibbsWithGradients | DiscreteLangevin)
    energy = Bowl(Binary((4,)) if bits else Real((4,)))
    generator = torch.Generator("cuda").manual_seed(0)
    x = (torch.randn(2000, 4, generator=generator, device="cuda") > 0).float()
    state, info = sampler.run(energy, x, 300, generator)
    assert state.x.device.type == "cuda"
    assert 0 <= float(info.acceptance) <= 1
    truth = torch.sigmoid(torch.tensor(-0.5)) if bits else torch.tensor(0.0)
    assert abs(float(state.x.mean()) - float(truth)) < 0.05


@pytest.mark.parametrize("sampler", [MALA(0.5), HMC(0.5, 3), Langevin(0.1)], ids=repr)
def test_nan_is_found_at_the_end_of_a_run(sampler):
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.zeros(500, 4, device="cuda")
    with pytest.raises(SamplingError):
        sampler.run(Bowl(Real((4,)), bound=1.0), x, 50, generator)


def test_a_generator_of_the_cpu_is_refused():
    x = torch.zeros(5, 4, device="cuda")
    with pytest.raises(ValueError, match="The generator is on cpu, the chains are on cuda"):
        MALA().run(Bowl(Real((4,))), x, 1, torch.Generator())


def test_every_method_finds_the_log_z_of_a_model_on_the_gpu():
    model = RBMEstimator(8, device="cuda", n_iter=20, random_state=0).fit(X)
    frame = compare(model)
    there = frame.index[frame["bound_kind"] != "not applicable"]
    assert {"Exact", "AIS", "ReverseAIS", "AISBracket", "ImportanceSampling"} <= set(there)
    exact = frame.loc["Exact", "value"]
    for name in ("AIS", "ReverseAIS", "AISBracket"):
        assert abs(frame.loc[name, "value"] - exact) < 5 * frame.loc[name, "std_error"] + 1e-3
    assert not (frame["lower"] > exact + 1e-3).any()
    assert not (frame["upper"] < exact - 1e-3).any()
