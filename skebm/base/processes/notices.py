"""Warnings that point to the user's program, and their collection in one thread alone.

``warnings.catch_warnings`` swaps filters that all threads share, and may leave them swapped where
two of them overlap. Ours are collected before they reach the module `warnings`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

# What calls of skebm pass through on their way from a program.
BETWEEN = {"skebm", "sklearn", "skorch", "torch", "joblib", "contextlib", "functools"}


class Notice(NamedTuple):
    """A warning that was collected, and the line of the program that it points to."""

    message: str | Warning
    category: type[Warning]
    filename: str
    lineno: int


_COLLECTED: ContextVar[list[Notice] | None] = ContextVar("collected", default=None)


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line of the program, whichever method it called.

    So it is shown for each such line: Python shows a text once for each place that it points to.
    Within :func:`collect_warnings` it is kept for the caller instead.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        if frame.f_back is None:  # a worker, whose program is in another process
            level = 2
            break
        frame, level = frame.f_back, level + 1
    notices = _COLLECTED.get()
    if notices is None:
        warnings.warn(message, category, stacklevel=level)
        return
    kind = type(message) if isinstance(message, Warning) else category
    notices.append(Notice(message, kind, frame.f_code.co_filename, frame.f_lineno))


@contextlib.contextmanager
def collect_warnings() -> Iterator[list[Notice]]:
    """Collect the warnings of skebm that this thread issues in the block, and show none of them.

    >>> from skebm.base.processes import collect_warnings, warn
    >>> with collect_warnings() as caught:
    ...     warn("The chains have not converged.")
    >>> [one.message for one in caught]
    ['The chains have not converged.']
    """
    notices: list[Notice] = []
    token = _COLLECTED.set(notices)
    try:
        yield notices
    finally:
        _COLLECTED.reset(token)


def collecting() -> bool:
    """Whether the warnings of this thread are being collected."""
    return _COLLECTED.get() is not None


def repeat(notices: Iterable[Notice]) -> None:
    """Issue warnings that were collected, which point to where they pointed then."""
    collection = _COLLECTED.get()
    for one in notices:
        if collection is None:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        else:
            collection.append(one)
