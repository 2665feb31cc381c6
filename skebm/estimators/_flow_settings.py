"""What flow contrastive estimation is told, and the flow that it starts from."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor, nn

from skebm._rows import Rows
from skebm._validation import Interval, StrOptions
from skebm.estimators._contrastive_settings import CONTRASTIVE
from skebm.estimators._density_settings import COMMON
from skebm.noise import NormalizingFlow
from skebm.noise._flow_fit import FLOWS

NOT_OFFERED = ("deconvolve", "bounds", "n_components")

FLOW_CONTRASTIVE: dict[str, list[Any]] = {
    name: kinds for name, kinds in COMMON.items() if name not in NOT_OFFERED
} | {
    "flow": [StrOptions(set(FLOWS)), nn.Module],
    "n_flow_steps": [Interval(Integral, 1, None, closed="left")],
    "flow_learning_rate": [Interval(RealNumber, 0, None, closed="neither")],
    "sigma": CONTRASTIVE["sigma"],
}


def flow_of_rows(estimator: Any, rows: Rows, sigma: Tensor | None, seed: int) -> NormalizingFlow:
    """The flow of noisy rows by maximum likelihood."""
    return NormalizingFlow.fit(
        rows.block(0, len(rows)),
        rows.counts,
        estimator.flow,
        blur=0.0 if sigma is None else sigma,
        n_steps=estimator.n_flow_steps,
        generator=torch.Generator(rows.device).manual_seed(seed),
    )
