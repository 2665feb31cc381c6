"""Models that are loaded by `skebm.load`, and the types that it trusts."""

import io
import pickle

import numpy as np
import pytest
import skops.io

import skebm
from skebm import EnergyOutlierDetector, RBMEstimator
from skebm.training import Resume
from tests.contracts.test_shared_state import all_estimators, fitted, numbers_of
from tests.support.storage import by_skops

BITS = (np.random.default_rng(0).random((60, 5)) < 0.3).astype(float)


@pytest.fixture(scope="module")
def stored():
    rbm = RBMEstimator(2, n_iter=2, random_state=0).fit(BITS)
    return rbm, skops.io.dumps(rbm)


def test_models_are_loaded_from_paths_bytes_and_files(stored, tmp_path):
    rbm, data = stored
    path = tmp_path / "model.skops"
    path.write_bytes(data)
    for source in (path, str(path), data, bytearray(data), io.BytesIO(data)):
        assert (skebm.load(source).score_samples(BITS) == rbm.score_samples(BITS)).all()
    with pytest.raises(FileNotFoundError):
        skebm.load(tmp_path / "absent.skops")


def test_a_pipeline_of_the_default_detector_is_loaded():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    detector = EnergyOutlierDetector(random_state=0).fit(rows)
    again = skebm.load(skops.io.dumps(detector))
    assert (again.predict(rows) == detector.predict(rows)).all()


@pytest.mark.filterwarnings("ignore")
@all_estimators
def test_every_estimator_is_loaded_bit_for_bit(cls):
    model = fitted(cls)
    for before, after in zip(numbers_of(model), numbers_of(by_skops(model)), strict=True):
        np.testing.assert_array_equal(before, after)


class Foreign:
    """Code of whoever made a file."""


def test_a_type_from_elsewhere_is_refused(stored):
    with pytest.raises(ValueError, match=r"test_files\.Foreign"):
        skebm.load(skops.io.dumps([stored[0], Foreign()]))


def test_trusted_types_are_classes_of_the_modules_that_they_name():
    names = skebm.trusted_types()
    for name in names:
        module, _, cls = name.rpartition(".")
        found = getattr(__import__(module, fromlist=[cls]), cls)
        assert isinstance(found, type)
        assert found.__module__ == module
        # skorch's nets and callbacks unpickle or write files.
        assert not any(base.__module__.startswith("skorch") for base in found.__mro__[1:]) or (
            found is Resume
        )
    estimators = {f"{cls.__module__}.{cls.__name__}" for cls in public_estimators()}
    assert estimators <= set(names)


def public_estimators():
    return [
        value
        for name, value in vars(skebm).items()
        if isinstance(value, type) and hasattr(value, "fit") and name in skebm.__all__
    ]


def test_a_stored_model_names_no_file(tmp_path):
    """Whoever made a file must not choose what the next fit of its model overwrites."""
    victim = tmp_path / "precious"
    rbm = RBMEstimator(2, n_iter=2, random_state=0).fit(BITS)
    rbm.set_params(net_params={"callbacks": [("resume", Resume(victim))]})
    model = skebm.load(skops.io.dumps(rbm))
    with pytest.warns(UserWarning, match="has no path"):
        model.fit(BITS)
    assert not victim.exists()
    copied = pickle.loads(pickle.dumps(rbm)).net_params["callbacks"][0][1]
    assert copied.path == victim  # workers of searches keep it
