"""Values of columns as text: few digits, dates, categories, what is missing."""

from __future__ import annotations

import math
from datetime import datetime, time
from typing import Any

import numpy as np

from skebm.estimators.tables.columns import is_present

MISSING = "missing"
MAX_LETTERS = 28
# Numbers of so many are shown in groups of three digits, which years are not.
IN_GROUPS = 10_000


def as_precise(expected: Any, value: Any) -> Any:
    """What is expected, as precise as the value: a boolean, or a day without the time."""
    if isinstance(value, (bool, np.bool_)) and isinstance(expected, (float, np.floating)):
        return expected if math.isnan(expected) else bool(round(float(expected)))
    if _is_day(value) and _is_date(expected):
        return expected.replace(hour=0, minute=0, second=0, microsecond=0)
    return expected


def _is_date(value: Any) -> bool:
    """A date that is known: NaT of pandas is a datetime that differs from itself."""
    return isinstance(value, datetime) and value == value


def _is_day(value: Any) -> bool:
    return _is_date(value) and value.time() == time.min


def short(value: Any, digits: int = 3) -> str:
    """A value in few letters: some digits of a number, a date, a string, shortened if long."""
    if isinstance(value, (bool, np.bool_)):
        return str(value)
    if not is_present(value):
        return MISSING
    if isinstance(value, datetime):
        return format(value, "%Y-%m-%d" if _is_day(value) else "%Y-%m-%d %H:%M")
    if not isinstance(value, (int, float, np.number)):
        return shorten(str(value))
    value = float(value)
    if abs(value) >= 1e6 or not (value.is_integer() or abs(value) >= 10**digits):
        return f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(value) >= IN_GROUPS else f"{value:.0f}"


def contrast_values(value: Any, expected: Any) -> tuple[str, str]:
    """Two values as text, with as many digits as it takes to tell them apart, if that can be."""
    expected = as_precise(expected, value)
    for digits in (3, 5, 8, 17):
        found = short(value, digits), short(expected, digits)
        if found[0] != found[1]:
            break
    return found


def shorten(text: str) -> str:
    """A text, or its first letters if it is long."""
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"
