"""Files of others: `skebm.load` refuses whatever is no model of skebm, and executes none of it."""

import io
import json
import zipfile

import numpy as np
import pytest
import skops
import skops.io

import skebm
from skebm import RBMEstimator

OURS = "skebm.training.resume"


def node(loader, module, name, **more):
    return {"__loader__": loader, "__module__": module, "__class__": name} | more


def plain(content):
    return node("JsonNode", "builtins", "str", content=json.dumps(content), is_json=True)


def listed(*nodes):
    return node("ListNode", "builtins", "list", content=list(nodes))


def made(module, name, *args):
    content = node("TupleNode", "builtins", "tuple", content=list(args))
    return node("ConstructorFromReduceNode", module, name, content=content)


def keyed(key, maker):
    content = {key: plain(None)}
    return node("DictNode", "builtins", "dict", key_types=listed(maker), content=content)


STR = node("TypeNode", "builtins", "str")


def keyed_plainly(key, value):
    return node("DictNode", "builtins", "dict", key_types=listed(STR), content={key: value})


def stored(schema, **members):
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        about = {"protocol": skops.io._protocol.PROTOCOL, "_skops_version": skops.__version__}
        if schema is not None:
            archive.writestr("schema.json", json.dumps(schema | about))
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return found.getvalue()


def array(file="1.npy"):
    return node("NdArrayNode", "numpy", "ndarray", type="numpy", file=file)


def pickled():
    found = io.BytesIO()
    np.save(found, np.array([{}], dtype=object), allow_pickle=True)
    return found.getvalue()


def of_length(n):
    found = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        found, {"descr": "<f8", "fortran_order": False, "shape": (n,)}
    )
    return found.getvalue()


def hostile(command):
    os_of_ours = node("FunctionNode", OURS, "os")
    system = node("MethodNode", OURS, "os", content={"func": "system", "obj": os_of_ours})
    nested = plain(1)
    for _ in range(300):
        nested = listed(nested)
    doubled = plain(1)
    for number in range(1, 60):
        doubled = listed(doubled | {"__id__": number}, {**plain(1), "__id__": number})
    partial = {"func": system, "args": plain([]), "kwds": plain({}), "namespace": plain(None)}
    return {
        "a method as the type of keys": lambda: stored(keyed(command, system)),
        "an object as the type of keys": lambda: stored(
            keyed(command, node("ObjectNode", "skebm.samplers.gibbs", "Gibbs"))
        ),
        "a function": lambda: stored(node("FunctionNode", "os", "system")),
        "a module in a module of skebm": lambda: stored(listed(os_of_ours)),
        "a partial function": lambda: stored(
            node("PartialNode", "functools", "partial", content=partial)
        ),
        "a class called": lambda: stored(made("subprocess", "Popen", plain(command))),
        "a class of another module": lambda: stored(
            node("ObjectNode", OURS, "Path", content=plain(None))
        ),
        "an operator": lambda: stored(
            node("OperatorFuncNode", "operator", "methodcaller", attrs=listed(plain("x")))
        ),
        "a pickle in an array": lambda: stored(array(), **{"1__npy": pickled()}),
        "an array that is longer than its file": lambda: stored(
            array(), **{"1__npy": of_length(10**13)}
        ),
        "a bomb": lambda: stored(array(), **{"1__npy": bytes(2**27 + 1)}),
        "a path": lambda: stored(plain(1), **{"../x__npy": b""}),
        "no schema": lambda: stored(None, **{"1__npy": b""}),
        "too deep": lambda: stored(nested),
        "nodes that double": lambda: stored(doubled),
        "a function behind a name of ours": lambda: stored(
            keyed(command, node("FunctionNode", OURS, "os.system"))
        ),
        "a net, which unpickles": lambda: stored(
            node("ObjectNode", "skebm.training.engine", "EnergyNet", content=keyed("a", system))
        ),
        "deep in the attributes of a model of ours": lambda: stored(
            node(
                *("ObjectNode", "skebm.estimators.rbm.estimator", "RBMEstimator"),
                content=keyed_plainly("n_components", keyed(command, system)),
            )
        ),
        "keys in the place of other nodes": lambda: stored(
            listed(
                listed(node("ObjectNode", "skebm.samplers.gibbs", "Gibbs")) | {"__id__": 7},
                keyed_plainly(command, plain("")) | {"key_types": listed(STR) | {"__id__": 7}},
            )
        ),
        "a reference to a refused node": lambda: stored(
            listed(node("CachedNode", "builtins", "list", __id__=5), system | {"__id__": 5})
        ),
        "a cut file": lambda: skops.io.dumps(RBMEstimator())[:-40],
        "a pickle": lambda: b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.",
    }


HOSTILE = hostile("touch proof")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_not_executed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.skops").write_bytes(HOSTILE[name]())
    with pytest.raises(ValueError, match=r"model\.skops (is damaged|holds)"):
        skebm.load(tmp_path / "model.skops")
    assert not (tmp_path / "proof").exists()


def test_what_is_trusted_names_no_file_and_calls_nothing():
    trusted = skebm.trusted_types()
    assert not [name for name in trusted if not name.startswith("skebm.")]
    for word in ("EnergyNet", "Parametrized", "Spool", "Mapped", "Progress", "Display", ".os"):
        assert not [name for name in trusted if word in name]
