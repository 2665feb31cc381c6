"""Files of good models that were edited to do harm: all are refused before anything is constructed.

Each payload would leave a file behind. `skops.io.loads`, which makes objects of nodes, is never
reached, and each error names what was refused.
"""

import io
import json
import pickle
import sys
import types
import zipfile
import zlib

import numpy as np
import pytest
import skops.io
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skebm
from skebm import RBMEstimator, TractableDensity
from skebm.training import Resume

X = np.random.default_rng(0).normal(size=(40, 2))
PROOF = "proof"  # what a payload leaves in the working directory


def made():
    """A pipeline with a cache of None, and an RBM with a Resume, as skops stores them."""
    pipeline = make_pipeline(StandardScaler(), TractableDensity("gaussian")).fit(X)
    rbm = RBMEstimator(2, n_iter=1, random_state=0)
    rbm.fit((X > 0).astype(float))
    rbm.set_params(net_params={"callbacks": [("resume", Resume(PROOF))]})
    return skops.io.dumps([pipeline, rbm])


GOOD = made()


def edited(change=None, **members):
    """The good file after a change of its schema, with other members."""
    found = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(GOOD)) as archive,
        zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        schema = json.loads(archive.read("schema.json"))
        if change is not None:
            change(schema)
        contents = {name: archive.read(name) for name in archive.namelist()} | members
        new.writestr("schema.json", json.dumps(schema))
        for name, content in contents.items():
            if name != "schema.json":
                new.writestr(name, content)
    return found.getvalue()


def attributes(schema, which):
    """Attributes of the pipeline or of the RBM, as nodes by their names."""
    return schema["content"][which]["content"]["content"]


def in_place(name, node):
    """Another node for an attribute of the pipeline."""
    return lambda: edited(lambda schema: attributes(schema, 0).update({name: node}))


def node(loader, path, **more):
    module, _, name = path.rpartition(".")
    return {"__loader__": loader, "__module__": module, "__class__": name} | more


def plain(content):
    return node("JsonNode", "builtins.str", content=json.dumps(content), is_json=True)


def several(kind, *nodes):
    return node(f"{kind.capitalize()}Node", f"builtins.{kind}", content=list(nodes))


COMMAND = several("tuple", plain(f"open('{PROOF}', 'w').close()"))
EVAL = node("FunctionNode", "builtins.eval")


def partial():
    none = several("dict") | {"content": {}, "key_types": several("list")}
    content = {"func": EVAL, "args": COMMAND, "kwds": none, "namespace": plain(None)}
    return node("PartialNode", "functools.partial", content=content)


def first_array(schema):
    """The first node of an array in the schema."""
    left = [schema]
    while left:
        tree = left.pop(0)
        if isinstance(tree, dict):
            if tree.get("type") == "numpy":
                return tree
            left += tree.values()
        elif isinstance(tree, list):
            left += tree
    raise KeyError("no array")


class Payload:
    def __reduce__(self):
        return exec, (f"open('{PROOF}', 'w').close()",)


def pickled_array():
    content = io.BytesIO()
    np.save(content, np.array([Payload()], dtype=object), allow_pickle=True)
    name = first_array(json.loads(zipfile.ZipFile(io.BytesIO(GOOD)).read("schema.json")))["file"]
    return edited(**{name: content.getvalue()})


def huge_array():
    """A header that asks for 80 TB, before a file of a few bytes."""
    content = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(content, about)
    name = first_array(json.loads(zipfile.ZipFile(io.BytesIO(GOOD)).read("schema.json")))["file"]
    return edited(**{name: content.getvalue()})


def values_of(dictionary):
    return dictionary["content"]


def path_in_resume():
    def change(schema):
        (callback,) = values_of(attributes(schema, 1)["net_params"])["callbacks"]["content"]
        resume = callback["content"][1]
        assert values_of(resume["content"])["path"]["content"] == "null"
        values_of(resume["content"])["path"] = plain(PROOF)

    return edited(change)


def cache_in_the_place_of_none():
    """skops takes the first node of a number for all of them."""

    def change(schema):
        memory = attributes(schema, 0)["memory"] | {"__id__": 1}
        attributes(schema, 0)["memory"] = memory
        schema["content"].insert(0, memory | {"content": json.dumps(PROOF)})

    return edited(change)


def cache_in_other_attributes():
    def change(schema):
        schema["content"][0]["content"] = plain({"memory": PROOF, "steps": [["a", "passthrough"]]})

    return edited(change)


def function_of_the_first_protocol():
    """Whose name is that of a score, and whose content is what skops then calls."""
    score = node(
        "FunctionNode",
        "skebm.metrics.scorers.log_likelihood_score",
        content={"module_path": "os", "function": "system"},
    )

    def change(schema):
        attributes(schema, 0)["verbose"] = score
        schema["protocol"] = 0

    return edited(change)


def key_types_that_call():
    def change(schema):
        attributes(schema, 0)["verbose"] = node(
            "DictNode",
            "builtins.dict",
            key_types=several("list", EVAL),
            content={f"open('{PROOF}', 'w').close()": plain(None)},
        )

    return edited(change)


