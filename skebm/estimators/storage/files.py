"""Models that others have stored by skops, read without executing anything that is in the file.

skops resolves names of a file by ``getattr`` on modules, so that a name such as "skebm.x.os.system"
begins with skebm and is none of its classes. A file is therefore held against a list of classes
and of kinds of nodes before skops sees it, and nothing is constructed unless all of it is known.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer, get_scorer_names

PARTS = ("base", "distributions", "energies", "estimators", "partition", "samplers", "training")
# Classes by which the parts of a model are recognised; what derives from them is trusted.
FAMILIES = (
    "skebm.base.domains.Domain",
    "skebm.distributions.base.Distribution",
    "skebm.estimators.boltzmann.hopfield.Memory",
    "skebm.estimators.neural.family.Rule",
    "skebm.estimators.rbm.hidden.HiddenUnits",
    "skebm.estimators.recipe.Family",
    "skebm.estimators.tables.blocks.ColumnBlock",
    "skebm.estimators.tables.table.Layout",
    "skebm.estimators.tables.table.Table",
)
# Values that models hold and that belong to no family.
VALUES = (
    "skebm._validation.MinMax",
    "skebm.base.partition.LogPartition",
    "skebm.distributions.independent.Levels",
    "skebm.distributions.transformed.regression.RegressionMixture",
    "skebm.energies.deep.Layers",
    "skebm.energies.telescope.Waymarks",
    "skebm.energies.whitening.LowRankWhitening",
    "skebm.energies.whitening.Whitening",
    "skebm.estimators.base.LogZ",
    "skebm.estimators.boltzmann.errors.CouplingErrors",
    "skebm.estimators.boltzmann.structure.PathResult",
    "skebm.estimators.neural.conditional.estimator.ReferenceRows",
    "skebm.estimators.neural.conditional.normalisers.Annealing",
    "skebm.estimators.neural.objectives.noise_contrastive.Path",
    "skebm.estimators.outlier.bulk.Bulk",
    "skebm.estimators.outlier.columns.Column",
    "skebm.estimators.outlier.ensembles.ranks.RankCalibration",
    "skebm.estimators.outlier.ensembles.ranks.ScoreTail",
    "skebm.estimators.outlier.streams.drift.PlainColumns",
    "skebm.estimators.outlier.streams.evidence.Evidence",
    "skebm.estimators.outlier.streams.monitor.StreamMonitor",
    "skebm.estimators.outlier.streams.monitor._State",
    "skebm.estimators.outlier.streams.ranks.SortedScores",
    "skebm.estimators.outlier.surprise.Event",
    "skebm.estimators.outlier.surprise.NearestRow",
    "skebm.estimators.outlier.surprise.RankTail",
    "skebm.estimators.outlier.surprise.UnseenValues",
    "skebm.estimators.outlier.thresholds.ClassThresholds",
    "skebm.estimators.outlier.thresholds.ConformalThreshold",
    "skebm.estimators.outlier.thresholds.QuantileThreshold",
    "skebm.estimators.outlier.trimming.ContaminatedShare",
    "skebm.estimators.rbm.family.GibbsChains",
    "skebm.estimators.recipe.Recipe",
    "skebm.estimators.sequences.series.forecast.Forecast",
    "skebm.estimators.sequences.series.stamps.Grid",
    "skebm.estimators.tables.bases.Bases",
    "skebm.estimators.tables.columns.Coding",
    "skebm.estimators.tables.encoding.dates.Times",
    "skebm.estimators.tables.encoding.levels.LevelCodes",
    "skebm.estimators.tables.encoding.notes.Note",
    "skebm.estimators.tables.encoding.numbers.Deviation",
    "skebm.estimators.tables.encoding.numbers.Feature",
    "skebm.estimators.tables.regression.Ridge",
    "skebm.estimators.tables.units.Units",
    "skebm.partition.choice.Choice",
    "skebm.partition.given.LogZGiven",
    "skebm.training.plan.TrainingPlan",
    "skebm.training.resume.Resume",  # which has lost its path
)
# What searches hold as `scoring`, beside the score functions of scikit-learn that have a name.
SCORES = {
    "skebm.metrics.scorers.converged_score",
    "skebm.metrics.scorers.hyvarinen_score",
    "skebm.metrics.scorers.log_likelihood_score",
    "skebm.metrics.scorers.pessimistic_log_likelihood_score",
    "skebm.metrics.scorers.pseudo_log_likelihood_score",
}
# Classes of scikit-learn that skops leaves to its callers, and that searches hold: how rows are
# divided, and scores with the names of methods that they ask.
SEARCHES = {
    *(f"sklearn.metrics._scorer._{name}" for name in ("MultimetricScorer", "PassthroughScorer")),
    "sklearn.metrics._scorer._Scorer",
    *(
        f"sklearn.model_selection._split.{name}"
        for name in (
            "GroupKFold",
            "GroupShuffleSplit",
            "KFold",
            "LeaveOneOut",
            "PredefinedSplit",
            "ShuffleSplit",
            "StratifiedGroupKFold",
            "StratifiedKFold",
            "StratifiedShuffleSplit",
            "TimeSeriesSplit",
        )
    ),
}
# What each kind of node may construct beside classes of skebm and scores. Other functions, methods,
# partial functions, operators and trees of scikit-learn are no part of our models.
PLAIN = {
    "DictNode": {"builtins.dict", "collections.OrderedDict"},
    "ListNode": {"builtins.list"},
    "SetNode": {"builtins.set"},
    "TupleNode": {"builtins.tuple"},
    "BytesNode": {"builtins.bytes"},
    "FunctionNode": set(),
    "MaskedArrayNode": {"numpy.ma.MaskedArray"},
    "JsonNode": {"builtins.str"},
    "SliceNode": {"builtins.slice"},
    "TypeNode": {f"builtins.{name}" for name in ("str", "int", "float", "bool")},
    "RandomStateNode": {"numpy.random.mtrand.RandomState"},
    "ConstructorFromReduceNode": {
        "datetime.date",
        "datetime.datetime",
        "datetime.timedelta",
        "pandas.Interval",
        "pandas._libs.interval.Interval",
    },
    "ObjectNode": set(),
}
# Attributes that name files, and by which a loaded object would write them; None in honest files.
NAMES_A_FILE = {"sklearn.": "memory", "skebm.training.resume.Resume": "path"}
ARRAYS = "NdArrayNode"
SCALARS = {
    f"numpy.{kind.__name__}" for kind in {*np.sctypeDict.values()} if not issubclass(kind, np.void)
} - {"numpy.object_"}
MEMBER = re.compile(r"[0-9a-f-]+\.(npy|bin)")
DEEPEST = 250  # nested nodes; the deepest of our models have about 30
# Bytes that a file may grow to when it is unpacked, whatever its size, and beyond that times it.
MOST_UNPACKED, MOST_TIMES = 2**27, 200
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    AttributeError,
    AssertionError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,  # RecursionError too
    TypeError,
    ValueError,
)


@functools.cache
def _names_of_trusted() -> frozenset[str]:
    package = importlib.import_module("skebm")
    families = tuple(_class_of(name) for name in FAMILIES)
    callbacks = importlib.import_module("skorch.callbacks").Callback
    found = {name for name in VALUES if _class_of(name)}
    for part in PARTS:
        inside = importlib.import_module(f"{package.__name__}.{part}")
        names = [inside.__name__]
        names += [m.name for m in pkgutil.walk_packages(inside.__path__, f"{inside.__name__}.")]
        for name in names:
            for cls in vars(importlib.import_module(name)).values():
                ours = isinstance(cls, type) and cls.__module__ == name
                if not ours or inspect.isabstract(cls) or issubclass(cls, callbacks):
                    continue
                net = hasattr(cls, "fit_loop")  # of skorch, whose hooks may be anything
                if issubclass(cls, families) or (issubclass(cls, BaseEstimator) and not net):
                    found.add(f"{name}.{cls.__qualname__}")
    return frozenset(name for name in found if _class_of(name) is not None)


@functools.cache
def _scores() -> frozenset[str]:
    """Functions that are scores: none does more than to compare arrays, or to ask a model."""
    functions = [get_scorer(name)._score_func for name in get_scorer_names()]
    return frozenset(SCORES | {f"{one.__module__}.{one.__qualname__}" for one in functions})


def _class_of(name: str) -> Any:
    """The class that is defined in a module under this very name; None for anything else."""
    module, _, own = name.rpartition(".")
    found = getattr(importlib.import_module(module), own, None)
    exact = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, own)
    return found if exact else None


def trusted_types() -> list[str]:
    """Names of the classes of skebm that a file may hold for :func:`load` to read it.

    They are the estimators, and the settings, tables, distributions and results that fitted ones
    hold. None of them executes code, opens a file or names one.

    Returns
    -------
    list of str
        Sorted, ``"module.class"``.

    Examples
    --------
    >>> import skebm
    >>> "skebm.estimators.rbm.estimator.RBMEstimator" in skebm.trusted_types()
    True
    >>> any(name.startswith("skebm.training.resume.os") for name in skebm.trusted_types())
    False
    """
    return sorted(_names_of_trusted())


def load(file: str | os.PathLike[str] | bytes | BinaryIO) -> Any:
    """Load a model that ``skops.io.dump`` has stored, also one from people you do not trust.

    Before anything is made of the file, all that is in it is checked: classes of
    :func:`trusted_types`, estimators of scikit-learn that skops trusts, searches and the scores of
    skebm and scikit-learn, arrays of numbers and text, and plain values are accepted; other
    functions, methods, trees of scikit-learn, classes of other packages and caches of pipelines
    (``memory=``) are not. So no code of the file is executed, and a loaded
    model holds no path. A hostile model may still be a bad one, or of a size that makes it slow.

    Parameters
    ----------
    file : path-like, bytes or file object opened for reading bytes

    Returns
    -------
    object
        The stored model.

    Raises
    ------
    ValueError
        If the file is damaged, is none of skops, or holds anything else; the error names the file
        and the types. Nothing has been constructed then. To load a model of a network, a callback
        or a function of your own, read its source, and call ``skops.io.load`` yourself.

    Examples
    --------
    >>> import numpy as np
    >>> import skops.io
    >>> import skebm
    >>> X = (np.random.default_rng(0).random((100, 6)) < 0.3).astype(float)
    >>> rbm = skebm.RBMEstimator(2, n_iter=5, random_state=0).fit(X)
    >>> again = skebm.load(skops.io.dumps(rbm))
    >>> bool((again.score_samples(X) == rbm.score_samples(X)).all())
    True
    """
    try:
        import skops.io as skops_io
    except ImportError as error:
        raise ImportError('skebm.load needs skops: pip install "skebm[share]".') from error
    name, data = _read_bytes(file)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_members(archive, len(data))
            schema = json.loads(archive.read("schema.json"))
            refused = sorted(_untrusted_types(schema, archive))
        if not refused:
            unknown = set(skops_io.get_untrusted_types(data=data))
            accepted = _names_of_trusted() | PLAIN["ConstructorFromReduceNode"] | _scores()
            refused = sorted(unknown - accepted - SEARCHES)
    except DAMAGED as error:
        raise ValueError(
            f"{name} is damaged, or is not a file that skops.io.dump wrote: {error}"
        ) from error
    if refused:
        raise ValueError(
            f"{name} holds {refused}, which models of skebm do not contain: nothing was loaded. "
            "If it is a part of your own, store the model without it (callbacks and networks in "
            "net_params, functions, memory of pipelines), or use skops.io.load."
        )
    try:
        return skops_io.loads(data, trusted=sorted(unknown))
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged: its parts do not fit together ({error}).") from error


def _read_bytes(file: Any) -> tuple[str, bytes]:
    """A name for messages and all bytes, read once, so that what is checked is what is loaded."""
    if isinstance(file, bytes | bytearray | memoryview):
        return "The file", bytes(file)
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as opened:
            return os.fspath(file), opened.read()
    if hasattr(file, "read"):
        content = file.read()
        if isinstance(content, bytes):
            return str(getattr(file, "name", "The file")), content
    raise TypeError(f"file must be a path, bytes or a file opened in mode 'rb', got {file!r:.100}.")


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    """`ValueError` for members that skops does not write, or that are larger than they may be."""
    members = archive.infolist()
    names = [member.filename for member in members]
    other = [name for name in names if name != "schema.json" and not MEMBER.fullmatch(name)]
    if other or len(set(names)) < len(names):
        raise ValueError(f"it has members {(other or names)[:3]}")
    unpacked, packed = (
        sum(getattr(member, which) for member in members)
        for which in ("file_size", "compress_size")
    )
    if packed > size or unpacked > max(MOST_UNPACKED, MOST_TIMES * size):
        raise ValueError(f"its {size:,} bytes would unpack to {unpacked:,}")


def _untrusted_types(schema: Any, archive: zipfile.ZipFile) -> set[str]:
    """What the nodes of a schema would construct that is not accepted."""
    found = {name for node in _nodes(schema) if (name := _what_is_refused(node, archive))}
    if not found:
        _check_references(schema, {}, 0)
    return found


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All dicts that may be nodes: those of skops are among them, whatever it makes of the rest."""
    left = [(schema, 0)]
    while left:
        tree, depth = left.pop()
        if depth > 3 * DEEPEST:
            raise ValueError("its nodes are nested too deeply")
        if isinstance(tree, dict):
            if "__loader__" in tree:
                yield tree
            elif isinstance(tree.get("__id__"), int):
                raise ValueError(f"a node says of what other node it is, {tree['__id__']}, alone")
            left += [(value, depth + 1) for value in tree.values()]
        elif isinstance(tree, list):
            left += [(value, depth + 1) for value in tree]


