"""Frames with a label: their block, and the family of classifiers of frames."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from skebm.base import Categorical
from skebm.distributions import Columns, Distribution, IndependentCategorical
from skebm.distributions.independent import blocks_of
from skebm.energies import TemporalEnergy
from skebm.energies.rbm.labels import forget_labels, log_label_proba
from skebm.estimators.recipe import Family
from skebm.estimators.sequences.family import TemporalFamily
from skebm.estimators.sequences.table import FrameWindows
from skebm.estimators.tables.bases import SHRINKAGE
from skebm.estimators.tables.blocks import ColumnBlock
from skebm.estimators.tables.table import Table, fit_table_base
from skebm.objectives.temporal import LabelDivergence
from skebm.training.rows import Rows
from skebm.training.segments import Segments
from skebm.training.selection import LogRatioOf, LogRatios

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


class LabelBlock(ColumnBlock):
    """A label, one-hot, which is no column of X: zeros until it is set."""

    def __init__(self, n_labels: int):
        super().__init__([], Categorical((n_labels,)))

    def to_energy(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        return np.zeros((len(X), self.domain.n_columns))


class LabelledWindows(FrameWindows):
    """Frames in order of time whose last block is their label.

    Parameters
    ----------
    n_labels : int
    n_context : int
        Frames before the one that is trained on.
    """

    def __init__(self, n_labels: int, n_context: int):
        super().__init__(n_context, 1)
        self.n_labels = n_labels

    def prepare(self, rows: Rows) -> None:
        """Set labels, the second column of the targets y, and cut the frames into windows."""
        assert isinstance(rows, Segments)
        assert rows.y is not None
        rows.y, codes = rows.y.unbind(1)
        one_hot = torch.eye(self.n_labels, dtype=rows.x.dtype, device=rows.x.device)
        rows.x[:, -self.n_labels :] = one_hot[codes.to(rows.x.device)]
        super().prepare(rows)


def base_with_labels(base: Any, rows: Segments, table: Table) -> Distribution:
    """The base of a frame beside the frequencies of the labels, shrunk to equal ones."""
    frame = Table(table.blocks[:-1], by_column=table.by_column)
    n_labels, x = table.blocks[-1].domain.n_columns, rows.x[rows.targets()]
    frames = Rows(x[:, :-n_labels], dtype=rows.dtype, device=rows.device)
    of_frame = fit_table_base(base, frames, frame)
    share = (1 - SHRINKAGE) * x[:, -n_labels:].double().mean(0) + SHRINKAGE / n_labels
    labels = IndependentCategorical(share.log(), (n_labels,)).to(rows.device, rows.dtype)
    return Columns([*blocks_of(of_frame), labels])


def frame_base(base: Distribution) -> Distribution:
    """The base of a frame without its label."""
    *parts, _ = blocks_of(base)
    return parts[0] if len(parts) == 1 else Columns(parts)


@dataclass(frozen=True)
class LabelFamily(Family):
    """Classifiers of frames: temporal RBMs of frames with their label.

    Attributes
    ----------
    frames : TemporalFamily
    n_labels, label_order : int
        Number of labels, and of labels before on which a frame depends.
    generative_weight : float
        Weight of -log p(frame given the past) beside the cross-entropy, from 0 to 1.
    """

    frames: TemporalFamily
    n_labels: int
    label_order: int
    generative_weight: float

    def objective(self, recipe: Any, generator: torch.Generator) -> LabelDivergence:
        frames = self.frames
        return LabelDivergence(
            frames.new_energy(recipe, generator),
            self.n_labels,
            self.label_order,
            self.generative_weight,
            frames.rule,
            frames.n_steps,
            recipe.table.layout.n_targets,
            frames.n_windows,
        )

    @torch.no_grad()
    def initialise(self, recipe: Any, energy: TemporalEnergy, rows: Rows) -> None:
        """Initialise as without labels; weights of labels that are too far back become zero."""
        self.frames.initialise(recipe, energy, rows)
        forget_labels(energy, self.n_labels, self.label_order)

    def hold_out(
        self, recipe: Any, rows: Rows, generator: torch.Generator
    ) -> tuple[Rows, Rows | None]:
        return self.frames.hold_out(recipe, rows, generator)

    def log_ratios(self, recipe: Any) -> LogRatioOf:
        """Of frames and labels if learning is generative; otherwise that of labels alone."""
        if self.generative_weight == 1:
            return self.frames.log_ratios(recipe)
        return functools.partial(label_log_ratios, recipe.base, self.n_labels)

    def set_to_base(self, recipe: Any, net: EnergyNet, rows: Rows) -> LabelFamily:
        self.frames.set_to_base(recipe, net, rows)
        return self

    def without_effect(self, recipe: Any, asked: dict[str, Any]) -> dict[str, str]:
        found = self.frames.without_effect(recipe, asked)
        if not self.generative_weight:
            why = "without a likelihood of frames no chains move"
            found |= {name: why for name in ("learning", "chains") if name in asked}
        if self.generative_weight < 1:
            why = "only generative learning needs log Z"
            found |= {"partition": why} if "partition" in asked else {}
        if "generative_weight" in asked and self.generative_weight in (0, 1):
            found["generative_weight"] = 'only objective="hybrid" has it'
        return found


def label_log_ratios(
    base: Distribution,
    n_labels: int,
    energy: TemporalEnergy,
    x: Tensor,
    generator: torch.Generator,
) -> LogRatios:
    """Log-likelihood ratios of the labels of frames to their frequencies, exact."""
    with torch.no_grad():
        targets = energy.of_windows(x, 1)
        labels = targets.x[:, -n_labels:]
        value = log_label_proba(energy, targets, n_labels)
        frequencies = blocks_of(base)[-1].to(labels.device, labels.dtype)
        return LogRatios((value * labels).sum(1).double() - frequencies.log_prob(labels).double())
