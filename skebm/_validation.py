"""Validation of input, seeds and devices.

The only module that imports private names of scikit-learn, for its exact error messages.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import date, timedelta
from numbers import Integral, Number
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import _fit_context
from sklearn.utils import _param_validation as constraints
from sklearn.utils import _safe_indexing as take_rows
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import HasMethods, Options, StrOptions
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.metaestimators import _BaseComposition as Composition
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    _check_y,
    check_consistent_length,
    check_is_fitted,
)
from sklearn.utils.validation import _check_method_params as take_fit_params
from sklearn.utils.validation import _num_samples as n_rows
from sklearn.utils.validation import validate_data as sklearn_validate_data

from skebm.base import DataWarning
from skebm.base.processes import as_task, warn

__all__ = [
    "DEVICE",
    "DTYPE",
    "N_JOBS",
    "Composition",
    "HasMethods",
    "Interval",
    "MinMax",
    "Options",
    "StrOptions",
    "advice_for",
    "as_numbers",
    "as_series_output",
    "boolean_columns",
    "check_columns",
    "check_constraints",
    "check_container",
    "check_is_fitted",
    "check_labels",
    "check_random_state",
    "check_target",
    "check_two_dimensions",
    "check_weight",
    "column_of",
    "column_ranges",
    "dense_columns",
    "draw_seed",
    "torch_dtype_of",
    "fit_context",
    "is_frame",
    "kind_of",
    "n_rows",
    "names_compared",
    "resolve_device",
    "set_seeds",
    "take_fit_params",
    "take_rows",
    "mask_as_missing",
    "validate_data",
    "warn",
    "warn_of_booleans",
]


def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[..., Any]:
    """A decorator of fits, by which parameters are validated and callbacks of scikit-learn told.

    Within one that builds aside, so that callbacks end with what they have begun, the same object.
    """
    within = _fit_context(prefer_skip_nested_validation=prefer_skip_nested_validation)
    return lambda fit: within(as_task(fit))


class Interval(constraints.Interval):
    """Numbers of an interval. True and False, which Python counts among the integers, are none."""

    def is_satisfied_by(self, val: Any) -> bool:
        """Whether a value is a number within the interval."""
        return not isinstance(val, bool | np.bool_) and bool(super().is_satisfied_by(val))


def check_constraints(kinds: dict[str, Any], params: dict[str, Any], owner: str) -> None:
    """Raise `InvalidParameterError` for values that are none of the kinds; `owner` has them."""
    constraints.validate_parameter_constraints(
        kinds, {name: params[name] for name in kinds}, caller_name=owner
    )


# Numbers of workers of joblib: those at the same time, or -1 for all, -2 for all but one.
N_JOBS = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]


def draw_seed(random_state: Any) -> int:
    """Draw an integer seed from a scikit-learn ``random_state``."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def set_seeds(model: Any, random: np.random.RandomState) -> None:
    """Seed every ``random_state`` of the model that is None."""
    unset = {
        name: draw_seed(random)
        for name, value in sorted(model.get_params().items(), key=lambda item: item[0])
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    model.set_params(**unset)


# What the parameters `device` and `dtype` may be, in every estimator.
DEVICE = [str, Interval(Integral, 0, None, closed="left")]
_DTYPES = {
    kind: name
    for name in ("float32", "float64")
    for kind in (getattr(np, name), np.dtype(name), getattr(torch, name))
}


class _Types(Options):
    """Types of NumPy and torch."""

    def __str__(self) -> str:
        return "the type of that name of NumPy or torch"


DTYPE = [StrOptions({"float32", "float64"}), _Types(object, set(_DTYPES))]


def torch_dtype_of(dtype: Any) -> torch.dtype:
    """The precision that a parameter `dtype` stands for, a name or a type of NumPy or torch."""
    found: torch.dtype = getattr(torch, dtype if isinstance(dtype, str) else _DTYPES[dtype])
    return found


def resolve_device(device: str | int) -> torch.device:
    """Turn ``"auto"``, ``"gpu"``, the number of a GPU or a device name into an available device."""
    name = f"cuda:{device}" if isinstance(device, Integral) else str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] == "gpu":
        name = name.replace("gpu", "cuda", 1)
    try:
        torch.Generator(torch.device(name))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).split(".")[0].splitlines()[0]
        if name.startswith("cuda") and not torch.cuda.is_available():
            reason = "torch finds no CUDA device"
        raise ValueError(
            f"device={device!r} cannot be used here ({reason}). "
            'Pass device="auto", "cpu", or one that torch sees on this machine.'
        ) from error
    return torch.empty(0, device=name).device  # with its index: "cuda" differs from "cuda:0"


