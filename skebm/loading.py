"""Models of others: a file of skops is checked whole before anything in it is constructed.

A file of skops is a zip archive of arrays and a schema, a tree of nodes that name what constructs
each object. skops asks whether the names are trusted; here, the nodes themselves are asked for as
well, because a name can lead anywhere: ``skebm.training.resume`` and ``os`` are a module of skebm
and something that it imports.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import pkgutil
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

import skebm
from skebm.base import Domain, PartitionEstimator, Sampler
from skebm.base.contrast import Centering
from skebm.distributions.base import Distribution
from skebm.distributions.transformed.regression import RegressionMixture
from skebm.energies.deep import Layers
from skebm.estimators.base import Blueprint, LogZ
from skebm.estimators.boltzmann.hopfield import Memory
from skebm.estimators.neural.blueprint import Rule
from skebm.estimators.neural.conditional.estimator import ReferenceRows
from skebm.estimators.rbm.blueprint import HiddenUnits
from skebm.estimators.tables.table import Table
from skebm.samplers.chains import ChainPolicy
from skebm.training import Resume
from skebm.training.plan import TrainingPlan

__all__ = ["load", "trusted_types"]

# Whatever is derived from these and defined in skebm may be part of a model.
KINDS = (
    *(BaseEstimator, Blueprint, ChainPolicy, Distribution, Domain, HiddenUnits, Memory),
    *(PartitionEstimator, Rule, Sampler, Table),
)
# Further types of models. A `Resume` of a file has no path, see there.
OTHERS = (Centering, Layers, LogZ, ReferenceRows, RegressionMixture, Resume, TrainingPlan)
# Where types of models are defined; skorch's nets, of which the engine's is one, unpickle.
PLACES = (
    *("skebm._validation", "skebm.base", "skebm.distributions", "skebm.energies"),
    *("skebm.estimators", "skebm.partition", "skebm.samplers"),
    *("skebm.training.plan", "skebm.training.resume"),
)

PLAIN = frozenset({"builtins.bool", "builtins.float", "builtins.int", "builtins.str"})
NUMPY = frozenset(f"numpy.{kind.__name__}" for kind in np.sctypeDict.values()) - {"numpy.object_"}
# What skops may construct besides our types, by its node. No function, method, or constructor that
# is called with arguments is among them.
NODES: dict[str, frozenset[str]] = {
    "BytesNode": frozenset({"builtins.bytes"}),
    "DictNode": frozenset({"builtins.dict", "collections.OrderedDict"}),
    "DTypeNode": frozenset({"numpy.dtype"}),
    "JsonNode": PLAIN | {"builtins.NoneType"},
    "ListNode": frozenset({"builtins.list"}),
    "NdArrayNode": NUMPY | {"numpy.ndarray"},
    "ObjectNode": frozenset(),
    "RandomStateNode": frozenset({"numpy.random.mtrand.RandomState"}),
    "SetNode": frozenset({"builtins.set"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "TypeNode": PLAIN | NUMPY,
}
# An archive that unpacks to more than this many bytes, and this many times its size, is a bomb.
MOST_BYTES, MOST_RATIO = 2**30, 100

# What zipfile, json, NumPy, skops and our own types raise for files that are damaged.
DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


def trusted_types() -> list[str]:
    """Names of the types of skebm that its models consist of, ``module.class``, sorted.

    These, containers, arrays and the estimators of scikit-learn are all that :func:`load` accepts.
    Each name is that of a class which is defined in the module that it names, and not of something
    that the module imports.

    Returns
    -------
    list of str

    Examples
    --------
    >>> import skebm
    >>> names = skebm.trusted_types()
    >>> "skebm.estimators.rbm.estimator.RBMEstimator" in names
    True
    """
    return sorted(_types())


@functools.cache
def _types() -> dict[str, type]:
    """The types of models by name."""
    for module in pkgutil.walk_packages(skebm.__path__, "skebm."):
        importlib.import_module(module.name)
    found = {}
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith(tuple(f"{place}." for place in PLACES)):
            continue
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name and _is_part(value):
                found[f"{name}.{value.__name__}"] = value
    return found


def _is_part(cls: type) -> bool:
    # Named tuples are plain values; what they hold are nodes of their own.
    record = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return record or issubclass(cls, KINDS + OTHERS)


def load(file: Any) -> Any:
    """Load a model that was stored by ``skops.io.dump``, also one from somebody else.

    No code of the file is executed: everything that it asks to be constructed is compared with
    :func:`trusted_types`, plain containers, arrays of numbers, and the estimators of scikit-learn
    that skops trusts, before the first object is made. A model with an object of another type, such
    as a network of your own, is refused; read the source of that type, and load the file by
    ``skops.io.load``, which takes a list of types.

    What a model predicts is beyond any check: it is what whoever made the file wanted.

    Parameters
    ----------
    file : path-like, bytes or binary file
        Of skops 0.13 or newer, which has to be installed (``pip install skops``).

    Returns
    -------
    object
        The model, which returns the same numbers as the stored one.

    Raises
    ------
    ValueError
        If the file is damaged, is none of skops, or holds a type that is not trusted. The message
        names the file and the types.

    Examples
    --------
    >>> import numpy as np
    >>> import skebm, skops.io
    >>> X = (np.random.default_rng(0).random((100, 4)) < 0.3).astype(float)
    >>> rbm = skebm.RBMEstimator(2, n_iter=5, random_state=0).fit(X)
    >>> again = skebm.load(skops.io.dumps(rbm))
    >>> bool((again.score_samples(X) == rbm.score_samples(X)).all())
    True
    """
    try:
        import skops.io
        from skops.io.exceptions import UntrustedTypesFoundException
    except ImportError as error:
        raise ImportError("skebm.load reads files of skops: pip install 'skops>=0.13'.") from error
    name, data = _content(file)
    refused = _refused(name, data)
    if refused:
        raise ValueError(_not_ours(name, sorted(refused)))
    try:
        return skops.io.loads(data, trusted=trusted_types())
    except UntrustedTypesFoundException as error:
        raise ValueError(_not_ours(name, sorted(error.unsafe_types))) from error
    except DAMAGED as error:
        raise ValueError(_damaged(name, error)) from error


def _content(file: Any) -> tuple[str, bytes]:
    """How messages call a file, and its bytes: what is checked must be what is loaded."""
    if isinstance(file, bytes | bytearray | memoryview):
        return "The file", bytes(file)
    if hasattr(file, "read"):
        return f"The file {getattr(file, 'name', '')}".rstrip(), file.read()
    return f"The file {file}", Path(file).read_bytes()


def _damaged(name: str, error: BaseException) -> str:
    return f"{name} is not a model that skops stored, or it is damaged: {error}"


def _not_ours(name: str, refused: list[str]) -> str:
    return (
        f"{name} holds what is no part of a model of skebm: {', '.join(refused)}. Refuse it, or "
        "read the source of these types, and load it by skops.io.load with a list of types."
    )


class Node(NamedTuple):
    """A node of a schema: which kind of constructor, and what it constructs."""

    loader: Any
    type: str

    @classmethod
    def of(cls, state: dict[str, Any]) -> Node:
        """The node that a part of a schema describes."""
        return cls(state.get("__loader__"), f"{state.get('__module__')}.{state.get('__class__')}")

    def accepted(self) -> bool:
        """Whether this node may be constructed."""
        allowed = NODES.get(self.loader) if isinstance(self.loader, str) else None
        if allowed is None:
            return False
        if self.type in allowed:
            return True
        ours = _types().get(self.type)
        if self.loader == "TupleNode":
            return ours is not None and issubclass(ours, tuple)
        if self.loader == "ObjectNode":  # skops knows which of scikit-learn are estimators
            return self.type.startswith("sklearn.") or (
                ours is not None and not issubclass(ours, tuple)
            )
        return False


def _refused(name: str, data: bytes) -> set[str]:
    """What a file asks to be constructed and is not accepted. Nothing of it is constructed."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = Counter(archive.namelist())
            if max(names.values(), default=0) > 1:
                raise ValueError("two members have one name")
            size = sum(member.file_size for member in archive.infolist())
            if size > max(MOST_BYTES, MOST_RATIO * len(data)):
                raise ValueError(f"{len(data)} bytes unpack to {size}")
            schema = json.loads(archive.read("schema.json"))
        if not isinstance(schema, dict):
            raise ValueError("its schema is no object")
        return set(_violations(schema))
    except DAMAGED as error:
        raise ValueError(_damaged(name, error)) from error


