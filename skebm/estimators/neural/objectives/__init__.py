"""Objectives of neural densities."""

from __future__ import annotations

from typing import Any

from skebm.estimators.neural.objectives.adversarial import Adversarial, Attack
from skebm.estimators.neural.objectives.base import NeuralObjective, TrainingStart
from skebm.estimators.neural.objectives.boosting import Boosting
from skebm.estimators.neural.objectives.contrastive import (
    ContrastiveDivergenceLearning,
    Discrepancy,
    Likelihood,
)
from skebm.estimators.neural.objectives.flow_contrastive import FlowContrastiveEstimation
from skebm.estimators.neural.objectives.noise_contrastive import NoiseContrastiveEstimation
from skebm.estimators.neural.objectives.score_matching import ScoreMatching, Sliced

__all__ = [
    "BY_NAME",
    "Adversarial",
    "Attack",
    "Boosting",
    "ContrastiveDivergenceLearning",
    "Discrepancy",
    "FlowContrastiveEstimation",
    "Likelihood",
    "NeuralObjective",
    "NoiseContrastiveEstimation",
    "ScoreMatching",
    "Sliced",
    "TrainingStart",
    "objective_of",
]

# What strings stand for: an objective, or one of its forms.
BY_NAME: dict[str, tuple[type[NeuralObjective], dict[str, Any]]] = {
    "score_matching": (ScoreMatching, {}),
    "nce": (NoiseContrastiveEstimation, {}),
    "contrastive_divergence": (ContrastiveDivergenceLearning, {}),
    "flow_contrastive": (FlowContrastiveEstimation, {}),
    **{
        form: (kind, {"form": form})
        for kind in (ScoreMatching, ContrastiveDivergenceLearning)
        for form in kind.FORMS
    },
}


def objective_of(asked: str | NeuralObjective) -> NeuralObjective:
    """The objective that a parameter stands for; `ValueError` for an unknown name."""
    if isinstance(asked, NeuralObjective):
        return asked
    if asked not in BY_NAME:
        raise ValueError(f"objective={asked!r} is none of {', '.join(map(repr, BY_NAME))}.")
    kind, params = BY_NAME[asked]
    return kind(**params)