_NAMES_COMPARED: ContextVar[bool] = ContextVar("names_compared", default=False)


@contextlib.contextmanager
def names_compared() -> Iterator[None]:
    """Arrays in the block are rows of a table whose names of columns were compared before."""
    token = _NAMES_COMPARED.set(True)
    try:
        yield
    finally:
        _NAMES_COMPARED.reset(token)


def check_container(X: Any) -> None:
    """Raise for rows that are not computed yet, of a graph of gradients, or no table.

    Nothing is computed or detached in silence: both may be mistakes. The first two are a
    `TypeError`, the others a `ValueError`: repeated names of columns, rows of several lengths, and
    columns that are named in other containers than frames.
    """
    if type(X).__name__ == "LazyFrame":
        raise TypeError("X is a LazyFrame, whose rows are not computed yet: pass X.collect().")
    check_tensor("X", X)
    if X is None or isinstance(X, str | bytes | Number):
        raise ValueError(f"X is {reprlib.repr(X)}, and no table: pass its rows and columns.")
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise ValueError(f"Complex data not supported. {REMEDIES['complex numbers']} of X.")
    is_dict = isinstance(X, dict) and not sp.issparse(X)  # sparse matrices by keys are, too
    if is_dict or getattr(getattr(X, "dtype", None), "names", None):
        what = "a dictionary" if is_dict else "an array of records"
        raise ValueError(f"X is {what} of columns: pass pandas.DataFrame(X).")
    if isinstance(X, list | tuple):
        _check_lengths(X)
    if hasattr(X, "iloc") and hasattr(X, "columns") and not X.columns.is_unique:
        name = X.columns[X.columns.duplicated()][0]
        n = int((X.columns == name).sum())
        raise ValueError(
            f"{name!r} is the name of {n} columns of X: rename them, as by X.columns = [...], or "
            "drop all but one."
        )
    if is_frame(X) and not X.shape[1]:  # of which scikit-learn says that there is no dtype
        raise ValueError(
            f"Found array with 0 feature(s) (shape={tuple(X.shape)}) while a minimum of 1 is "
            "required: X has no columns: pass at least one."
        )


def check_tensor(name: str, value: Any) -> None:
    """Raise `TypeError` for a tensor that NumPy does not take: with gradients, sparse or brief."""
    if not isinstance(value, torch.Tensor):
        return
    if value.requires_grad:
        raise TypeError(
            f"{name} is a tensor that requires gradients, which do not pass through an estimator: "
            f"pass {name}.detach()."
        )
    if value.layout != torch.strided:
        raise TypeError(f"{name} is a sparse tensor: pass {name}.to_dense().")
    if value.dtype == torch.bfloat16:
        raise TypeError(f"{name} is a tensor of bfloat16, which NumPy lacks: pass {name}.float().")


def _check_lengths(X: list[Any] | tuple[Any, ...]) -> None:
    """Raise `ValueError` for a list of rows whose numbers of columns differ."""
    if not all(isinstance(row, list | tuple) for row in X):
        return
    lengths = [len(row) for row in X]
    if len(set(lengths)) > 1 and not any(np.ndim(row[0]) for row in X if len(row)):
        other = next(i for i, length in enumerate(lengths) if length != lengths[0])
        raise ValueError(
            f"Row 0 of X has {lengths[0]} columns, and row {other} has {lengths[other]}: pass rows "
            "of one length, with nan for what is missing."
        )