# How a file is made, and what the error says of it.
ZOO = {
    "a function of the system": (
        in_place("verbose", node("FunctionNode", "os.system")),
        "os.system",
    ),
    "eval in a partial function": (in_place("verbose", partial()), "functools.partial"),
    "a method of a model": (
        in_place(
            "verbose",
            node(
                "MethodNode",
                "sklearn.preprocessing._data.StandardScaler",
                content={
                    "func": "fit",
                    "obj": node("ObjectNode", "sklearn.preprocessing._data.StandardScaler"),
                },
            ),
        ),
        "StandardScaler .MethodNode",
    ),
    "a package whose name begins with ours": (
        in_place("verbose", node("ObjectNode", "skebm_evil.Model", content=COMMAND)),
        "skebm_evil.Model",
    ),
    "a class of ours that is not in the list": (
        in_place("verbose", node("ObjectNode", "skebm.training.streams.Spool")),
        "skebm.training.streams.Spool",
    ),
    "a function of ours that reads files": (
        in_place("verbose", node("FunctionNode", "skebm.estimators.storage.files.load")),
        "skebm.estimators.storage.files.load",
    ),
    "a module in a module of ours": (
        in_place("verbose", node("FunctionNode", "skebm.estimators.storage.files.os.system")),
        "files.os.system",
    ),
    "a pickle": (lambda: pickle.dumps(Payload()), "not a file that skops"),
    "a pickle in an array": (pickled_array, "holds objects"),
    "what a pickle would call": (
        in_place("verbose", node("ConstructorFromReduceNode", "builtins.exec", content=COMMAND)),
        "builtins.exec",
    ),
    "what a tree of scikit-learn is made by": (
        in_place(
            "verbose",
            node(
                "TreeNode",
                "sklearn.tree._tree.Tree",
                content=several("list"),
                __reduce__={"args": COMMAND},
            ),
        ),
        "sklearn.tree._tree.Tree",
    ),
    "torch.load": (in_place("verbose", node("FunctionNode", "torch.load")), "torch.load"),
    "a module of torch": (
        in_place("verbose", node("ObjectNode", "torch.nn.modules.linear.Linear")),
        "torch.nn.modules.linear.Linear",
    ),
    "an operator": (
        in_place(
            "verbose",
            node("OperatorFuncNode", "operator.methodcaller", attrs=several("list", plain("fit"))),
        ),
        "operator.methodcaller",
    ),
    "types of keys that are called": (key_types_that_call, "builtins.eval|keys of a dict"),
    "a member beside the file": (lambda: edited(**{f"../{PROOF}": b"x"}), rf"\.\./{PROOF}"),
    "an absolute member": (lambda: edited(**{f"/tmp/{PROOF}.npy": b"x"}), f"/tmp/{PROOF}"),
    "a Resume with a path": (path_in_resume, "Resume with path="),
    "a pipeline with a cache": (in_place("memory", plain(PROOF)), "Pipeline with memory="),
    "a cache in the place of none": (cache_in_the_place_of_none, "two nodes that differ"),
    "attributes that are not listed": (cache_in_other_attributes, "attributes of .*Pipeline"),
    "a function of the first protocol": (function_of_the_first_protocol, "stands for .*'os'"),
    "an array that is longer than its file": (huge_array, "not as many numbers as it says"),
    "a bomb": (lambda: edited(**{"0.npy": bytes(2**27 + 1)}), "would unpack to"),
}


def test_the_file_before_it_is_edited_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline, rbm = skebm.load(edited())
    assert np.isfinite(pipeline.score_samples(X)).all()
    assert rbm.net_params["callbacks"][0][1].path is None


@pytest.fixture
def evil(monkeypatch):
    """A package that can be imported, and leaves the proof when its class is made."""
    module = types.ModuleType("skebm_evil")
    exec(f"class Model:\n    def __new__(cls):\n        open('{PROOF}', 'w').close()", vars(module))
    monkeypatch.setitem(sys.modules, "skebm_evil", module)


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("name", ZOO)
def test_an_edited_file_is_refused_by_name_and_nothing_is_made(name, tmp_path, monkeypatch):
    make, offence = ZOO[name]
    data = make()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(skops.io, "loads", lambda *args, **kwargs: pytest.fail("constructed"))
    (tmp_path / "model.skops").write_bytes(data)
    with pytest.raises(ValueError, match=rf"(?s)^model\.skops (holds|is damaged).*({offence})"):
        skebm.load("model.skops")
    assert [path.name for path in tmp_path.iterdir()] == ["model.skops"]


def test_payloads_are_real(tmp_path, monkeypatch):
    """Three of them, given to the reader that executes them."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / PROOF).exists()
    names = ["sklearn.pipeline.Pipeline", "builtins.eval", *skebm.trusted_types()]
    (tmp_path / PROOF).unlink()
    skops.io.loads(key_types_that_call(), trusted=[*names, "builtins.open"])
    assert (tmp_path / PROOF).exists()
    pipeline, _ = skops.io.loads(ZOO["a pipeline with a cache"][0](), trusted=names)
    assert pipeline.memory == PROOF


def test_one_byte_changed_anywhere_is_an_error_or_the_same_model(tmp_path):
    """Bytes of members are covered by the checksums of the archive."""
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(GOOD), 60):
        data = bytearray(GOOD)
        data[at] ^= 0xFF
        try:
            pipeline, _ = skebm.load(bytes(data))
        except ValueError:
            continue
        found = zlib.crc32(pipeline.score_samples(X).tobytes())
        assert found == zlib.crc32(skebm.load(GOOD)[0].score_samples(X).tobytes())
