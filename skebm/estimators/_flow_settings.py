"""What flow contrastive estimation is told."""

from __future__ import annotations

from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

from torch import nn

from skebm._validation import Interval, StrOptions
from skebm.distributions.flow import FLOWS
from skebm.estimators._contrastive_settings import CONTRASTIVE
from skebm.estimators._density_settings import COMMON

NOT_OFFERED = ("deconvolve", "bounds", "n_components")

FLOW_CONTRASTIVE: dict[str, list[Any]] = {
    name: kinds for name, kinds in COMMON.items() if name not in NOT_OFFERED
} | {
    "flow": [StrOptions(set(FLOWS)), nn.Module],
    "n_flow_steps": [Interval(Integral, 1, None, closed="left")],
    "flow_learning_rate": [Interval(RealNumber, 0, None, closed="neither")],
    "sigma": CONTRASTIVE["sigma"],
}