def validate_data(estimator: Any, X: Any, **kwargs: Any) -> Any:
    """``validate_data`` of scikit-learn, with errors that say what takes missing entries and text.

    Parameters
    ----------
    estimator : estimator
    X : array-like
    **kwargs : dict
        Further arguments of scikit-learn's function.
    """
    check_container(X)
    _refuse_series(X)
    X, name = mask_as_missing(X), type(estimator).__name__
    X = dense_columns(X, keep_bits=bool(kwargs.get("accept_sparse")))
    check_kinds(X, name)
    try:
        if _NAMES_COMPARED.get() and isinstance(X, np.ndarray) and not kwargs.get("reset", True):
            kwargs.pop("reset")
            X = check_array(X, estimator=estimator, input_name="X", **kwargs)
            _check_n_features(estimator, X, reset=False)
            return X
        return sklearn_validate_data(estimator, X, **kwargs)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Input X contains NaN"):
            new = not kwargs.get("reset", True) and hasattr(estimator, "log_marginal")
            takes = [one for one in ("predict_proba", "score_samples") if hasattr(estimator, one)]
            raise ValueError(
                f"Input X contains NaN{_in_column(X)}, and {name} takes complete rows. Fill "
                f"missing entries in before, as by make_pipeline(TableEncoder(), {name}()) or the "
                "imputers of scikit-learn, or by impute of RBMEstimator, which can be fitted to "
                "such rows."
                + (f" Of new rows they may be missing in {' and '.join(takes)}." if new else "")
            ) from error
        if reason.startswith("Input X contains infinity"):
            where = _in_infinite_column(X)
            raise ValueError(f"{reason} It is{where}." if where else reason) from error
        if reason.startswith(("could not convert string to float", "dtype='numeric'")):
            if reason.startswith("dtype"):
                reason = "X holds text"
            raise ValueError(
                f"{reason}. {name} takes numbers. Encode text and categories before, as by "
                f"make_pipeline(TableEncoder(), {name}()), or use an estimator that takes them, "
                "such as RBMEstimator."
            ) from error
        if reason.startswith("Expected 2D array"):
            raise _not_two_dimensions(X) from error
        if "Found array with dim" in reason:
            images = getattr(estimator, "_takes_images", False)
            or_conv = ", or pass network=Conv() of skebm.energies, which takes images (n, C, H, W)"
            raise ValueError(
                f"{reason} X has the shape {np.shape(X)}: make each row flat, X.reshape(len(X), -1)"
                f"{or_conv if images else ''}."
            ) from error
        raise


def mask_as_missing(X: Any) -> Any:
    """X itself, or of a masked array of NumPy an array whose masked entries are missing.

    They are nan, and None among texts and objects.
    """
    if not isinstance(X, np.ma.MaskedArray):
        return X
    masked: Any = X
    if X.dtype.kind in "biuf":
        kind = X.dtype if X.dtype.kind == "f" else np.float64
        return masked.astype(kind).filled(np.nan)
    if X.dtype.kind in "Mm":
        return masked.filled(np.array("NaT", dtype=X.dtype))
    return masked.astype(object).filled(None) if X.dtype.kind in "OUS" else X.data


def dense_columns(X: Any, *, keep_bits: bool = False) -> Any:
    """X itself, or of a frame of pandas with sparse columns one of dense columns.

    Missing entries among objects, such as pandas.NA, which is no number, become nan.
    With `keep_bits`, a frame whose columns are all sparse ones of bits stays as it is: models of
    bits take sparse rows, which scikit-learn makes of it.
    """
    if not hasattr(X, "iloc") or not is_frame(X):
        return X
    sparse = [j for j, dtype in enumerate(X.dtypes) if hasattr(dtype, "fill_value")]
    objects = [j for j, dtype in enumerate(X.dtypes) if str(dtype) == "object"]
    holes = [j for j in objects if X.iloc[:, j].isna().any()]
    if not sparse and not holes:
        return X
    if keep_bits and len(sparse) == X.shape[1] and _are_sparse_bits(X):
        import pandas as pd

        return X.astype(pd.SparseDtype(np.float64, 0.0))  # scikit-learn makes objects of booleans
    X = X.copy(deep=False)
    for j in holes:
        X.isetitem(j, X.iloc[:, j].where(X.iloc[:, j].notna(), np.nan))
    for j in sparse:
        X.isetitem(j, X.iloc[:, j].sparse.to_dense())
    return X


