"""What was exported of models scores rows as these do."""

import functools

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DensityClassifier,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ProductOfDensities,
    RBMClassifier,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TableEncoder,
    TractableDensity,
)
from skebm.energies import MLP, Conv
from skebm.export import ExportError, to_numpy, to_onnx
from skebm.partition import ImportanceSampling
from skebm.samplers import Langevin
from tests.support.exports import assert_equal_scores, assert_scores_like, onnx_scores
from tests.support.tiers import named, only_full

random = np.random.default_rng(0)
NUMBERS = random.normal(size=(240, 3)) @ random.normal(size=(3, 3)) + 5
NEW_NUMBERS = np.concatenate([NUMBERS[:20] + 0.1, NUMBERS[:3] * 1e5, -NUMBERS[:3] * 1e200])
BITS = (random.random((240, 5)) < 0.4).astype(float)
BITS[:, 1] = np.where(random.random(240) < 0.8, BITS[:, 0], BITS[:, 1])
FRAME = pd.DataFrame(
    {
        "city": random.choice(["Rome", "Oslo", "Bonn"], 240),
        "age": random.normal(40, 9, 240),
        "smokes": random.integers(0, 2, 240),
        "size": pd.Categorical(random.choice(["S", "M", "L"], 240), ["S", "M", "L"]),
    }
)
NEW_FRAME = FRAME.iloc[:40].reset_index(drop=True).copy()
NEW_FRAME.loc[::5, "age"] = 1e6
LABELS = np.array(["low", "high"])[(NUMBERS[:, 0] > 5).astype(int)]

EXACT = {"dtype": "float64", "random_state": 0}
FEW = EXACT | {"n_iter": 2, "base": "gaussian", "partition": ImportanceSampling(200)}
SHORT = EXACT | {"n_iter": 2, "partition": ImportanceSampling(200)}

