"""Files of others: what is no part of a model is refused before anything is constructed."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import skops.io
from skops.io._protocol import PROTOCOL

import skebm
from skebm import EnergyOutlierDetector, RBMEstimator
from skebm.training import Resume

BITS = (np.random.default_rng(0).random((60, 5)) < 0.3).astype(float)


def node(loader, module, name, **rest):
    return {"__loader__": loader, "__module__": module, "__class__": name, **rest}


def text(value):
    return node("JsonNode", "builtins", "str", content=json.dumps(value), is_json=True)


def listed(*nodes, **rest):
    return node("ListNode", "builtins", "list", content=list(nodes), **rest)


def mapping(keys, content, **rest):
    return node("DictNode", "builtins", "dict", key_types=keys, content=content, **rest)


def packed(schema):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "schema.json", json.dumps({"protocol": PROTOCOL, "_skops_version": "0", **schema})
        )
    return file.getvalue()


STR = node("TypeNode", "builtins", "str")
OS = node("FunctionNode", "skebm.training.resume", "os")
SYSTEM = node("MethodNode", "skebm.training.resume", "os", content={"func": "system", "obj": OS})


def hostile(command):
    """Files each of which runs a command, were its nodes constructed."""
    run = {command: text("")}
    state = mapping(listed(STR), {"a": SYSTEM})
    return {
        "a function behind a name of ours": mapping(
            listed(node("FunctionNode", "skebm.training.resume", "os.system")), run
        ),
        "a net, which unpickles": node(
            "ObjectNode", "skebm.training.engine", "EnergyNet", content=state
        ),
        "deep in the attributes of a model of ours": node(
            *("ObjectNode", "skebm.estimators.rbm.estimator", "RBMEstimator"),
            content=mapping(listed(STR), {"n_components": mapping(listed(SYSTEM), run)}),
        ),
        "keys in the place of other nodes": listed(
            listed(node("ObjectNode", "skebm.samplers.gibbs", "Gibbs"), __id__=7),
            mapping(listed(STR, __id__=7), run),
        ),
        "a reference to a refused node": listed(
            node("CachedNode", "builtins", "list", __id__=5), SYSTEM | {"__id__": 5}
        ),
    }


@pytest.mark.parametrize("name", list(hostile("")))
def test_hostile_files_execute_nothing(name, tmp_path):
    proof = tmp_path / "proof"
    schema = hostile(f"echo pwned > {proof}")[name]
    (tmp_path / "model.skops").write_bytes(packed(schema))
    with pytest.raises(ValueError, match=r"model\.skops"):
        skebm.load(tmp_path / "model.skops")
    assert not proof.exists()


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


class Foreign:
    """Code of whoever made a file."""


def test_a_type_from_elsewhere_is_refused(stored):
    with pytest.raises(ValueError, match=r"tests\.test_loading\.Fo"):
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