def _are_sparse_bits(X: Any) -> bool:
    """Whether all values of sparse columns are 0 and 1, and 0 is left out."""
    columns = [X.iloc[:, j] for j in range(X.shape[1])]
    return all(
        column.dtype.fill_value == 0 and np.isin(column.sparse.sp_values, (0, 1)).all()
        for column in columns
    )


def is_frame(X: Any) -> bool:
    """Whether X is a data frame, of pandas or polars."""
    return (hasattr(X, "iloc") or hasattr(X, "with_columns")) and len(X.shape) == 2


def no_column(argument: str, name: Any, names: Iterable[Any] | None) -> ValueError:
    """The error of an argument that names a column which X lacks; it lists up to ten it has."""
    if names is None:
        return ValueError(f"{argument} names {name!r}, but X has no names: use numbers of columns.")
    known = [repr(one) for one in names]
    said = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return ValueError(f"{argument} names {name!r}, which is no column of X: use one of {said}.")


def as_series_output(estimator: Any, X: Any, rows: np.ndarray) -> Any:
    """Rows for the values of a Series as `set_output` asks; for pandas with the index of X."""
    config = _get_output_config("transform", estimator)
    if config["dense"] != "pandas" or not hasattr(X, "iloc"):
        return rows
    import pandas as pd

    return pd.DataFrame(rows, index=X.index, columns=estimator.get_feature_names_out())


def column_of(X: Any, j: int) -> Any:
    """Column `j`: a Series of a frame, a view of an array."""
    if not is_frame(X):
        return X[:, j]
    return X.iloc[:, j] if hasattr(X, "iloc") else X.to_series(j)


# Types of columns that are no numbers, by the beginnings of their names in pandas and polars.
ENCODED = "Encode text, categories and dates before, as by make_pipeline(TableEncoder(), {name}())"
LISTS = "lists or other objects"
KINDS = {
    ("list", "large_list", "array", "struct", "binary", "map"): LISTS,  # before "str" of text
    ("datetime", "date", "timestamp"): "dates",
    ("timedelta", "duration"): "durations",
    ("period",): "periods",
    ("time",): "times of day",
    ("interval",): "intervals",
    ("categor", "enum", "dictionary"): "categories",
    ("str", "utf8", "large_string"): "text",
    ("complex",): "complex numbers",
}
# Types of arrays that hold no numbers in any column.
WHOLE_ARRAYS = {"M": "dates", "m": "durations"}
REMEDIES = {
    "complex numbers": "Pass their real and imaginary parts as two columns",
    LISTS: "Make columns of their entries first, or drop it",
    "times of day": "Pass them as numbers, such as hours",
}


def kind_of(column: Any) -> str | None:
    """What a column of a frame or of objects holds that is no number; None for numbers and bits."""
    dtype = str(column.dtype).lower()
    for beginnings, what in KINDS.items():
        if dtype.startswith(beginnings):
            return what
    if dtype != "object":
        return None
    found = None
    for value in column.to_list() if hasattr(column, "to_list") else column.tolist():
        if _is_missing(value):
            continue
        if isinstance(value, complex | np.complexfloating):
            return "complex numbers"
        if isinstance(value, str):
            return "text"
        if isinstance(value, date | np.datetime64):
            found = "dates"  # unless there is text, too
        elif isinstance(value, timedelta | np.timedelta64):
            found = "durations"
        elif not isinstance(value, Number | np.bool_):
            return LISTS
    return found


def advice_for(what: str, name: str) -> str:
    """What to do about a column that holds `what`, for an estimator of that name."""
    if what in REMEDIES:
        return f"{REMEDIES[what]}."
    if name == "TableEncoder":
        return "List it in categorical_features, or drop it."
    encoded = ENCODED.format(name=name)
    if what not in ("text", "categories", "intervals"):
        return f"{encoded}."
    return f"{encoded}, or use an estimator that takes categories, such as RBMEstimator."


def check_has_rows(X: Any, estimator: Any = None) -> None:
    """Raise scikit-learn's `ValueError` for a frame without rows, whose columns say nothing."""
    if is_frame(X) and X.shape[0] == 0 < X.shape[1]:
        by = "" if estimator is None else f" by {type(estimator).__name__}"
        raise ValueError(
            f"Found array with 0 sample(s) (shape={tuple(X.shape)}) while a minimum of 1 is "
            f"required{by}."
        )