# Models by the name of the test, with rows to fit and rows to score.
CASES = {
    "RBM of bits": (RBMEstimator(4, base="independent", **SHORT), BITS, BITS),
    "RBM of bits with a tree": (RBMEstimator(4, base="chow-liu", **SHORT), BITS, BITS),
    "RBM of bits with a tree of blocks": (
        RBMEstimator(4, base="block-tree", **SHORT),
        BITS,
        BITS,
    ),
    "Boltzmann machine of spins": (
        BoltzmannMachineDensity(random_state=0, dtype="float64"),
        2 * BITS - 1,
        2 * BITS - 1,
    ),
    "RBM of numbers": (RBMEstimator(4, base="gaussian", **SHORT), NUMBERS, NEW_NUMBERS),
    "RBM of a frame": (RBMEstimator(4, base="independent", **SHORT), FRAME, NEW_FRAME),
    "RBM of a frame in classes": (
        RBMEstimator(4, base="latent-classes", **SHORT),
        FRAME,
        NEW_FRAME,
    ),
    "RBM of probabilities": (RBMEstimator(3, visible="bernoulli", **SHORT), NUMBERS, NUMBERS + 0.1),
    "SubspaceRBM": (SubspaceRBM(3, base="independent", **SHORT), BITS, BITS),
    "SpikeSlabRBM": (SpikeSlabRBM(3, base="gaussian", **SHORT), NUMBERS, NEW_NUMBERS),
    "ScoreMatchingDensity": (ScoreMatchingDensity(**FEW), NUMBERS, NEW_NUMBERS),
    "NCEDensity": (NCEDensity(noise="gaussian", **SHORT), NUMBERS, NEW_NUMBERS),
    "ContrastiveDivergenceDensity": (
        ContrastiveDivergenceDensity(**FEW),
        NUMBERS,
        NEW_NUMBERS,
    ),
    "FlowContrastiveDensity": (FlowContrastiveDensity(**SHORT), NUMBERS, NEW_NUMBERS),
    "BoostedDensity": (
        BoostedDensity(n_iter=5, **{k: v for k, v in FEW.items() if k != "n_iter"}),
        NUMBERS,
        NEW_NUMBERS,
    ),
    "NeuralDensity of a stack": (
        NeuralDensity(MLP((8,)), base="stack", **SHORT),
        NUMBERS,
        NEW_NUMBERS,
    ),
    "NeuralDensity with bounds": (
        ContrastiveDivergenceDensity(MLP((8,)), bounds=(0.0, None), **SHORT),
        np.exp(NUMBERS / 9),
        np.exp(NUMBERS / 9) - 0.7,
    ),
    "NeuralDensity of a frame": (
        ContrastiveDivergenceDensity(MLP((8,)), domain="mixed", **SHORT),
        FRAME,
        NEW_FRAME,
    ),
    "BoltzmannMachineDensity": (
        BoltzmannMachineDensity(random_state=0, dtype="float64"),
        FRAME[["city", "smokes", "size"]],
        NEW_FRAME[["city", "smokes", "size"]],
    ),
    "JEMClassifier": (
        JEMClassifier(MLP((8,)), **FEW),
        NUMBERS,
        NEW_NUMBERS[:23],
    ),
    "DensityClassifier": (DensityClassifier(random_state=0), NUMBERS, NEW_NUMBERS),
    "DensityClassifier of a frame": (
        DensityClassifier(label="separate", random_state=0),
        FRAME,
        NEW_FRAME,
    ),
    "RBMClassifier": (RBMClassifier(4, **EXACT, n_iter=2), NUMBERS, NEW_NUMBERS[:20]),
    "TractableDensity": (TractableDensity(random_state=0), NUMBERS, NEW_NUMBERS),
    "TractableDensity of a frame": (TractableDensity(random_state=0), FRAME, NEW_FRAME),
    "ProductOfDensities": (ProductOfDensities(random_state=0), NUMBERS, NEW_NUMBERS),
    "RowSurprise": (RowSurprise(random_state=0), NUMBERS, NEW_NUMBERS),
    "EnergyOutlierDetector": (EnergyOutlierDetector(random_state=0), FRAME, NEW_FRAME),
    "DeepBeliefNetwork": (DeepBeliefNetwork((4, 3), random_state=0), BITS, BITS),
    "DeepBeliefNetwork of a layer": (DeepBeliefNetwork((4,), random_state=0), BITS, BITS),
    "TableEncoder": (TableEncoder(), FRAME, NEW_FRAME),
    "a pipeline": (
        make_pipeline(TableEncoder(), TractableDensity("gaussian", random_state=0)),
        FRAME,
        NEW_FRAME,
    ),
}
FIRST = [
    "RBM of bits",
    "RBM of a frame",
    "NCEDensity",
    "BoostedDensity",
    "JEMClassifier",
    "RBMClassifier",
    "TractableDensity of a frame",
    "BoltzmannMachineDensity",
    "DeepBeliefNetwork of a layer",
]


@functools.cache
def fitted(name):
    model, X, new = CASES[name]
    y = LABELS if "Classifier" in name else None
    return model.fit(X, y), new