def _what_is_refused(node: dict[str, Any], archive: zipfile.ZipFile) -> str | None:
    """The name of what a node makes, if it is not accepted."""
    loader, name = node["__loader__"], f"{node['__module__']}.{node['__class__']}"
    if loader == ARRAYS:
        if node["type"] == "numpy":
            _check_array(archive, node["file"])
        return None if name in SCALARS | {"numpy.ndarray"} else name
    if loader not in PLAIN:
        return f"{name} ({loader})"
    if loader == "DictNode":
        _check_keys(node)
    if loader == "BytesNode" and not str(node["file"]).endswith(".bin"):
        raise ValueError(f"bytes are in {node['file']}")
    if loader == "FunctionNode" and "content" in node:  # of the first protocol, which names another
        raise ValueError(f"{name} stands for {node['content']}")
    if loader == "ObjectNode":
        return _what_is_refused_of_object(node, name)
    types = {"TypeNode": SCALARS, "TupleNode": _names_of_trusted(), "FunctionNode": _scores()}
    return None if name in PLAIN[loader] or name in types.get(loader, ()) else name


def _what_is_refused_of_object(node: dict[str, Any], name: str) -> str | None:
    """The name of a class that is not accepted, or has an attribute that names a file."""
    ours = name in _names_of_trusted()
    if not ours and not name.startswith("sklearn."):  # skops knows which of these are harmless
        return name
    state = node.get("content")
    if state is None:
        return None
    if state["__loader__"] != "DictNode":  # of which attributes could not be read
        raise ValueError(f"the attributes of {name} are a {state['__loader__']}")
    for start, attribute in NAMES_A_FILE.items():
        value = state["content"].get(attribute) if name.startswith(start) else None
        if value is not None and (value["__loader__"], value["content"]) != ("JsonNode", "null"):
            return f"{name} with {attribute}="
    return None


