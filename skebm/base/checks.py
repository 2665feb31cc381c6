"""Checks of the arguments of a run of chains, before it starts and after it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from skebm.base.domains import Binary
from skebm.base.domains import Real as RealRows
from skebm.base.energy import Clamp, Energy
from skebm.base.state import ChainState, SamplingError


def whole_number(name: str, value: Any, least: int) -> None:
    """Raise `ValueError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_start(
    energy: Energy,
    x: Tensor,
    generator: torch.Generator,
    clamp: Clamp | None,
    relaxed: bool = False,
) -> None:
    """Raise `ValueError` where chains cannot start at rows x.

    `relaxed` allows values between 0 and 1 on a binary domain, such as means of bits.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"Chains start at rows of a tensor, not of {type(x).__name__}: torch.as_tensor(x)."
        )
    if not hasattr(generator, "device"):
        raise TypeError(
            f"Chains draw from a torch.Generator, not from {generator!r}: "
            "torch.Generator().manual_seed(0), on the device of the rows."
        )
    shape = energy.domain.row_shape
    if x.dim() == 0 or x.shape[1:] != shape or not x.is_floating_point():
        raise ValueError(
            f"Chains start at floating-point rows of shape (n, {', '.join(map(str, shape))}), got "
            f"{x.dtype} of shape {tuple(x.shape)}."
        )
    if generator.device.type != x.device.type:
        raise ValueError(
            f"The generator is on {generator.device}, the chains are on {x.device}: make it by "
            f"torch.Generator({str(x.device)!r})."
        )
    if clamp is not None and not isinstance(clamp, Clamp):
        raise TypeError(
            f"clamp must be a skebm.base.Clamp(mask, value), not {type(clamp).__name__}."
        )
    if clamp is not None:
        parts = ("mask", clamp.mask, torch.bool), ("value", clamp.value, x.dtype)
        for name, part, kind in parts:
            if part.shape != x.shape or part.dtype != kind:
                raise ValueError(
                    f"clamp.{name} must be {kind} of shape {tuple(x.shape)} like the chains, got "
                    f"{part.dtype} of shape {tuple(part.shape)}."
                )
        x = clamp.apply(x)
    if energy.domain == RealRows(shape) and math.isfinite(float(x.sum())):
        return  # one sum takes a tenth of the time of the check of every row below
    if relaxed and isinstance(energy.domain, Binary):
        inside = ((x >= 0) & (x <= 1)).flatten(1).all(1)
    else:
        inside = energy.domain.contains(x)
    if not inside.all():
        row = int((~inside).nonzero()[0])
        raise ValueError(
            f"Chains cannot start outside of {energy.domain}: row {row} is not in it "
            f"({int((~inside).sum())} of {len(x)} rows are not)."
        )


def check_clamped(state: ChainState, clamp: Clamp | None) -> None:
    """Raise `ValueError` where a state, or a replica in it, differs from the clamped values."""
    if clamp is None:
        return
    kept = state.aux if isinstance(state.aux, tuple) else ()
    replicas = [one for one in kept if isinstance(one, ChainState)]
    for one in (state, *replicas):
        if not torch.equal(clamp.apply(one.x), one.x):
            raise ValueError(
                "The state to continue from does not have the clamped values. Start from rows "
                "instead: pass state.x."
            )


def check_end(state: ChainState) -> None:
    """Raise `SamplingError` where chains on an accelerator ended in nan.

    There single steps are not checked, because reading a result makes the host wait.
    """
    if state.x.is_cuda and not (
        state.x.isfinite().all() and (state.energy is None or not state.energy.isnan().any())
    ):
        raise SamplingError("The energy was nan at a step of this run.")


def schedule(beta: Any, n_steps: int) -> Sequence[float]:
    """Inverse temperature of each step."""
    single = isinstance(beta, Real) or (isinstance(beta, Tensor) and beta.dim() == 0)
    betas = [float(beta)] if single else [float(b) for b in beta]
    complete = single or len(betas) == n_steps
    if not complete or not all(0 <= b < math.inf for b in betas):
        raise ValueError(
            f"beta must be a finite number of at least 0, or one for each of the {n_steps} steps; "
            f"got {beta!r}."
        )
    return betas