# The weights of these are of single precision whatever they are asked for.
LOOSE = {"DeepBeliefNetwork", "DeepBeliefNetwork of a layer", "RBMClassifier"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", named(FIRST, CASES))
def test_scores_are_those_of_the_model(name):
    model, new = fitted(name)
    scorer = to_numpy(model)
    assert scorer.outputs
    assert_scores_like(scorer, model, new, rtol=1e-5 if name in LOOSE else 1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", named(FIRST, CASES))
def test_onnx_scores_are_those_of_numpy(name):
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, new = fitted(name)
    scorer, found = to_numpy(model), onnx_scores(to_onnx(model), new)
    assert set(found) == set(scorer.outputs)
    from tests.support.exports import METHODS

    for output, values in found.items():
        assert_equal_scores(values, getattr(scorer, METHODS[output])(new), 1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["RBM of bits", only_full("NCEDensity")])
def test_onnx_of_single_precision_is_near(model):
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, new = fitted(model)
    exported = to_onnx(model, ["log_density"], dtype="float32")
    (found,) = onnx_scores(exported, new[:20]).values()
    assert found.dtype == np.float32
    assert_equal_scores(found, model.score_samples(new[:20]), 1e-5)


# ------------------------------------------------------------------------------
# Missing entries and impossible values
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RBM of bits", "RBM of a frame"])
def test_missing_entries_are_summed_out(name):
    model, new = fitted(name)
    holes = pd.DataFrame(new).copy().astype(object)
    holes.iloc[::3, 0] = None
    holes.iloc[1::4, 1] = np.nan
    holes.iloc[7] = None
    X = holes if isinstance(new, pd.DataFrame) else holes.astype(float).to_numpy()
    if isinstance(new, pd.DataFrame):
        X = X.astype({"age": float, "smokes": float})
    scorer = to_numpy(model)
    outputs = ["log_density", "energy", "decision", "predict"]
    assert_scores_like(scorer, model, X, 1e-9, outputs)
    assert scorer.score_samples(X)[7] == 0.0
    with pytest.raises(ValueError, match="complete rows alone"):
        scorer.transform(X)


def test_unseen_levels_of_an_rbm_are_missing():
    model, _ = fitted("RBM of a frame")
    new = FRAME.iloc[:3].copy()
    new["city"] = ["Paris", "Rome", "Paris"]
    with pytest.warns(UserWarning, match="count as missing"):
        expected = model.score_samples(new)
    assert_equal_scores(to_numpy(model).score_samples(new), expected, 1e-9)


def test_rows_with_holes_that_have_no_exact_sum_are_refused():
    model, new = fitted("NCEDensity")
    X = new[:4].copy()
    X[1, 0] = np.nan
    with pytest.raises(ValueError, match="missing entries"):
        to_numpy(model).score_samples(X)


def test_onnx_says_nan_where_python_refuses():
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, new = fitted("NCEDensity")
    X = new[:4].copy()
    X[1, 0] = np.nan
    found = onnx_scores(to_onnx(model), X)
    assert np.isnan(found["log_density"]).tolist() == [False, True, False, False]
    assert found["predict"].tolist()[1] == 0


def test_a_value_that_is_no_bit_has_no_probability():
    model, _ = fitted("RBM of a frame")
    new = FRAME.iloc[:3].copy()
    new["smokes"] = [0.0, 0.5, 1.0]
    scorer = to_numpy(model)
    assert np.isneginf(scorer.score_samples(new)).tolist() == [False, True, False]
    assert scorer.predict(new)[1] == -1


# ------------------------------------------------------------------------------
# Models of users
# ------------------------------------------------------------------------------


class Valley(nn.Module):
    """A network that a user wrote."""

    def __init__(self, n_features, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_features, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x) + (x[:, :1] - x[:, 1:2].square()).clamp(-3.0, 3.0)


class Jumpy(Valley):
    """A network whose values depend on other rows."""

    def forward(self, x):
        return super().forward(x) * (1.0 if bool((x > 100).any()) else 2.0)


class Steep(Valley):
    """A network that decreases faster than a normal base increases."""

    def forward(self, x):
        return super().forward(x) - x.square().sum(1, keepdim=True).square()


def test_a_network_of_a_user_is_exported():
    model = NCEDensity(Valley, noise="gaussian", **SHORT).fit(NUMBERS)
    assert_scores_like(to_numpy(model), model, NEW_NUMBERS)


def test_a_network_that_looks_at_other_rows_is_refused():
    model = NCEDensity(Jumpy, noise="gaussian", **SHORT).fit(NUMBERS)
    with pytest.raises(ExportError, match=r"NCEDensity: what it computes .* Score it in Python"):
        to_numpy(model)


def test_models_of_single_precision_agree_to_that():
    model = NCEDensity(noise="gaussian", **SHORT | {"dtype": "float32"}).fit(NUMBERS)
    assert_scores_like(to_numpy(model), model, NEW_NUMBERS[:20], 1e-5)


def test_rows_have_the_precision_of_the_model():
    """Else a value beside a split of a tree is on the other side of it."""
    model = BoostedDensity(n_iter=2, base="gaussian", partition=ImportanceSampling(200))
    scorer = to_numpy(model.set_params(random_state=0).fit(NUMBERS))
    base = scorer.score_samples(NUMBERS)
    same = scorer.score_samples(NUMBERS * (1 + 1e-11)) == base
    assert same.mean() > 0.9


def test_an_export_leaves_the_model_as_it_was():
    model, new = fitted("NCEDensity")
    before = model.score_samples(new)
    to_numpy(model)
    assert np.array_equal(model.score_samples(new), before)
    model.fit(NUMBERS)
    assert np.array_equal(model.score_samples(new), before)


def test_frozen_models_and_searches_are_what_they_hold():
    from sklearn.model_selection import GridSearchCV

    model, new = fitted("TractableDensity")
    assert_scores_like(to_numpy(FrozenEstimator(model)), model, new)
    search = GridSearchCV(TractableDensity("gaussian"), {"random_state": [0]}, cv=2)
    search.fit(NUMBERS)
    assert_scores_like(to_numpy(search), search, new)


# ------------------------------------------------------------------------------
# What cannot be exported
# ------------------------------------------------------------------------------


def test_a_model_that_is_not_fitted_is_refused():
    for model in (RBMEstimator(), EnergyOutlierDetector(), make_pipeline(TractableDensity())):
        with pytest.raises(NotFittedError):
            to_numpy(model)


def test_other_estimators_are_refused():
    scaled = make_pipeline(MinMaxScaler(), TractableDensity("gaussian")).fit(NUMBERS)
    with pytest.raises(ExportError, match="MinMaxScaler has no rule of export"):
        to_numpy(scaled)
    with pytest.raises(ExportError, match="object has no rule"):
        to_numpy(object())


@pytest.mark.parametrize("kind", ["full", *map(only_full, ["tied", "diag", "spherical"])])
def test_mixtures_and_scalers_of_scikit_learn(kind):
    mixture = GaussianMixture(3, covariance_type=kind, random_state=0)
    model = make_pipeline(StandardScaler(), mixture).fit(NUMBERS)
    scorer = to_numpy(model)
    assert_scores_like(scorer, model, NEW_NUMBERS[:20], outputs=["log_density", "predict", "proba"])


def test_images_are_refused():
    images = random.normal(size=(60, 1, 8, 8))
    model = ContrastiveDivergenceDensity(
        Conv(), n_iter=1, base="gaussian", sampler=Langevin(), random_state=0
    ).fit(images)
    with pytest.raises(ExportError, match="Images"):
        to_numpy(model)


def test_a_density_of_rows_and_classes_is_refused():
    model = DensityClassifier(label="column", random_state=0).fit(NUMBERS, LABELS)
    with pytest.raises(ExportError, match='label="separate"'):
        to_numpy(model)


def test_outputs_that_a_model_lacks_are_refused():
    pytest.importorskip("onnx", reason='needs pip install "skebm[onnx,test]"')
    model, _ = fitted("TractableDensity")
    with pytest.raises(ExportError, match="no output 'proba'"):
        to_onnx(model, ["proba"])
    with pytest.raises(ExportError, match="at least one"):
        to_onnx(model, [])
    with pytest.raises(ValueError, match="dtype"):
        to_onnx(model, dtype="float16")


def test_log_z_is_a_constant():
    model = TractableDensity("gaussian").fit(NUMBERS)
    assert "energy" not in to_numpy(model).outputs
    rbm, new = fitted("RBM of bits")
    scorer = to_numpy(rbm)
    difference = scorer.score_samples(new) + scorer.energy(new)
    assert np.allclose(difference, -rbm.log_partition_, atol=1e-12)


def test_a_model_without_log_z_has_energies_alone():
    """Its network decreases faster than its base confines rows, so that Z is infinite."""
    model = NCEDensity(Steep, noise="gaussian", **SHORT).fit(NUMBERS)
    with pytest.raises(ValueError, match="log Z does not exist"):
        model.score_samples(NUMBERS)
    scorer = to_numpy(model)
    assert scorer.outputs == ["energy", "predict", "decision"]
    assert_scores_like(scorer, model, NUMBERS)
