"""What several processes have to do with each other: workers, progress bars, averages.

Calls that workers may share, through joblib, with progress bars beside them; and averages over the
processes of a data-parallel step, for objectives that need them within it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from sklearn import config_context, get_config
from torch import Tensor
from tqdm.auto import tqdm

from skebm.base.processes.modes import own_modes
from skebm.base.processes.notices import Notice, collect_warnings, repeat


def in_worker() -> bool:
    """Whether this code is run by a worker of joblib (of any backend) or of Dask."""
    if (get_active_backend()[0].nesting_level or 0) > 0:
        return True
    dask = sys.modules.get("distributed")  # joblib's backend on Dask counts no levels
    if dask is None:
        return False
    try:
        dask.get_worker()
    except ValueError:  # this thread has no task of Dask
        return False
    return True


def progress_bar(*args: Any, disable: bool = False, **kwargs: Any) -> Any:
    """A bar of tqdm; disabled in a worker, because several bars would overwrite each other.

    Where the program has no stderr, or loses it, there is no bar.
    """
    if disable or sys.stderr is None or in_worker():
        return tqdm(*args, disable=True, **kwargs)
    return tqdm(*args, file=Fragile(sys.stderr), **kwargs)


class Fragile:
    """A stream that is written to as long as that is possible.

    tqdm would let an error of a write end the fit, and keep its lock, for which the bars of all
    later fits in other threads would wait.
    """

    def __init__(self, stream: Any):
        self.stream, self.broken = stream, False

    def write(self, text: str) -> None:
        self._do("write", text)

    def flush(self) -> None:
        self._do("flush")

    def _do(self, name: str, *args: str) -> None:
        if self.broken:
            return
        try:
            getattr(self.stream, name)(*args)
        except (OSError, ValueError):  # a pipe that is closed at the other end, or here
            self.broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Workers(Parallel):
    """Workers of joblib's active backend that share a list of calls, with a progress bar.

    Results are in the order of the calls. Warnings of skebm in another process or thread are issued
    again in this one, which would not see them otherwise.

    Parameters
    ----------
    n_jobs : int or None
        Number of calls at the same time, as for :class:`joblib.Parallel`.
    bar : tqdm
        Advanced by one for each completed call.

    Examples
    --------
    >>> from skebm.base.processes import Workers, progress_bar
    >>> bar = progress_bar(total=3, disable=True)
    >>> Workers(None, bar).results([(divmod, 7, 2), (divmod, 9, 4), (abs, -1)])
    [(3, 1), (2, 1), 1]
    """

    def __init__(self, n_jobs: int | None, bar: Any):
        super().__init__(n_jobs=n_jobs)
        self.bar = bar

    def print_progress(self) -> None:
        """Move the bar; joblib calls this whenever calls are completed."""
        self.bar.update(self.n_completed_tasks - self.bar.n)

    def results(self, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Results of calls ``(function, *arguments)``."""
        here, results = (_thread(), get_config()), []
        for result, caught in self(delayed(_call)(here, *call) for call in calls):
            repeat(caught)
            results.append(result)
        return results


def _thread() -> tuple[str, int, int]:
    return platform.node(), os.getpid(), threading.get_ident()


def _call(
    parent: tuple[Any, dict[str, Any]], function: Any, *args: Any
) -> tuple[Any, list[Notice]]:
    """Result of a call, and the warnings that it issued in another process or thread."""
    thread, config = parent
    # Not by scikit-learn's delayed, which swaps the filters of warnings, too.
    with config_context(**config), own_modes():
        if thread == _thread():
            return function(*args), []
        with collect_warnings() as caught:
            result = function(*args)
    return result, caught


# ------------------------------------------------------------------------------
# Averages over the processes of a step
# ------------------------------------------------------------------------------


class Reduction(Protocol):
    """Averages over the processes of a step; every process has to request the same ones."""

    def mean(self, *values: Tensor) -> list[Tensor]:
        """Means of tensors over the processes, weighted by their numbers of rows."""

    def gradients(self, value: Tensor | None) -> None:
        """Replace the gradients, and keep the loss, by their means over the processes."""


# Not an argument: it would pass through every signature between the engine and a moving average.
_REDUCTION: ContextVar[Reduction | None] = ContextVar("reduction", default=None)


@contextlib.contextmanager
def reducing(reduction: Reduction) -> Iterator[None]:
    """Average by `reduction` within the block."""
    token = _REDUCTION.set(reduction)
    try:
        yield
    finally:
        _REDUCTION.reset(token)


def mean_over_ranks(*values: Tensor) -> list[Tensor]:
    """Means of statistics over all rows of a batch, of which each process has a part.

    In a single process, and outside of a step, they are the values themselves.
    """
    reduction = _REDUCTION.get()
    return list(values) if reduction is None else reduction.mean(*values)


def reduce_gradients(value: Tensor | None) -> None:
    """Replace ``.grad`` by that of all rows of the batch, for code that needs it within a step.

    `value` is the loss of a process's own rows, None where it is not known.
    """
    reduction = _REDUCTION.get()
    if reduction is not None:
        reduction.gradients(value)