def check_kinds(X: Any, name: str) -> None:
    """Raise `ValueError` that names a column of a table that holds no numbers, and the remedy."""
    check_has_rows(X)
    if isinstance(X, np.ndarray) and X.dtype.kind in WHOLE_ARRAYS:
        what = WHOLE_ARRAYS[X.dtype.kind]
        raise ValueError(
            f"X holds {what} in all columns, and {name} takes numbers. {advice_for(what, name)}"
        )
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype == object:
        _check_objects(X, name)
    if not is_frame(X):
        return
    for j, label in enumerate(X.columns):
        found = kind_of(column_of(X, j))
        if found is not None:
            raise ValueError(
                f"Column {str(label)!r} holds {found}, and {name} takes numbers: could not convert "
                f"{'string' if found == 'text' else 'them'} to float. {advice_for(found, name)}"
            )


def _check_objects(X: np.ndarray, name: str) -> None:
    """Raise for a column of an array of objects that holds neither numbers nor text.

    Text may be of numbers, and is left to scikit-learn. A `TypeError` for lists, as that has it.
    """
    for j in range(X.shape[1]):
        found = kind_of(X[:, j])
        if found not in (None, "text"):
            is_list = found == LISTS
            why = ": the argument must be a string or a number" if is_list else ""
            raise (TypeError if is_list else ValueError)(
                f"Column {j} of X holds {found}, and {name} takes numbers{why}. "
                f"{advice_for(found, name)}"
            )


def _in_infinite_column(X: Any) -> str:
    """Name of the first column of a frame that holds an infinite number, for a message."""
    for j, name in enumerate(getattr(X, "columns", ())):
        column = np.asarray(column_of(X, j))
        if column.dtype.kind == "f" and np.isinf(column).any():
            return f" in column {str(name)!r}"
    return ""


def _in_column(X: Any) -> str:
    """Name of the first column of a frame of numbers with missing entries, for a message."""
    if not hasattr(X, "columns"):
        return ""
    for j, name in enumerate(X.columns):
        column = column_of(X, j)
        if hasattr(X, "iloc"):
            missing = column.isna().any()
        else:
            missing = column.has_nulls() or column.dtype.is_float() and column.is_nan().any()
        if missing:
            return f" in column {str(name)!r}"
    return ""


def boolean_columns(X: Any) -> list[str]:
    """Names of the columns of a frame that hold booleans; none of other tables."""
    check_container(X)
    if not is_frame(X):
        return []
    dtypes = [str(getattr(dtype, "subtype", dtype)).lower() for dtype in X.dtypes]  # of sparse ones
    pairs = zip(X.columns, dtypes, strict=True)
    return [str(name) for name, dtype in pairs if dtype.startswith("bool")]


def holds_only_numbers(X: Any) -> bool:
    """Whether no column of a frame has a type other than numbers; true for other tables."""
    if not is_frame(X):
        return True
    if hasattr(X, "iloc"):
        return all(getattr(dtype, "kind", "O") in "iuf" for dtype in X.dtypes)
    return all(dtype.is_numeric() for dtype in X.dtypes)


def warn_of_booleans(estimator: Any, X: Any, conditions: Iterable[int] = ()) -> None:
    """Warn of columns of booleans of a frame, where an estimator takes all columns as numbers.

    Columns that rows are given, by their numbers, may be numbers 0 and 1.
    """
    names = boolean_columns(X)
    if names:
        given = {str(X.columns[j]) for j in conditions}
        names = [name for name in names if name not in given]
    if names:
        shown = ", ".join(map(repr, names[:5])) + (" and others" if len(names) > 5 else "")
        warn(
            f"Columns {shown} hold booleans, which {type(estimator).__name__} takes as real "
            "numbers 0 and 1. Drop them, or use RBMEstimator or ContrastiveDivergenceDensity, for "
            "which they are bits.",
            DataWarning,
        )


