"""Settings of torch for the calling thread, which must not change what a call computes.

Programs wrap calls in ``torch.inference_mode``, ``no_grad`` or ``autocast``, or set another default
type or device, for models of their own. Estimators have parameters `dtype` and `device`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from skebm.base.processes.threads import n_threads, set_threads

# Types of devices whose operations torch.autocast may change.
AUTOCAST = ("cpu", "cuda", "xpu", "mps")


class TorchModes(NamedTuple):
    """Settings of torch that stay changed if Ctrl-C arrives as a context manager begins or ends.

    If gradients stayed off, for example, every later fit would fail.
    """

    gradients: bool
    n_threads: int

    @classmethod
    def current(cls) -> TorchModes:
        """The settings of this thread."""
        return cls(torch.is_grad_enabled(), n_threads())

    def restore(self) -> None:
        """Set them again."""
        torch.set_grad_enabled(self.gradients)
        set_threads(self.n_threads)


# Whether OwnDefaults is active in this thread.
_ACTIVE: ContextVar[bool] = ContextVar("active", default=False)


@contextlib.contextmanager
def own_modes() -> Iterator[None]:
    """Compute in float32, on the CPU and with gradients where nothing else is said.

    Within the block there is no inference mode, no autocast, no other default type or device, in
    this thread alone; gradients can be taken. Blocks may be nested. Function modes of the user's
    program stay active.
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if _other_defaults():
            stack.enter_context(OwnDefaults())
        yield


def are_own() -> bool:
    """Whether :func:`own_modes` has nothing to change here."""
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not any(map(torch.is_autocast_enabled, AUTOCAST))
        and not _other_defaults()
    )


def _other_defaults() -> bool:
    """Whether another default type or device is set and not yet replaced."""
    if _ACTIVE.get():
        return False
    return torch.get_default_dtype() is not torch.float32 or any(
        isinstance(mode, DeviceContext) and mode.device.type != "cpu"
        for mode in _get_current_function_mode_stack()
    )


# Constructors with the default type, or that of Python's numbers in their data.
FILLED = {
    getattr(torch, name)
    for name in (
        *("empty", "zeros", "ones", "rand", "randn", "eye", "linspace", "logspace"),
        *("empty_strided", "hann_window", "hamming_window", "blackman_window", "bartlett_window"),
    )
}
WITH_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor}
# Those whose type is that of the numbers that they are given.
OF_NUMBERS = {torch.full, torch.arange, torch.range}
# Results are of the type that these are asked for, or of that of their input.
TYPED = {
    *("double", "to", "type", "type_as", "from_numpy", "frombuffer", "view", "bincount"),
    *("load", "dequantize", "__get__", "__set__", "set_data", "histc", "deepcopy"),
}


class OwnDefaults(TorchFunctionMode):
    """float32 and the CPU for what is constructed without a type or a device.

    Integers become float32 where torch would make the default type of them.
    """

    def __enter__(self) -> Any:
        _ACTIVE.set(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ACTIVE.set(False)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is None and func in _device_constructors():
            of_tensor = func in WITH_DATA and bool(args) and isinstance(args[0], Tensor)
            kwargs = kwargs | {"device": args[0].device if of_tensor else torch.device("cpu")}
        if func in FILLED and kwargs.get("dtype") is None:
            return func(*args, **kwargs | {"dtype": torch.float32})
        return self._of_type(func, args, kwargs, func(*args, **kwargs))

    def _of_type(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
        """The result, again in float32 where it has the default type for want of another one."""
        default = torch.get_default_dtype()
        if (
            default is torch.float32
            or not isinstance(result, Tensor)
            or result.dtype is not default
        ):
            return result
        given = (*args, *kwargs.values())
        if getattr(func, "__name__", "") in TYPED or any(map(_has_own_type, given)):
            return result
        if func in WITH_DATA | OF_NUMBERS:
            return func(*args, **kwargs | {"dtype": torch.float32})
        if not any(isinstance(value, Tensor) for value in args):
            return result.to(torch.float32)
        as_float = _as_choice if getattr(func, "__name__", "") == "where" else _as_float
        again = func(*map(as_float, args), **{k: as_float(v) for k, v in kwargs.items()})
        return again if again.dtype is torch.float32 else result.to(torch.float32)


def _has_own_type(value: Any) -> bool:
    """Whether a value has, or names, a type of real numbers, from which a result has its own."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    if isinstance(value, torch.dtype):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "fc"
    return isinstance(value, list | tuple) and any(map(_has_own_type, value))


def _as_float(value: Any) -> Any:
    """Integers and bits as float32."""
    return value.to(torch.float32) if isinstance(value, Tensor) else value


def _as_choice(value: Any) -> Any:
    """What a condition chooses from as float32; the condition stays as it is."""
    if isinstance(value, Tensor):
        return value if value.dtype is torch.bool else value.to(torch.float32)
    # A number goes where the other tensors are, whatever the default device is.
    return torch.tensor(value, dtype=torch.float32, device="cpu")