def _check_keys(node: dict[str, Any]) -> None:
    """`ValueError` where keys would be made by anything but plain types: skops calls it."""
    types = node["key_types"]
    nodes = types["content"]
    plain = types["__loader__"] == "ListNode" and all(
        one["__loader__"] == "TypeNode" for one in nodes
    )
    if not plain or len(nodes) != len(node["content"]):
        raise ValueError("keys of a dict are made by what is no type")


def _check_references(tree: Any, known: dict[int, bytes | None], depth: int) -> bytes:
    """A digest of a tree; `ValueError` where nodes of the same number differ.

    skops takes the first node of a number for all of them, so that another than the one which was
    checked would be constructed in its place.
    """
    if depth > DEEPEST:
        raise ValueError("its nodes are nested too deeply")
    if isinstance(tree, list):
        parts = [_check_references(value, known, depth + 1) for value in tree]
        return _digest(b"list", *parts)
    if not isinstance(tree, dict):
        return _digest(json.dumps(tree).encode())
    number = tree.get("__id__") if "__loader__" in tree else None
    if number is not None:
        if not isinstance(number, int):
            raise ValueError("its nodes have no numbers")
        if known.get(number, b"") is None:
            raise ValueError("a node contains itself")
        known.setdefault(number, None)
    unlike = {"__id__", "file"}  # arrays and bytes may be stored again under another name
    digest = _digest(
        *(
            part
            for key, value in tree.items()
            if number is None or key not in unlike
            for part in (_digest(key.encode()), _check_references(value, known, depth + 1))
        )
    )
    if number is not None and known[number] not in (None, digest):
        raise ValueError(f"two nodes that differ have the number {number}")
    if number is not None:
        known[number] = digest
    return digest


def _digest(*parts: bytes) -> bytes:
    """Of parts of any length, by their lengths and their bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(struct.pack("<q", len(part)) + part)
    return found.digest()


def _check_array(archive: zipfile.ZipFile, name: str) -> None:
    """`ValueError` for an array of objects, or one that is not as long as its header says."""
    info = archive.getinfo(name)
    with archive.open(info) as member:
        version = npy.read_magic(member)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{name} is an array of another version")
        shape, _, dtype = read(member)
        left = info.file_size - member.tell()
    n = 1
    for length in shape:
        n *= length
    if dtype.hasobject or n * max(dtype.itemsize, 1) != left:
        raise ValueError(f"{name} holds objects, or not as many numbers as it says")
