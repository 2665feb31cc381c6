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
from skebm.estimators.storage import files
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


def packed(schema, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "schema.json", json.dumps({"protocol": PROTOCOL, "_skops_version": "0", **schema})
        )
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


STR = node("TypeNode", "builtins", "str")
OS = node("FunctionNode", "skebm.training.resume", "os")
SYSTEM = node("MethodNode", "skebm.training.resume", "os", content={"func": "system", "obj": OS})


def hostile(command):
    """Files each of which runs a command, were its nodes constructed."""
    run = {command: text("")}
    arguments = node("TupleNode", "builtins", "tuple", content=[text(command)])
    state = mapping(listed(STR), {"a": SYSTEM})
    pickled = io.BytesIO()
    np.save(pickled, np.array([Bomb(command)], dtype=object), allow_pickle=True)
    return {
        "a method of a module that skebm imports": mapping(listed(SYSTEM), run),
        "a function": mapping(listed(node("FunctionNode", "os", "system")), run),
        "a function behind a name of ours": mapping(
            listed(node("FunctionNode", "skebm.training.resume", "os.system")), run
        ),
        "a type that is called": mapping(listed(node("TypeNode", "os", "system")), run),
        "a partial": node(
            *("PartialNode", "functools", "partial"),
            content={"func": OS, "args": arguments, "kwds": state, "namespace": state},
        ),
        "a constructor with arguments": node(
            "ConstructorFromReduceNode", "subprocess", "Popen", content=arguments
        ),
        "a methodcaller": node(
            "OperatorFuncNode", "operator", "methodcaller", attrs=arguments, content=arguments
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
        "an array that is a pickle": (
            node("NdArrayNode", "numpy", "ndarray", type="numpy", file="a.npy"),
            {"a.npy": pickled.getvalue()},
        ),
    }


class Bomb:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


@pytest.mark.parametrize("name", list(hostile("")))
def test_hostile_files_execute_nothing(name, tmp_path):
    proof = tmp_path / "proof"
    schema = hostile(f"echo pwned > {proof}")[name]
    schema, members = schema if isinstance(schema, tuple) else (schema, {})
    (tmp_path / "model.skops").write_bytes(packed(schema, **members))
    with pytest.raises(ValueError, match=r"model\.skops"):
        skebm.load(tmp_path / "model.skops")
    assert not proof.exists()


def damaged(data):
    twice = io.BytesIO(data)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("schema.json", "{}")
    deep = text("")
    for _ in range(5000):
        deep = listed(deep)
    return {
        "nothing": b"",
        "no archive": b"nothing of the kind",
        "half": data[: len(data) // 2],
        "a pickle": pickle.dumps(BITS),
        "two schemas": twice.getvalue(),
        "a list": packed({}),
        "a node without content": packed(node("ListNode", "builtins", "list")),
        "a number that is none": packed(listed(text("a") | {"__id__": [1]})),
        "an absent member": packed(
            node("NdArrayNode", "numpy", "ndarray", type="numpy", file="../a.npy")
        ),
        "very deep": b"deep",
    } | {"very deep": deep_archive()}


def deep_archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("schema.json", '{"content": ' + "[" * 100_000 + "]" * 100_000 + "}")
    return file.getvalue()


@pytest.fixture(scope="module")
def stored():
    rbm = RBMEstimator(2, n_iter=2, random_state=0).fit(BITS)
    return rbm, skops.io.dumps(rbm)


def test_damaged_files_are_named(stored, tmp_path):
    path = tmp_path / "model.skops"
    for name, data in damaged(stored[1]).items():
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.skops.* is damaged"):
            pytest.fail(f"{name}: {skebm.load(path)}")


def test_archives_that_unpack_to_too_much_are_refused(stored, monkeypatch):
    monkeypatch.setattr(files, "MOST_UNPACKED", 10_000)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(10_000_000))
    with pytest.raises(ValueError, match="would unpack to"):
        skebm.load(file.getvalue())
    assert skebm.load(stored[1]).n_components == 2


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