def _violations(root: Any) -> Iterator[str]:
    """Types of nodes that are not accepted, anywhere in a schema.

    skops constructs the first node of a number wherever this number occurs, so that what is in its
    place must be of its kind.
    """
    waiting: list[Any] = [root]
    first: dict[Any, tuple[Node, bool]] = {}
    keys = set()  # lists of the types of keys, by identity
    while waiting:
        state = waiting.pop()
        if isinstance(state, list):
            waiting += state
        if not isinstance(state, dict):
            continue
        waiting += state.values()
        if "__loader__" not in state:
            continue
        node, number = Node.of(state), state.get("__id__")
        if node.loader == "CachedNode":  # a reference to a node that is looked at where it is
            continue
        if not node.accepted():
            yield node.type
        if node.loader == "DictNode":
            keys.add(id(state.get("key_types")))
            if not _has_plain_keys(state):
                yield f"keys of {node.type}"
        kind = node, id(state) in keys
        if number is not None and first.setdefault(number, kind) != kind:
            yield f"{node.type} in the place of another object"


def _has_plain_keys(state: dict[str, Any]) -> bool:
    """Whether the keys of a dict are made by plain types, which skops calls with a text each."""
    keys = state.get("key_types")
    if not isinstance(keys, dict) or keys.get("__loader__") != "ListNode":
        return False
    content = keys.get("content")
    return isinstance(content, list) and all(
        isinstance(key, dict) and key.get("__loader__") == "TypeNode" for key in content
    )
