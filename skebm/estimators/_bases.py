"""What a model corrects: the base named by ``base=``, fitted to the rows of a table."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.distributions import BlockTree, ChowLiuTree, Distribution, IndependentBernoulli
from skebm.training.rows import Rows

# Share of a fair coin in the means that independent columns have.
SHRINKAGE = 1e-3
# Share of two fair coins in the tables of a tree's pairs: best or within 0.05 nats of it on the
# validation parts of six DEBD sets of 1,600 to 29,000 rows.
PAIR_SHRINKAGE = 1e-4
# Binary rows that stand for a table of probabilities, at least.
N_DRAWS = 20_000


BY_NAME = {"independent": IndependentBernoulli, "chow-liu": ChowLiuTree, "block-tree": BlockTree}


def check_base_stays(base: Any, fitted: Distribution) -> None:
    """Raise `ValueError` where a fit that goes on asks for another kind of base."""
    kind = BY_NAME[base] if isinstance(base, str) else type(base)
    if kind is not type(fitted):
        raise ValueError(
            f"The weights correct the base of the first fit, {fitted}, and not base={base!r}: with "
            "warm_start and partial_fit it must stay. Clone the estimator to start anew."
        )
    if isinstance(base, Distribution) and not _same(base, fitted):
        raise ValueError(
            f"The weights correct the base of the first fit, and base={base!r} is another one: "
            "with warm_start and partial_fit it must stay. Clone the estimator to start anew."
        )


def _same(base: Distribution, fitted: Distribution) -> bool:
    """Whether two bases of a kind have the same arrays, up to the rounding of float32."""
    ours, theirs = base.__getstate__(), fitted.__getstate__()
    arrays = [k for k, value in ours.items() if isinstance(value, np.ndarray)]
    return all(
        ours[k].shape == theirs[k].shape and np.allclose(ours[k], theirs[k], rtol=1e-5)
        for k in arrays
    )


def fit_base(base: Any, rows: Rows) -> Distribution:
    """Fit the named base to the rows, or check that a given one covers them.

    Means are shrunk by a fixed share, so that constant columns stay finite; not by pseudo-counts,
    which would tell a row of weight 2 from the row twice, or weights of 2 from weights of 1.
    """
    if isinstance(base, Distribution):
        return _checked(base, rows)
    if base == "chow-liu":
        second = _accumulate(rows, lambda x, weight: (x * weight[:, None]).t() @ x)
        second.diagonal().copy_(_means(rows))  # of probabilities, not of their squares
        return ChowLiuTree.from_moments(second, PAIR_SHRINKAGE, rows.dtype, rows.device)
    if base == "block-tree":
        return BlockTree.fit(*_binary(rows))
    mean = _means(rows) * (1 - SHRINKAGE) + SHRINKAGE / 2
    return IndependentBernoulli(torch.logit(mean).to(rows.dtype))


def _binary(rows: Rows) -> tuple[Tensor, Tensor]:
    """Rows and their counts; drawn where they are probabilities, alike at every call."""
    x = rows.block(0, len(rows))
    if torch.equal(x, x.round()):
        return x, rows.counts
    copies = -(-N_DRAWS // len(x))
    x = x.repeat(copies, 1)
    u = torch.empty_like(x).uniform_(generator=torch.Generator(x.device).manual_seed(0))
    return (u < x).to(x.dtype), rows.counts.repeat(copies)


def _means(rows: Rows) -> Tensor:
    return _accumulate(rows, lambda x, weight: weight @ x)


def _accumulate(rows: Rows, statistic: Any) -> Tensor:
    """Weighted mean of a statistic over the rows, a block at a time; float64."""
    counts, total = rows.counts, 0.0
    size = max(1, 2_000_000 // rows.n_columns)  # sparse rows become dense: 16 MB at a time
    for start in range(0, len(rows), size):
        x = rows.block(start, start + size).double()
        total = total + statistic(x, counts[start : start + size])
    return total / counts.sum()


def _checked(base: Distribution, rows: Rows) -> Distribution:
    """A copy of a given base on the rows' device, or `ValueError` naming what does not fit."""
    if type(base).tilted is Distribution.tilted:
        raise ValueError(
            f"base={base!r} has no exact conditionals under unary fields, which block Gibbs "
            "sampling needs. Use a Chow-Liu tree or independent columns."
        )
    if base.domain.n_columns != rows.n_columns:
        raise ValueError(
            f"The base has {base.domain.n_columns} columns, but X has {rows.n_columns}."
        )
    base = copy.deepcopy(base).to(rows.device, rows.dtype)
    log_prob = rows.map(base.log_prob)
    if log_prob.isnan().any():
        raise ValueError("The base gives rows of X the probability NaN: has it finite parameters?")
    impossible = ~log_prob.isfinite()
    if impossible.any():
        row = int(impossible.nonzero()[0, 0])
        raise ValueError(
            f"The base gives probability zero to {int(impossible.sum())} rows of X, first to row "
            f"{row}: no energy on top of it can repair that. Smooth the base."
        )
    if isinstance(base, IndependentBernoulli) and not base.logits.isfinite().all():
        columns = (~base.logits.isfinite()).nonzero().ravel().tolist()
        raise ValueError(f"The base has infinite log-odds in columns {columns}: smooth them.")
    return base
