"""Validation of the arguments of metrics: scores and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

Floats = NDArray[np.float64]


def numbers_of(values: Any, name: str) -> Floats:
    """One finite number per row, (n,) in float64."""
    return _check_flat(
        check_array(values, ensure_2d=False, dtype=np.float64, input_name=name), name
    )


def labels_of(values: Any, name: str) -> np.ndarray:
    """One label per row, (n,): numbers or strings, none of them missing."""
    return _check_flat(check_array(values, ensure_2d=False, dtype=None, input_name=name), name)


def positives(y_true: Any, pos_label: Any) -> NDArray[np.bool_]:
    """Mask of the rows with the positive label, (n,); `ValueError` unless there are two classes."""
    labels = labels_of(y_true, "y_true")
    distinct = np.unique(labels).tolist()
    if len(distinct) != 2 or pos_label not in distinct:
        raise ValueError(
            f"y_true must have two classes, one of them pos_label={pos_label!r}; its labels are "
            f"{in_short(distinct)}."
        )
    return labels == pos_label


def in_short(labels: list[Any]) -> str:
    """The first five labels as text."""
    return ", ".join(map(repr, labels[:5])) + (", ..." if len(labels) > 5 else "")


def _check_flat(values: np.ndarray, name: str) -> np.ndarray:
    if values.ndim != 1:
        raise ValueError(f"{name} must be of shape (n_samples,), got {values.shape}.")
    return values
