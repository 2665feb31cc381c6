"""Functions that torch rounds more than 64 bits do."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) to the last bit: torch draws a straight line from 20 on, off by 2e-9.

    From 40 on the line is exact in double precision, and exp(40) is finite in single precision.

    >>> import torch
    >>> x = torch.tensor([0.0, 21.0, 1000.0], dtype=torch.float64)
    >>> (softplus(x) - torch.logaddexp(x, torch.zeros(()))).abs().max() < 1e-14
    tensor(True)
    """
    return F.softplus(x, threshold=40.0)
