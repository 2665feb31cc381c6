"""Warnings in the words of the program that calls skebm, and their collection in one thread alone.

``warnings.catch_warnings`` swaps filters that all threads share, and may leave them swapped where
two of them overlap. Ours are collected before they reach the module `warnings`.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple

from skebm.base.processes.categories import SkebmWarning
from skebm.base.processes.searches import calls_around_search, share_around, summaries_after

# What calls of skebm pass through on their way from a program, or from nowhere in a worker.
BETWEEN = {"skebm", "sklearn", "skorch", "torch", "joblib", "contextlib", "functools"}
BETWEEN |= {"multiprocessing", "threading", "concurrent", "runpy"}
# What warnings of several fits may differ in: details in parentheses, a list of columns, a number.
DETAILS = re.compile(r" \(.*\)|\[[\d, ]*\]|[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
# Lists of more than ten columns.
LISTS = re.compile(r"\[([^\[\],]*(?:,[^\[\],]*){10,})\]")


class Notice(NamedTuple):
    """What a warning says, and what to do.

    Attributes
    ----------
    message : str
    category : type
    remedies : tuple of (str, *str)
        What to do, with the names of the parameters that this needs; the first one is preferred.
    """

    message: str
    category: type[SkebmWarning] = SkebmWarning
    remedies: tuple[tuple[str, ...], ...] = ()

    @property
    def kind(self) -> tuple[type[SkebmWarning], str]:
        """What two warnings have in common that differ in details only."""
        return self.category, DETAILS.sub("", self.message)

    def text(self, owner: Any = None) -> str:
        """The message, and the first remedy that `owner`, which the program called, can follow.

        It names parameters as they are set there; a part that is called itself has its own.
        """
        message = LISTS.sub(_first_five, self.message)
        known = owner.get_params() if owner is not None and self.remedies else None
        for remedy, *names in self.remedies:
            if known is None:
                return f"{message} {remedy}"
            for name in names:
                ours = [key for key in known if key == name or key.endswith(f"__{name}")]
                if not ours:
                    break
                remedy = re.sub(rf"\b{name}(?=\b|__)", min(ours, key=len), remedy)
            else:
                return f"{message} {remedy}"
        return message


class Call(NamedTuple):
    """A public call by a program: the estimator it is of, and the kinds of warnings it issued."""

    owner: Any
    kinds: set[Any]


_COLLECTED: ContextVar[list[Notice] | None] = ContextVar("collected", default=None)
_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


def warn(
    message: str, category: type[SkebmWarning] = SkebmWarning, *remedies: tuple[str, ...]
) -> None:
    """Issue a warning that points to the line of the program, whichever method it called.

    A public call issues one of each kind, with the first of the `remedies` whose parameters the
    estimator that was called has, perhaps within it. In a search of scikit-learn warnings are
    counted (:mod:`skebm.base.processes.searches`). Within :func:`collect_warnings` they are kept
    for the caller instead.

    >>> import warnings
    >>> from skebm.base.processes import warn
    >>> from skebm.base import TrainingWarning
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn("It ended too early.", TrainingWarning, ("Set n_iter to 80.", "n_iter"))
    >>> print(caught[0].message)
    It ended too early. Set n_iter to 80.
    """
    repeat([Notice(message, category, remedies)])


def repeat(notices: Iterable[Notice]) -> None:
    """Issue warnings that were collected."""
    collection = _COLLECTED.get()
    for one in notices:
        if collection is None:
            _issue(one)
        else:
            collection.append(one)


def _issue(notice: Notice) -> None:
    call = _CALL.get() or Call(None, set())
    if notice.kind in call.kinds:
        return
    call.kinds.add(notice.kind)
    _show(notice, notice.text(call.owner), _calls_between())


def _show(notice: Notice, text: str, calls: Sequence[FrameType]) -> None:
    """Show a text unless fits beside this one have shown it, or a search is to count it."""
    share = share_around(calls)
    if share is None or share.is_first(notice.kind, notice.category, text):
        warnings.warn(text, notice.category, stacklevel=_level(calls))


def _calls_between() -> list[FrameType]:
    """Calls from this module to the program that called skebm, which is the last; from the inside.

    A worker, whose program is in another process, has none: the last one is where skebm warned.
    """
    frame: FrameType | None = sys._getframe(1)
    calls = []
    while frame is not None and _module(frame).partition(".")[0] in BETWEEN:
        calls.append(frame)
        frame = frame.f_back
    return calls if frame is None else [*calls, frame]


def _level(calls: Sequence[FrameType]) -> int:
    """The `stacklevel` of a warning of :func:`_show` that points to the program."""
    frame, level = sys._getframe(1), 1
    last = calls[-1]
    if _module(last).partition(".")[0] in BETWEEN:
        last = next(call for call in calls if _module(call) != __name__)
    while frame is not last and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def _module(frame: FrameType) -> str:
    """Name of the module of a call; that of a module that is run as a program, too."""
    spec = frame.f_globals.get("__spec__")
    return frame.f_globals.get("__name__", "") if spec is None else spec.name


def is_in_public_call() -> bool:
    """Whether a program has called skebm, and the call has not ended."""
    return _CALL.get() is not None


@contextlib.contextmanager
def public_call(owner: Any, *, is_fit: bool = False) -> Iterator[None]:
    """A public call of an estimator; one within another one belongs to that."""
    if is_in_public_call():
        yield
        return
    token = _CALL.set(Call(owner, set()))
    try:
        yield
        if is_fit and _COLLECTED.get() is None:
            _show_summaries()
    finally:
        _CALL.reset(token)


def _show_summaries() -> None:
    """Show what the candidates of a search warned of, if this call was its refit."""
    calls = _calls_between()
    for category, text in summaries_after(calls):
        notice = Notice(text, category)
        _show(notice, text, calls_around_search(calls) or calls)


def _first_five(columns: re.Match[str]) -> str:
    names = columns[1].split(",")
    return f"[{','.join(names[:5])} and {len(names) - 5} more]"


@contextlib.contextmanager
def without_warnings(category: type[SkebmWarning]) -> Iterator[None]:
    """Show no warnings of a category in the block, which does not depend on what they are of."""
    with collect_warnings() as caught:
        yield
    repeat(one for one in caught if not issubclass(one.category, category))


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
