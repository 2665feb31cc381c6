"""The estimator on a GPU. Tables are small: whether it works, not how fast."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from skebm import RBMEstimator

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
    model.partial_fit(X)
    net = model.net_
    assert model.partial_fit(X).net_ is net
    for filled in (model.impute(X), model.denoise(X), model.reconstruct(X), model.transform(X)):
        assert np.isfinite(filled).all()