def check_columns(estimator: Any, X: Any, *, reset: bool, table: bool = True) -> None:
    """Compare number and names of columns with those of `fit`, or with `reset` store them.

    ``validate_data(skip_check_array=True)`` without its tags, whose construction takes longer than
    a small density needs for a thousand rows. Values are not checked. X may be other than a table,
    such as a list of texts, without `table`.
    """
    check_container(X)
    if table:
        check_two_dimensions(X)
    if not reset and _same_columns(estimator, X):
        return
    if reset or not _NAMES_COMPARED.get():
        _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)


def check_two_dimensions(X: Any) -> None:
    """Raise a `ValueError` for a Series, a row or a list where a table is expected."""
    _refuse_series(X)
    if hasattr(X, "columns") and len(getattr(X, "shape", (0, 0))) == 2 or sp.issparse(X):
        return
    ndim = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
    if ndim < 2:
        raise _not_two_dimensions(X)


def _not_two_dimensions(X: Any) -> ValueError:
    """The error of a row or a column where a table is expected."""
    shape = np.shape(X)
    return ValueError(
        f"Expected 2D array, got {len(shape)}D array instead: X has the shape {shape}. Reshape "
        "your data, by X.reshape(-1, 1) if it is a column, X.reshape(1, -1) if it is a row."
    )


def _refuse_series(X: Any) -> None:
    """Raise `ValueError` for a Series, of pandas or polars, where a table is expected."""
    if hasattr(X, "to_frame") and len(getattr(X, "shape", ())) == 1:
        raise ValueError(
            "Expected a 2-dimensional container, got a Series: pass X.to_frame() if it is a "
            "column, X.to_frame().T if it is a row, or, if it is a series in time, make rows of "
            "it, as by make_pipeline(Windows(), EnergyOutlierDetector())."
        )


def _same_columns(estimator: Any, X: Any) -> bool:
    """A fast sufficient check that the columns are those of `fit`; False decides nothing."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return type(X) is np.ndarray and X.shape[1] == getattr(estimator, "n_features_in_", None)
    return hasattr(X, "columns") and list(X.columns) == names.tolist()


def as_numbers(name: str, value: Any) -> np.ndarray:
    """An argument as an array of float64; raises `ValueError` where it holds no numbers."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers only, got {reprlib.repr(value)}.") from error


# Distance from a whole multiple of the smallest weight up to which a weight is one, and the least
# multiple that is none.
WHOLE, MOST_COUNTS = 1e-9, 1e6


def check_weight(sample_weight: Any, X: Any) -> np.ndarray | None:
    """Weights (n,) on a scale of their own, whatever that of the given ones; None if all are equal.

    Weights that are whole multiples of the smallest positive one count rows: the smallest is 1, and
    a row of weight 2 is two rows. Others are the importance of rows, and their mean is 1 where they
    are positive. `ValueError` unless they are finite, non-negative and not all zero.
    """
    if sample_weight is None:
        return None
    _refuse_mask("sample_weight", sample_weight)
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():  # older versions of scikit-learn do not check this
        raise ValueError("Sample weights must contain at least one non-zero number.")
    weight = weight / weight.max()
    positive = weight > 0
    if positive.all() and np.ptp(weight) == 0:
        return None
    with np.errstate(over="ignore"):
        count = weight / weight[positive].min()
    whole = np.rint(count)
    if count.max() < MOST_COUNTS and np.abs(count - whole).max() < WHOLE:
        return np.asarray(whole)
    return np.asarray(weight / weight[positive].mean())


def check_labels(estimator: Any, X: Any, y: Any) -> np.ndarray:
    """Validate labels: one per row, one-dimensional, none missing."""
    if y is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None."
        )
    check_target(y)
    try:
        labels: np.ndarray = _check_y(y, multi_output=False, y_numeric=False, estimator=estimator)
    except ValueError as error:
        if "contains NaN" in str(error):
            raise _without_label(y) from error
        raise
    check_consistent_length(X, labels)
    if labels.dtype == object and any(label is None for label in labels.tolist()):
        raise _without_label(labels)
    return labels


