"""Tables with little in them: a fit gives a sound model, or says what is missing."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone

from skebm import (
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    JEMClassifier,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
)
from skebm.base import TrainingWarning
from skebm.training import SGD, AdamW
from tests.support.tiers import only_full

_random = np.random.default_rng(0)
SHORT = {"n_iter": 3, "random_state": 0}
MODELS = {
    "rbm": RBMEstimator(3, **SHORT),
    "subspace": SubspaceRBM(2, 2, **SHORT),
    "slab": SpikeSlabRBM(2, **SHORT),
    "deep": DeepBoltzmannMachine((3, 2), **SHORT),
    "score matching": ScoreMatchingDensity(**SHORT),
    "temporal": TemporalRBM(2, **SHORT),
    "jem": JEMClassifier(**SHORT),
    "rbm classifier": RBMClassifier(3, **SHORT),
    "detector": EnergyOutlierDetector(RBMEstimator(3, **SHORT)),
}


def one_other(x):
    """The table with a column that has one value but for one row."""
    x = x.copy()
    x[:, 0], x[7, 0] = 0.0, 1.0
    return x


BITS = (_random.random((260, 4)) < 0.3 + 0.4 * _random.integers(0, 2, (260, 1))) * 1.0
NUMBERS = _random.normal(size=(260, 4))
TABLES = {
    "ten rows of bits": BITS[:10],
    "ten rows of numbers": NUMBERS[:10],
    "one column of bits": BITS[:, :1],
    "one column of numbers": NUMBERS[:, :1],
    "equal bits": np.tile([1.0, 0.0, 1.0], (260, 1)),
    "equal numbers": np.tile([1.5, 2.0, -3.0], (260, 1)),
    "one other bit": one_other(BITS),
    "one other number": one_other(NUMBERS),
}
CASES = [
    (name, table) if name in ("rbm", "rbm classifier") else only_full(name, table)
    for name in MODELS
    for table in TABLES
]


@pytest.mark.filterwarnings("ignore::skebm.base.SkebmWarning")
@pytest.mark.parametrize(("name", "table"), CASES)
def test_a_fit_is_sound_or_says_what_is_missing(name, table):
    x = TABLES[table]
    y = np.arange(len(x)) % 2
    model, refused = clone(MODELS[name]), ""
    try:
        model.fit(x, y) if "classifier" in name or name == "jem" else model.fit(x)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.endswith(".")
        assert len(refused) > 30
        return
    scores = model.score_samples(x)
    assert np.isfinite(scores).all()
    # No row of a table whose rows are all alike has a density that grows with the training.
    assert scores.max() < 60


TIMED = {
    "rbm": RBMEstimator(learning="pcd", optimizer=SGD(max_time=0.5), random_state=0),
    "score matching": ScoreMatchingDensity(optimizer=AdamW(max_time=0.5), n_iter=10_000),
    "jem": JEMClassifier(optimizer=AdamW(max_time=0.5), n_iter=10_000, random_state=0),
    "rbm classifier": RBMClassifier(optimizer=SGD(max_time=0.5), n_iter=10_000, random_state=0),
    "temporal": TemporalRBM(optimizer=AdamW(max_time=0.5), n_iter=10_000, random_state=0),
}


@pytest.mark.parametrize("name", [n if n == "rbm" else only_full(n) for n in TIMED])
def test_a_fit_that_its_time_ends_is_sound_and_says_what_was_left(name):
    x, y = (BITS, BITS[:, 0] > 0) if "rbm" in name or name == "temporal" else (NUMBERS, BITS[:, 0])
    model = clone(TIMED[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y) if "classifier" in name or name == "jem" else model.fit(x)
    said = [one for one in caught if "after max_time=0.5 seconds" in str(one.message)]
    assert len(said) == 1
    assert issubclass(said[0].category, TrainingWarning)
    assert np.isfinite(model.score_samples(x)).all()
