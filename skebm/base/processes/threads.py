"""The number of threads that torch uses for the work of one thread of the program.

``torch.set_num_threads`` sets the number of this thread, and that of every thread which is started
from then on. OpenMP's own function, of the library that torch computes with, sets the former alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from threadpoolctl import threadpool_info

# Multiplications of a step from which several threads pay.
ENOUGH_WORK = 4e6

_LOCK = threading.Lock()


# Threads around the outermost block in this thread.
_AROUND: ContextVar[int | None] = ContextVar("around", default=None)


@functools.cache
def _setter() -> Callable[[int], object] | None:
    """OpenMP's function that sets the number of threads of this thread; None if it is not found.

    Several libraries may be loaded. It is the one that torch follows.
    """
    before = torch.get_num_threads()
    for library in threadpool_info():
        if library["user_api"] != "openmp":
            continue
        setter = ctypes.CDLL(library["filepath"]).omp_set_num_threads
        setter.argtypes, setter.restype = [ctypes.c_int], None
        setter(before + 1)
        follows = torch.get_num_threads() == before + 1
        setter(before)
        if follows:
            return setter
    return None


def n_threads() -> int:
    """The number of threads that torch uses in this thread."""
    return torch.get_num_threads()


def set_threads(n: int) -> None:
    """Set the number of threads that torch uses in this thread, and in no other."""
    if torch.get_num_threads() == n:  # which also lets torch set the number of a new thread
        return
    with _LOCK:
        setter = _setter()
    if setter is None:
        torch.set_num_threads(n)
    else:
        setter(n)


class _Shared:
    """Blocks of all threads where only the number of the process can be set.

    The number before the first block is set again after the last one.
    """

    n_blocks, before = 0, 1

    @classmethod
    def enter(cls) -> None:
        with _LOCK:
            if not cls.n_blocks:
                cls.before = torch.get_num_threads()
            cls.n_blocks += 1

    @classmethod
    def leave(cls, n: int) -> None:
        with _LOCK:
            cls.n_blocks -= 1
            torch.set_num_threads(n if cls.n_blocks else cls.before)


@contextlib.contextmanager
def threads(work: float, at_least: float = ENOUGH_WORK) -> Iterator[None]:
    """Use one thread for steps of fewer multiplications than `at_least`, where more cost time.

    Threads of OpenMP wait for each other at the end of each operation: where another process has
    a core, that takes far longer than small operations do. Blocks may be nested; larger steps
    within a block of one thread use as many as there were outside of all blocks.
    """
    before, around = torch.get_num_threads(), _AROUND.get()
    outermost, most = around is None, around or before
    wanted = most if work >= at_least else 1
    if wanted == before and not outermost or most == 1:
        yield
        return
    with _LOCK:
        shared = _setter() is None
    if shared:
        _Shared.enter()
    try:
        if outermost:
            _AROUND.set(before)
        set_threads(wanted)
        yield
    finally:
        if outermost:
            _AROUND.set(None)
        if shared:
            _Shared.leave(before)
        else:
            set_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)


# A forked process inherits the state of torch's thread pool but not its threads: once the parent
# has used them, the child would wait for them forever. One thread needs no pool.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_thread)
