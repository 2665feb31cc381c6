"""The entrance of every public call: settings of torch and threads that belong to the call."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from contextvars import copy_context
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from skebm.base.processes.modes import TorchModes, are_own, own_modes
from skebm.base.processes.notices import is_in_public_call, public_call
from skebm.base.processes.threads import threads

# Multiplications of one pass over the rows of a call from which it uses all threads: it takes some
# milliseconds then.
ENOUGH_WORK = 3e7
# Rows that estimates of log Z, which any call may be the first to need, pass at once.
N_CHAINS = 1000
# Components of mixtures, and rows that see each other in kernels, in the fits of bases.
N_COMPONENTS, N_KERNELS = 16, 5000

Class = TypeVar("Class", bound=type)


def inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes in :func:`~skebm.base.processes.own_modes`, whoever calls it.

    Tensors on the CPU among its arguments become arrays; small work is done by one thread. It
    issues each kind of warning once.

    A call by a program has a context of its own: variables of a context that Ctrl-C leaves changed,
    because it arrives as a context manager begins or ends, end with the call. So do settings.
    """
    is_fit = function.__name__ == "fit"

    @functools.wraps(function)
    def entering(*args: Any, **kwargs: Any) -> Any:
        if is_in_public_call():
            return computing(*args, **kwargs)
        modes = TorchModes.current()
        try:
            return copy_context().run(computing, *args, **kwargs)
        finally:
            modes.restore()

    def computing(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(as_array, args))
        kwargs = {name: as_array(value) for name, value in kwargs.items()}
        call = public_call(_estimator_of(args), is_fit=is_fit)
        with threads(work_of(args, kwargs), ENOUGH_WORK), call:
            if are_own():
                return function(*args, **kwargs)
            with own_modes():
                return function(*args, **kwargs)

    entering.__skebm_entrance__ = True  # type: ignore[attr-defined]
    return entering


def _estimator_of(args: tuple[Any, ...]) -> Any:
    """The estimator that is called, or that a display or a metric is of; None without one."""
    instances = (arg for arg in args[:2] if not isinstance(arg, type))
    return next((arg for arg in instances if hasattr(arg, "get_params")), None)


def enter_methods(cls: Class) -> Class:
    """A class whose public methods and properties, inherited ones of skebm too, are :func:`inside`.

    So are the methods by which it is stored and loaded. It changes the classes that define them.
    """
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]:
            continue
        for name, value in list(vars(owner).items()):
            if not name.startswith("_") or name in ("__getstate__", "__setstate__", "__call__"):
                entering = _entering(value)
                if entering is not value:
                    setattr(owner, name, entering)
    return cls


def enter_all(module: ModuleType) -> None:
    """Put the entrance before all functions and classes that a module exports."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            entering = _once(value)
            setattr(module, name, entering)
            setattr(sys.modules[value.__module__], name, entering)  # where pickle looks for it
        elif inspect.isclass(value):
            enter_methods(value)


def _entering(value: Any) -> Any:
    """What a class holds under a name, with the entrance before it."""
    if isinstance(value, property):
        return property(value.fget and _once(value.fget), value.fset, value.fdel, value.__doc__)
    if isinstance(value, classmethod | staticmethod):
        return type(value)(_once(value.__func__))
    if inspect.isfunction(value):
        return _once(value)
    if hasattr(value, "fn") and hasattr(value, "check"):  # of scikit-learn's available_if
        value.fn = _once(value.fn)
    return value


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(function, "__skebm_entrance__") or hasattr(function, "__isabstractmethod__"):
        return function
    return inside(function)


def as_array(value: Any) -> Any:
    """A dense tensor on the CPU without gradients as an array; anything else as it is.

    scikit-learn would ask a tensor for its array API, where that is switched on.
    """
    if not isinstance(value, Tensor) or value.requires_grad:
        return value
    dense = value.device.type == "cpu" and value.layout is torch.strided
    return value.numpy() if dense and value.dtype is not torch.bfloat16 else value


def work_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Approximate multiplications of the largest pass of a method over the rows of its call."""
    model, *rest = args or (None,)
    given = [*rest[:1], *(kwargs[name] for name in ("X", "n_samples") if name in kwargs)]
    shape = getattr(given[0], "shape", None) if given else None
    columns = getattr(model, "n_features_in_", 1)
    net = getattr(model, "__dict__", {}).get("net_")
    if isinstance(shape, tuple) and shape and all(isinstance(k, Integral) for k in shape):
        n, d = shape[0], math.prod(shape[1:])
    else:
        n, d = _n_rows_asked(given[0]) if given else 1, columns
    if net is None:
        return float(n) * d * max(N_COMPONENTS * d, min(n, N_KERNELS))
    n_weights = sum(p.numel() for p in net.module_.parameters())
    return float(max(n, N_CHAINS)) * max(n_weights, d * d)


def _n_rows_asked(value: Any) -> float:
    """The number of rows that an argument asks for or holds; infinite for a stream of them."""
    if isinstance(value, int):
        return value
    if value is None or isinstance(value, str):
        return 1
    try:
        return len(value)
    except (TypeError, ValueError):  # a stream, whose length is not known
        return math.inf