def check_target(y: Any, *, of_numbers: bool = False) -> None:
    """Raise for a target with masked entries, complex numbers, or gradients.

    With `of_numbers`, also for dates and durations, which would become numbers of a unit that
    depends on their type. A `TypeError` for tensors, `ValueError` for the others.
    """
    check_tensor("y", y)
    _refuse_mask("y", y)
    what = kind_of(y) if hasattr(y, "dtype") else None
    if what == "complex numbers" or of_numbers and what in ("dates", "durations"):
        days = "days, as by (y - y.min()) / numpy.timedelta64(1, 'D')"
        remedy = (
            "their real or imaginary parts" if what == "complex numbers" else f"numbers of {days}"
        )
        raise ValueError(f"y holds {what}: pass {remedy}.")


def _without_label(y: Any) -> ValueError:
    """The error of labels of which one is missing."""
    values = y.to_list() if hasattr(y, "to_list") else np.asarray(y).ravel().tolist()
    row = next((i for i, value in enumerate(values) if _is_missing(value) or value != value), None)
    where = "" if row is None else f": row {row} has no label. Drop such rows"
    return ValueError(f"Input y contains NaN{where}.")


def _is_missing(value: Any) -> bool:
    """Whether a value is None, or a missing one of pandas."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _refuse_mask(name: str, values: Any) -> None:
    """Raise `ValueError` for masked entries, which NumPy would take as known."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} has masked entries: drop these rows.")


class MinMax(NamedTuple):
    """Min-max scaling of the columns with values outside [0, 1], clipped to their range."""

    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def fit(cls, low: np.ndarray, high: np.ndarray) -> MinMax:
        """Scale the columns whose range is not within [0, 1]; a constant column maps to 0."""
        columns = np.flatnonzero((low < 0) | (high > 1))
        scaling = cls(columns, low[columns].astype(float), high[columns].astype(float))
        with np.errstate(over="ignore"):
            overflows = ~np.isfinite(scaling.high - scaling.low)
        if overflows.any():
            raise ValueError(
                f"Columns {columns[overflows].tolist()} have ranges that overflow: divide them by "
                "their largest absolute value first."
            )
        return scaling

    @property
    def width(self) -> np.ndarray:
        """Width of each scaled column's range (k,), 1 where it is constant."""
        return np.where(self.high > self.low, self.high - self.low, 1.0)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Dense rows (n, d) scaled and clipped to [0, 1], in float64; x itself if it is."""
        if not len(self.columns) and x.size and x.min() >= 0 and x.max() <= 1:
            return x
        if len(self.columns):
            x = x.copy()
            clipped = np.clip(x[:, self.columns].astype(float), self.low, self.high)
            x[:, self.columns] = (clipped - self.low) / self.width
        return np.clip(x, 0, 1)

    def outside(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Columns with values outside the range seen in `fit`, or outside [0, 1] if not scaled."""
        lower, upper = np.zeros(len(low)), np.ones(len(low))
        lower[self.columns], upper[self.columns] = self.low, self.high
        # A tolerance for the rounding of float32.
        tolerance = 1e-6 * np.maximum(np.abs(lower), np.abs(upper))
        return np.flatnonzero((low < lower - tolerance) | (high > upper + tolerance))

    def invert(self, x: np.ndarray) -> np.ndarray:
        """Transform back to the units of the data; a constant column has its one value."""
        if len(self.columns):
            x = x.copy()
            x[:, self.columns] = x[:, self.columns] * (self.high - self.low) + self.low
        return x


