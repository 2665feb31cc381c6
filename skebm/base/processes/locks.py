"""A lock for each object, for what is computed when it is first asked for."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_LOCKS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_GUARD = threading.Lock()


def lock_of(owner: Any) -> Any:
    """The lock of an object, which a thread may take again while it holds it.

    It is not stored in the object: copies and stored models have none, and get their own.

    >>> from skebm.base.processes import lock_of
    >>> class Model:
    ...     pass
    >>> model = Model()
    >>> lock_of(model) is lock_of(model)
    True
    """
    with _GUARD:
        lock = _LOCKS.get(owner)
        if lock is None:
            lock = _LOCKS[owner] = threading.RLock()
        return lock


def _new() -> None:
    global _GUARD
    _GUARD = threading.Lock()
    _LOCKS.clear()


# The threads that hold locks do not exist in a forked process, which would wait for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new)
