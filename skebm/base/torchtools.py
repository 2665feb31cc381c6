"""Additions to torch: exact softplus, optimizers, a look at the memory."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

# What torch says, in a plain RuntimeError, where there is no memory for a tensor, or never can be.
NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) to machine precision: torch returns x from 20 on, which is off by 2e-9.

    From 40 on x is exact in double precision, and exp(40) is finite in single precision.

    >>> import torch
    >>> x = torch.tensor([0.0, 21.0, 1000.0], dtype=torch.float64)
    >>> (softplus(x) - torch.logaddexp(x, torch.zeros(()))).abs().max() < 1e-14
    tensor(True)
    """
    return F.softplus(x, threshold=40.0)


def exp_of_shifted_(x: Tensor) -> Tensor:
    """exp(x), in place, of numbers of which the largest are about 0; all results are positive.

    Results are at least the root of the smallest normal number, 1e-154 or 1e-19, too little to
    matter in a sum with the largest. Where exponentials underflow, torch takes twenty to a hundred
    times as long, and products of such numbers are as slow.

    >>> import torch
    >>> exp_of_shifted_(torch.tensor([0.0, -1.0, -1000.0], dtype=torch.float64)).sum()
    tensor(1.3679, dtype=torch.float64)
    """
    return x.clamp_(min=math.log(torch.finfo(x.dtype).tiny) / 2).exp_()


# Factors between 1/2 and 1 whose product does not underflow in single precision.
GROUP = 100


def zero_pad(x: Tensor, right: int, down: int) -> Tensor:
    """A matrix (m, n) padded with zeros to shape (m + down, n + right); m or n may be 0.

    ``torch.nn.functional.pad`` of torch 2.6 refuses some matrices without entries.
    """
    padded = x.new_zeros(x.shape[0] + down, x.shape[1] + right)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


def softplus_sum(x: Tensor) -> Tensor:
    """Sum of log(1 + exp(x)) over the last axis, with one logarithm for a hundred numbers.

    It uses softplus(x) = max(x, 0) - log sigmoid(|x|), and multiplies the sigmoids before it takes
    the logarithm. If gradients of x are needed, which require every number, it sums
    :func:`softplus` instead.

    >>> import torch
    >>> x = torch.linspace(-900, 900, 250, dtype=torch.float64)
    >>> (softplus_sum(x) - softplus(x).sum()).abs() < 1e-10
    tensor(True)
    """
    if x.requires_grad:
        return softplus(x).sum(-1)
    logs = torch.stack([part.prod(-1) for part in x.abs().sigmoid_().split(GROUP, -1)]).log_()
    return x.clamp(min=0).sum(-1).sub_(logs.sum(0))


@functools.cache
def memory_of(device: torch.device) -> float:
    """Bytes of memory that a process may have on a device; infinite where that is unknown.

    It is the physical memory, or less by the limits of the process (``ulimit``) and of the
    container (cgroups). They may change, and are read each time.
    """
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return math.inf
    limits = [*_process_limits(), *_container_limits()]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        limits.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=math.inf)


def _process_limits() -> list[float]:
    """Limits of the address space and of the data of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return [float(value) for value in soft if value != resource.RLIM_INFINITY]


def _container_limits(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[float]:
    """Limits of the cgroups that this process is in, of both versions, and of those above them."""
    limits = []
    for line in (_read_text(proc) or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = Path(root), "memory.max"
        elif "memory" in controllers.split(","):
            top, name = Path(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        # Inside a container its own group is mounted at the top, whatever its path outside.
        own = Path(path.lstrip("/"))
        for folder in {top, *(top / one for one in (own, *own.parents))}:
            value = _read_text(folder / name).strip()
            if value.isdecimal():  # "max" is none
                limits.append(float(value))
    return limits


def _read_text(path: str | Path) -> str:
    """The text of a file, empty where there is none to read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise `MemoryError` with a remedy where torch raises `RuntimeError` for want of memory."""
    try:
        yield
    except RuntimeError as error:
        short = isinstance(error, torch.OutOfMemoryError)
        if short or any(one in str(error) for one in NO_MEMORY):
            raise MemoryError(
                "There is not enough memory for these settings: lower the number of units, chains "
                f"or draws, or batch_size, or pass fewer rows at a time ({str(error)[:200]})."
            ) from error
        raise


def check_memory(setting: str, n_numbers: float, dtype: torch.dtype, device: Any = "cpu") -> None:
    """Raise `ValueError` if a setting needs more numbers than the memory of a device can hold.

    Call it before they are allocated: systems promise memory that they do not have, and end the
    process when it is used.
    """
    needed, present = n_numbers * dtype.itemsize, memory_of(torch.device(device))
    if needed > present:
        raise ValueError(
            f"{setting} would take at least {needed / 2**30:,.3g} GiB of memory, and there are "
            f"{present / 2**30:,.3g} GiB: lower it."
        )


def shifts(x: Tensor, width: int, seed: int) -> Tensor:
    """Uniform numbers in [0, 1) for each row, (n, width), given by its entries and a seed."""
    found, generator = torch.empty(len(x), width), torch.Generator()
    # Adding 0 makes one number of the two zeros.
    for place, row in enumerate((x + 0.0).cpu().numpy()):
        generator.manual_seed(zlib.crc32(row.tobytes(), seed))
        found[place].uniform_(generator=generator)
    return found.to(x.device)


Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


def without_compiler(optimizer: type[Optimizer]) -> type[Optimizer]:
    """The optimizer without the import of torch's compiler at first use, which takes 1.5 seconds.

    torch wraps some methods to hide them from its compiler, and imports the compiler to do so; here
    they are replaced by the methods without the wrapper.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    plain: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    plain["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), plain)


def searches_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer evaluates the objective several times a step, in a line search."""
    return isinstance(optimizer, torch.optim.LBFGS) or getattr(optimizer, "searches_steps", False)


SGD = without_compiler(torch.optim.SGD)
LBFGS = without_compiler(torch.optim.LBFGS)
AdamW = without_compiler(torch.optim.AdamW)


def adamw(parameters: Iterable[Any], **settings: Any) -> torch.optim.AdamW:
    """Fused AdamW where torch has it: less than half the time of the default for small networks."""
    parameters = list(parameters)
    groups = [group["params"] if isinstance(group, dict) else [group] for group in parameters]
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group)
    return AdamW(parameters, **{"fused": fused} | settings)


def distinct_masks(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows of a boolean matrix (n, d), in order, and the number of each row's, (n,).

    As ``mask.unique(dim=0, return_inverse=True)``, which compares rows entry by entry, in a tenth
    of the time: rows of up to 62 columns are written as integers.
    """
    n, d = mask.shape
    most_bits = 62  # of an integer that is not negative
    if not n or not 0 < d <= most_bits:
        patterns, member = mask.unique(dim=0, return_inverse=True)
        return patterns, member
    shifts = torch.arange(d - 1, -1, -1, device=mask.device)
    distinct, member = (mask.long() << shifts).sum(1).unique(return_inverse=True)
    return (distinct[:, None] >> shifts & 1).bool(), member