def column_ranges(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of each column of an array, map or CSR matrix, ignoring NaN."""
    if hasattr(X, "ranges"):  # a map, which is read in blocks
        return X.ranges
    if sp.issparse(X):
        return X.nanmin(axis=0).toarray().ravel(), X.nanmax(axis=0).toarray().ravel()
    # fmin and fmax ignore NaN, without a warning for columns that are all NaN.
    return np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)


# ------------------------------------------------------------------------------
# Copies of rows
# ------------------------------------------------------------------------------

# Copies of a row, relative to the rarest ones, beyond which rows recur for another reason.
MOST_COPIES = 5
# Odd constants of the finaliser of SplitMix64.
STEP, MIX_ONE, MIX_TWO = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


def distinct_numbers_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the first of each set of equal rows, ascending, and for each row which set it is.

    Equality is that of numbers: 0.0 and -0.0 are equal, and so are missing entries (NaN). Rows are
    sorted by a hash of 64 bits, and rows of equal hash are compared with each other.

    Parameters
    ----------
    X : array of shape (n, ...)
        Numbers or bools.

    Returns
    -------
    first : ndarray of shape (n_distinct,)
    member : ndarray of shape (n,)
        ``X[first][member]`` equals X.
    """
    rows = np.asarray(X)
    rows = rows.reshape(len(rows), -1)
    code = np.zeros(len(rows), dtype=np.uint64)
    for start in range(0, rows.shape[1], 8):  # as many numbers as a line of the cache has
        for column in np.ascontiguousarray(rows[:, start : start + 8].T):
            code = _next_hash(code, _bits(column))
    first, member = _of_keys(code)
    if len(first) == len(rows) or _same_numbers(rows, rows[first][member]):
        return first, member
    return _by_columns(rows)  # two rows of one hash: compare all columns


def distinct_rows(
    X: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The distinct rows of X in the order of the table, and the sums of their weights.

    Without weights, and where all rows occur equally often, the weights are None.
    """
    first, member = distinct_numbers_of(X)
    if len(first) == len(X):
        return X, weight
    total = np.bincount(member, weights=weight)
    return X[first], None if weight is None and np.ptp(total) == 0 else total.astype(float)


def distinct_pairs(
    X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Distinct pairs of rows and targets, and the sums of their weights, as in a table of numbers.

    Rows that occur very often are not copies but the values that a few columns can have, which
    training and held-out rows take in the numbers in which they come.
    """
    flat = X.reshape(len(X), -1)
    pairs = flat if y is None else np.column_stack([flat, y])
    first, member = distinct_numbers_of(pairs)
    if len(first) == len(X):
        return X, y, weight
    count = np.bincount(member)
    if len(X) > MOST_COPIES * len(first) * count.min():
        return X, y, weight
    total = np.bincount(member, weights=weight)
    alike = weight is None and np.ptp(count) == 0
    return X[first], None if y is None else y[first], None if alike else total.astype(float)


def sample_that_varies(
    X: np.ndarray, weight: np.ndarray, some: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of sampled rows and of :func:`that_vary`, and their weights.

    A row that was added has the weight that its like have in a sample on average.
    """
    added = that_vary(X, some)
    fraction = float(weight[some].sum() / weight.sum())
    return np.concatenate([some, added]), np.concatenate([weight[some], weight[added] * fraction])


def that_vary(X: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Numbers of the fewest further rows by which all columns that vary in X vary among `some`.

    A rare level or flag of which a sample has no row would otherwise be a constant of the sample.
    One row is added for each column that needs one, and does not have it from an earlier one.
    """
    if not len(some):
        return some[:0]
    rows = X.reshape(len(X), -1)
    chosen = rows[some]
    value = chosen[0].copy()
    constant = np.flatnonzero(((chosen == value) | ((chosen != chosen) & (value != value))).all(0))
    added: list[int] = []
    for j in constant:
        column = rows[:, j]
        other = (
            (column != value[j]) & ~np.isnan(column) if value[j] == value[j] else column == column
        )
        if other.any() and not other[added].any():
            added.append(int(other.argmax()))
    return np.array(added, dtype=some.dtype)


def _bits(column: np.ndarray) -> np.ndarray:
    """Numbers as 64 bits that are equal where the numbers are."""
    if column.dtype.kind in "biu":
        return column.astype(np.int64).view(np.uint64)
    value = column.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    value[np.isnan(value)] = np.nan
    return value.view(np.uint64)


def _next_hash(code: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """A hash of an earlier one and further bits."""
    z = (code ^ bits) + STEP
    z = (z ^ (z >> np.uint64(30))) * MIX_ONE
    z = (z ^ (z >> np.uint64(27))) * MIX_TWO
    return z ^ (z >> np.uint64(31))


def _of_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First positions of distinct keys, in the order of the rows, and the number of each row's."""
    _, first, member = np.unique(keys, return_index=True, return_inverse=True)
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[member.ravel()]


def _by_columns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same column by column: pairs of numbers of earlier columns and of this one."""
    member = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        _, own = np.unique(_bits(column), return_inverse=True)
        _, member = np.unique(member * len(rows) + own.ravel(), return_inverse=True)
        member = member.ravel()
    return _of_keys(member)


def _same_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tables have the same numbers, missing ones included."""
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())
