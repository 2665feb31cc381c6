"""The contract of every estimator: scikit-learn's own checks, then skebm's promises.

Every concrete estimator of the package must have cases here: configured instances, one for each
mode that it offers cheaply. What one estimator alone promises is in its own file.
"""

import copy
import functools
import random
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks, get_tags
from skorch.callbacks import Callback
from torch import nn

from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    FlowContrastiveDensity,
    NCEDensity,
    NeuralDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
)
from skebm.base import Categorical, LogPartition, PartitionEstimator
from skebm.energies import MLP
from skebm.estimators import (
    ContrastiveDivergenceLearning,
    Discrepancy,
    FlowContrastiveEstimation,
    Likelihood,
    MixtureBase,
    NoiseContrastiveEstimation,
    ScoreMatching,
    Sliced,
    SpikeSlab,
    Subspace,
)
from skebm.estimators.base import BaseDensity
from skebm.objectives import Penalty
from skebm.partition import Exact, ImportanceSampling
from skebm.samplers import (
    HMC,
    MALA,
    DiscreteLangevin,
    FromData,
    FromNoise,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
)
from skebm.training import SGD, AdamW, EarlyStopping
from tests.support.callbacks import Interrupt, Poison
from tests.support.checks import parametrize_with_checks
from tests.support.discovery import walk
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tables import binary_rows, one_hot_rows, real_rows
from tests.support.tiers import full, named


class Tanh(nn.Sequential):
    """What a user might pass as a network."""

    def __init__(self, n_features):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            super().__init__(
                nn.Linear(n_features, 6), nn.Tanh(), nn.Linear(6, 1, bias=False), nn.Flatten(0)
            )


class AnyWidth:
    """The same for any number of columns; its name has no address, which test ids would show."""

    def __call__(self, spec):
        return Tanh(spec.shape[0])

    def __repr__(self):
        return "tanh"

    def __deepcopy__(self, memo):
        return self


tanh = AnyWidth()


quick = {"n_components": 3, "n_iter": 5, "random_state": 0}
subspaces = {"n_components": 2, "n_subspace": 2, "n_iter": 5, "random_state": 0}
layered = {"hidden_layer_sizes": (3, 2), "n_iter": 5, "random_state": 0}
small = {"network": MLP((8,)), "sigma": 0.3, "n_iter": 3, "random_state": 0}
few_draws = {"partition": ImportanceSampling(500)}
within = {"bounds": (-1000, 1000), "standardize": False}
# The base where a mode is about something else: to choose one takes longer than the rest of a fit.
on_gaussian = {"base": "gaussian"}
exact = small | {"objective": "exact", "batch_size": 20}
sampled = small | {"chains": Persistent(n_steps=2)}
fixed_step = sampled | few_draws | {"sampler": MALA(0.3)}  # the default one is adapted first
flowing = small | {"flow": "maf", "n_flow_steps": 3}
against_noise = {"network": MLP((8,)), "n_iter": 3, "random_state": 0, "domain": "binary"}
bits = against_noise | {"chains": Persistent(n_steps=2)}
levels = bits | {"domain": Categorical((3, 3))}

boosted = {"learning_rate": 0.3, "n_iter": 3, "random_state": 0}
CASES = {
    RBMEstimator: {
        "auto": RBMEstimator(n_components=3, n_iter=20, random_state=0),
        "pcd": RBMEstimator(**quick, learning="pcd"),
        "cd": RBMEstimator(**quick, base="independent", learning="cd"),
        "exact": RBMEstimator(**quick, learning="exact", learning_rate=0.05, visible="bernoulli"),
        "float64": RBMEstimator(**quick, base="independent", learning="pcd", dtype="float64"),
        "early_stopping": RBMEstimator(**quick, learning="pcd", early_stopping=True),
        "no_partition": RBMEstimator(**quick, base="independent", learning="pcd", partition=None),
        "gaussian": RBMEstimator(**quick, base="gaussian"),
        "tree": RBMEstimator(**quick, learning="pcd", base="chow-liu"),
        "pseudo_likelihood": RBMEstimator(
            **quick, learning="pseudo_likelihood", visible="bernoulli", penalty=Penalty(l2=0.01)
        ),
        "exact_tree": RBMEstimator(**quick, base="chow-liu"),
        "reweight": RBMEstimator(**quick, chains=Persistent(reweight=True), early_stopping=True),
        "tempering": RBMEstimator(
            **quick, base="independent", learning="pcd", sampler=ParallelTempering(3)
        ),
        "collapsed": RBMEstimator(**quick, base="independent", learning="pcd", sampler=Gibbs(2)),
        "penalties": RBMEstimator(
            **quick,
            chains=FromData(n_steps=2),
            centering=None,
            penalty=Penalty(l1=0.01, sparsity_target=0.1),
            optimizer=SGD(momentum=0.5, averaging=0.5),
        ),
        "subspaces": RBMEstimator(**quick, hidden=Subspace(2, features="all"), learning="pcd"),
        "spikes_and_slabs": RBMEstimator(
            **quick, hidden=SpikeSlab(features="slabs"), base="independent", dtype="float64"
        ),
    },
    SpikeSlabRBM: {
        "spikes": SpikeSlabRBM(**quick),
        "slabs": SpikeSlabRBM(**quick, features="slabs", base="independent", dtype="float64"),
        "cd": SpikeSlabRBM(**quick, learning="cd", early_stopping=True, partition=None),
        "penalties": SpikeSlabRBM(
            **quick,
            chains=Persistent(n_steps=2),
            penalty=Penalty(l2=0.01, sparsity_target=0.1),
            optimizer=SGD(momentum=0.5, averaging=0.5),
        ),
    },
    SubspaceRBM: {
        "auto": SubspaceRBM(2, 2, n_iter=20, random_state=0),
        "pcd": SubspaceRBM(**subspaces, learning="pcd"),
        "cd": SubspaceRBM(**subspaces, base="independent", learning="cd", dtype="float64"),
        "exact": SubspaceRBM(
            **subspaces, learning="exact", learning_rate=0.05, visible="bernoulli", features="all"
        ),
        "early_stopping": SubspaceRBM(
            **subspaces | {"n_iter": 20}, learning="pcd", base="chow-liu", early_stopping=True
        ),
        "pseudo_likelihood": SubspaceRBM(
            **subspaces,
            learning="pseudo_likelihood",
            visible="bernoulli",
            penalty=Penalty(l2=0.01),
            partition=None,
        ),
    },
    DeepBoltzmannMachine: {
        "deep": DeepBoltzmannMachine(**layered),
        "bound": DeepBoltzmannMachine(
            **layered | {"hidden_layer_sizes": (20, 16)}, early_stopping=True
        ),
        "deeper": DeepBoltzmannMachine(
            **layered | {"hidden_layer_sizes": (3, 3, 2)}, centering=None, penalty=Penalty(l2=0.01)
        ),
        "layerwise": DeepBoltzmannMachine(
            **layered,
            pretraining="layerwise",
            base="chow-liu",
            visible="bernoulli",
            partition=None,
        ),
        "one_layer": DeepBoltzmannMachine(
            **layered | {"hidden_layer_sizes": 3}, chains=FromData(n_steps=1), dtype="float64"
        ),
    },
    BoltzmannMachineDensity: {
        "auto": BoltzmannMachineDensity(random_state=0),
        "pseudo_likelihood": BoltzmannMachineDensity(
            "pseudo_likelihood", l2=0.01, random_state=0, dtype="float64"
        ),
        "ratio_matching": BoltzmannMachineDensity(
            "ratio_matching", batch_size=20, n_iter=5, early_stopping=True, random_state=0
        ),
        "probability_flow": BoltzmannMachineDensity(
            "probability_flow", l1=0.05, l2=0.0, partition=None, random_state=0
        ),
        "pcd": BoltzmannMachineDensity("pcd", n_iter=5, batch_size=20, l2=0.01, random_state=0),
        "perturb_and_map": BoltzmannMachineDensity(
            "perturb_and_map", n_iter=2, batch_size=30, l2=0.01, random_state=0
        ),
    },
    ScoreMatchingDensity: {
        "denoising": ScoreMatchingDensity(**small, **few_draws, base="gaussian"),
        "stack": ScoreMatchingDensity(**small),
        "exact": ScoreMatchingDensity(**exact, **on_gaussian),
        "sliced": ScoreMatchingDensity(
            **small, **few_draws, objective=Sliced(n_projections=2), base="gaussian"
        ),
        "multiscale": ScoreMatchingDensity(
            **small | {"sigma": (0.1, 2.0)}, **few_draws, objective="multiscale"
        ),
        "kernel": ScoreMatchingDensity(**small, **few_draws, base="kernel"),
        "bounds": ScoreMatchingDensity(**exact, **within, **few_draws),
        "no_base": ScoreMatchingDensity(**exact, **within, **few_draws, base=None),
        "early_stopping": ScoreMatchingDensity(
            **small, **few_draws, **on_gaussian, early_stopping=True
        ),
        "no_partition": ScoreMatchingDensity(**small, **on_gaussian, partition=None),
        "float64": ScoreMatchingDensity(
            **small, **few_draws, dtype="float64", base=MixtureBase(n_components=2)
        ),
        "module": ScoreMatchingDensity(**small | {"network": tanh}, **few_draws, **on_gaussian),
    },
    ContrastiveDivergenceDensity: {
        "persistent": ContrastiveDivergenceDensity(**sampled, **few_draws, base=MixtureBase(2)),
        "replay": ContrastiveDivergenceDensity(
            **small, **few_draws, **on_gaussian, chains=ReplayBuffer(n_steps=2, size=128)
        ),
        "data": ContrastiveDivergenceDensity(
            **small,
            **few_draws,
            **on_gaussian,
            chains=FromData(n_steps=2),
            sampler=Langevin(0.01),
        ),
        "noise": ContrastiveDivergenceDensity(**small, chains=FromNoise(n_steps=2)),
        "reweight": ContrastiveDivergenceDensity(
            **fixed_step | {"chains": Persistent(n_steps=2, reweight=True)}, **on_gaussian
        ),
        "kernel": ContrastiveDivergenceDensity(**fixed_step, base="kernel"),
        "bounds": ContrastiveDivergenceDensity(**fixed_step | {"sigma": None}, **within),
        "no_base": ContrastiveDivergenceDensity(
            **sampled | few_draws | {"sigma": None}, base=None, bounds=(-1000, 1000)
        ),
        "early_stopping": ContrastiveDivergenceDensity(
            **fixed_step, **on_gaussian, early_stopping=EarlyStopping(validation_fraction=0.3)
        ),
        "no_partition": ContrastiveDivergenceDensity(
            **fixed_step | {"partition": None}, **on_gaussian
        ),
        "float64": ContrastiveDivergenceDensity(**fixed_step, **on_gaussian, dtype="float64"),
        "module": ContrastiveDivergenceDensity(**fixed_step | {"network": tanh}, **on_gaussian),
        "refined": ContrastiveDivergenceDensity(
            **sampled,
            **few_draws,
            **on_gaussian,
            objective=Likelihood(kl_weight=0.1, entropy_weight=0.1, energy_l2=0.01, clip_norm=1.0),
        ),
        "discrepancy": ContrastiveDivergenceDensity(
            **small | {"sigma": None}, **few_draws, objective=Discrepancy(n_negatives=2)
        ),
        "binary": ContrastiveDivergenceDensity(**bits, base=None),
        "binary-tree": ContrastiveDivergenceDensity(**bits, base="chow-liu"),
        "binary-independent": ContrastiveDivergenceDensity(
            **against_noise, base="independent", chains=FromData(n_steps=2)
        ),
        "binary-no_partition": ContrastiveDivergenceDensity(**bits, partition=None),
        "binary-pseudo_likelihood": ContrastiveDivergenceDensity(
            **against_noise, objective="pseudo_likelihood"
        ),
        "one-hot-ratio_matching": ContrastiveDivergenceDensity(
            **against_noise | {"domain": Categorical((3, 3))}, objective="ratio_matching"
        ),
        "one-hot": ContrastiveDivergenceDensity(**levels),
        "one-hot-replay": ContrastiveDivergenceDensity(
            **levels | {"chains": ReplayBuffer(n_steps=2, size=128)}, base=None
        ),
    },
    FlowContrastiveDensity: {
        "maf": FlowContrastiveDensity(**flowing, **few_draws),
        "float64": FlowContrastiveDensity(
            **flowing, **few_draws, dtype="float64", early_stopping=True
        ),
    },
    NCEDensity: {
        "gaussian-noise": NCEDensity(**small, **few_draws, noise="gaussian"),
        "stack": NCEDensity(**small),
        "kernel": NCEDensity(**small, **few_draws, noise="kernel", early_stopping=True),
        "bridges": NCEDensity(**small, **few_draws, noise="gaussian", n_bridges=2),
        "ranking": NCEDensity(
            **small, **few_draws, noise="gaussian", form="ranking", noise_ratio=3
        ),
        "binary": NCEDensity(**against_noise),
        "one-hot": NCEDensity(**against_noise | {"domain": Categorical((3, 3))}),
    },
    BoostedDensity: {
        "trees": BoostedDensity(**boosted, **few_draws),
        "bounds": BoostedDensity(**boosted, **few_draws, bounds=(-1000, 1000)),
        "float64": BoostedDensity(**boosted, **few_draws, dtype="float64"),
        "bits": BoostedDensity("independent", **boosted, domain="binary"),
    },
    # Each objective by name or as an object; the modes of each are those of its own estimator.
    NeuralDensity: {
        "likelihood": NeuralDensity(
            **small,
            objective=ContrastiveDivergenceLearning(chains=Persistent(n_steps=2)),
            base="gaussian",
        ),
        "score_matching": NeuralDensity(**small, objective="score_matching", base="gaussian"),
        "sliced": NeuralDensity(
            **small,
            **few_draws,
            **on_gaussian,
            objective=ScoreMatching(form=Sliced(n_projections=2)),
        ),
        "nce": NeuralDensity(
            **small,
            objective=NoiseContrastiveEstimation(noise_ratio=2),
            base="mixture",
            early_stopping=True,
        ),
        "flow_contrastive": NeuralDensity(
            **small,
            **few_draws,
            objective=FlowContrastiveEstimation(flow="maf", n_flow_steps=3),
            dtype="float64",
        ),
        "binary": NeuralDensity(**against_noise, objective="pseudo_likelihood"),
        "binary-nce": NeuralDensity(**against_noise, objective="nce", partition=None),
    },
}


class Kind(NamedTuple):
    """How the estimators differ, as far as a contract of all must know."""

    rows: Callable  # of (n, d, seed)
    rounding: float  # relative, by which what is said of a row may depend on those beside it
    outputs: tuple[str, ...]  # methods of rows beside those of all estimators
    short: dict[str, Any]  # arguments that make sampling short
    numbers: tuple[Any, ...]  # types of the columns
    sampler: Any
    partition: Any
    wider: dict[str, Any]  # another number of weights
    searched: dict[str, list[Any]]
    later: tuple[dict[str, Any], ...]  # parameters set after a fit
    optimizers: tuple[dict[str, Any], ...]
    going_on: tuple[dict[str, Any], ...]  # parameters changed at a warm start
    discrete: bool = False  # of an estimator that takes real rows as well


PRECISIONS = ({"dtype": "float32"}, {"dtype": "float64"})
KINDS = {
    RBMEstimator: Kind(
        rows=binary_rows,
        rounding=0,
        outputs=("transform", "reconstruct", "pseudo_likelihood"),
        short={"n_steps": 5},
        numbers=(bool, int, np.uint8, np.float16, np.float32, np.float64, list),
        sampler=Gibbs(),
        partition=Exact(),
        wider={"n_components": 4},
        searched={"n_components": [2, 4]},
        later=(
            {"n_components": 5},
            *PRECISIONS,
            {"learning": "pcd"},
            {"learning": "cd"},
            {"chains": Persistent(n_chains=3)},
            {"optimizer__momentum": 0.5},
            {"learning_rate": 0.3},
            {"early_stopping": True},
            {"optimizer__averaging": 0.9},
            {"verbose": 1},
        ),
        optimizers=(
            {},
            {"optimizer__momentum": 0.9},
            {"net_params": {"optimizer": torch.optim.Adam}},
        ),
        going_on=(
            {"dtype": "float64"},
            {"chains": Persistent(n_chains=3)},
            {"learning": "cd"},
            {"centering": None},
        ),
    ),
    ScoreMatchingDensity: Kind(
        rows=real_rows,
        rounding=1e-4,  # products of few columns, which no padding evens out
        outputs=("score_function",),
        short={"n_steps": 5},
        numbers=(np.float16, np.float32, np.float64, list),
        sampler=HMC(),
        partition=ImportanceSampling(),
        wider={"network": MLP((9,))},
        searched={"network__hidden_sizes": [(4,), (8,)]},
        later=(
            {"network": MLP((5, 5))},
            *PRECISIONS,
            {"objective": "exact"},
            {"objective": "denoising"},
            {"objective": "multiscale"},
            {"base": None, "sigma": 0.7, "standardize": False},
            {"bounds": (-50, 50)},
            {"objective": Sliced(n_projections=3), "bounds": None},
            {"early_stopping": True, "optimizer": AdamW(averaging=0.9)},
        ),
        optimizers=(
            {},
            {"net_params": {"optimizer": torch.optim.RMSprop}},
        ),
        going_on=(
            {"dtype": "float64"},
            {"objective": "exact"},
            {"objective": "denoising"},
            {"objective": "sliced"},
            {"objective": "multiscale"},
            {"base": "mixture"},
            {"sigma": 0.7},
            {"optimizer": AdamW(weight_decay=0.1)},
        ),
    ),
}
KINDS[SubspaceRBM] = KINDS[RBMEstimator]._replace(
    wider={"n_components": 3},
    later=(
        {"n_components": 5},
        {"n_subspace": 3},
        {"features": "all"},
        *PRECISIONS,
        {"learning": "cd"},
        {"chains": Persistent(n_chains=3)},
        {"optimizer__momentum": 0.5},
        {"learning_rate": 0.3},
        {"early_stopping": True},
        {"optimizer__averaging": 0.9},
    ),
)
KINDS[DeepBoltzmannMachine] = KINDS[RBMEstimator]._replace(
    rounding=1e-5,
    outputs=("transform",),
    wider={"hidden_layer_sizes": (4, 2)},
    searched={"hidden_layer_sizes": [(2, 2), (4, 2)]},
    later=(
        {"hidden_layer_sizes": (5, 4, 3)},
        *PRECISIONS,
        {"pretraining": "layerwise"},
        {"chains": FromData()},
        {"chains": Persistent(n_chains=3)},
        {"optimizer__momentum": 0.5},
        {"mean_field__n_draws": 3},
        {"learning_rate": 0.3},
        {"early_stopping": True},
        {"optimizer__averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"chains": Persistent(n_chains=3)},
        {"chains": FromData()},
        {"centering": None},
    ),
)
KINDS[BoltzmannMachineDensity] = KINDS[RBMEstimator]._replace(
    rounding=1e-5,
    outputs=("conditional_proba", "pseudo_likelihood"),
    wider={"edges": np.eye(6, k=1) + np.eye(6, k=-1)},
    searched={"l2": [0.01, 0.1]},
    later=(
        *PRECISIONS,
        {"learning": "pcd"},
        {"learning": "probability_flow"},
        {"chains": Persistent(n_chains=3)},
        {"coding": "spin"},
        {"learning_rate": 0.3},
        {"early_stopping": True},
        {"optimizer__averaging": 0.9},
        {"verbose": 1},
    ),
    optimizers=(
        {},
        {"net_params": {"optimizer": torch.optim.Adam}},
    ),
    going_on=(
        {"dtype": "float64"},
        {"learning": "pcd"},
        {"learning": "pseudo_likelihood"},
        {"l2": 0.1},
    ),
)
KINDS[ContrastiveDivergenceDensity] = KINDS[ScoreMatchingDensity]._replace(
    sampler=MALA(0.2),
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"sampler": HMC(), "chains": Persistent(n_steps=7, n_chains=5)},
        {"chains": ReplayBuffer(size=1)},
        {"chains": "data"},
        {"base": None, "sigma": 0.7, "standardize": False},
        {"bounds": (-50, 50)},
        {"deconvolve": True},
        {"early_stopping": True, "objective": Likelihood(clip_norm=1.0)},
    ),
    going_on=(
        {"dtype": "float64"},
        {"chains": Persistent(n_chains=7)},
        {"chains": ReplayBuffer(size=80)},
        {"chains": "data"},
        {"chains": "noise"},
        {"sampler": HMC()},
        {"sampler": MALA(0.1)},
        {"chains": Persistent(n_steps=4, n_independence_steps=0)},
        {"base": "gaussian"},
        {"sigma": 0.7},
        {"optimizer": AdamW(weight_decay=0.1)},
    ),
)
KINDS[SpikeSlabRBM] = KINDS[RBMEstimator]._replace(
    rows=real_rows,
    rounding=1e-4,
    outputs=("transform", "reconstruct"),
    numbers=(np.float16, np.float32, np.float64, list),
    later=(
        {"n_components": 5},
        {"features": "slabs"},
        *PRECISIONS,
        {"learning": "cd"},
        {"chains": Persistent(n_chains=3)},
        {"learning_rate": 0.3, "optimizer__averaging": 0.9},
        {"early_stopping": True},
    ),
    going_on=(
        {"dtype": "float64"},
        {"chains": Persistent(n_chains=3)},
        {"learning": "cd"},
        {"penalty": Penalty(l2=0.1)},
    ),
)
KINDS[FlowContrastiveDensity] = KINDS[ScoreMatchingDensity]._replace(
    sampler=MALA(),
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"flow": "coupling", "flow_learning_rate": 0.01},
        {"sampler": HMC(), "n_flow_steps": 5},
        {"sigma": 0.7, "standardize": False},
        {"early_stopping": True, "optimizer__averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"flow_learning_rate": 0.01},
        {"sampler": HMC()},
        {"sigma": 0.7},
        {"optimizer": AdamW(weight_decay=0.1)},
    ),
)
KINDS[NCEDensity] = KINDS[ContrastiveDivergenceDensity]._replace(
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"sampler": HMC(), "noise_ratio": 2.5},
        {"form": "ranking"},
        {"sigma": 0.7, "standardize": False},
        {"bounds": (-50, 50)},
        {"early_stopping": True, "optimizer__averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"form": "ranking"},
        {"noise_ratio": 3},
        {"sampler": HMC()},
        {"noise": "kernel"},
        {"sigma": 0.7},
        {"optimizer": AdamW(weight_decay=0.1)},
    ),
)
# Another objective is a parameter, too.
KINDS[NeuralDensity] = KINDS[ContrastiveDivergenceDensity]._replace(
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"objective": "exact"},
        {"objective": "nce", "sampler": HMC()},
        {"objective": "flow_contrastive"},
        {"objective": ContrastiveDivergenceLearning(chains="data")},
        {"sigma": 0.7, "standardize": False},
        {"deconvolve": False},
        {"early_stopping": True, "optimizer": AdamW(averaging=0.9)},
    ),
    going_on=(
        {"dtype": "float64"},
        {"sampler": HMC()},
        {"objective": "score_matching"},
        {"objective": "nce"},
        {"base": "kernel"},
        {"sigma": 0.7},
        {"optimizer": AdamW(weight_decay=0.1)},
    ),
)
of_trees = {
    "short": {"n_steps": 2},
    "sampler": None,
    "wider": {"n_iter": 9},
    "searched": {"max_leaf_nodes": [2, 4]},
    "later": ({"max_leaf_nodes": 3}, {"dtype": "float64"}, {"base": "kernel"}, {"n_iter": 1}),
    "optimizers": (),
    "going_on": (),
}
KINDS[BoostedDensity] = KINDS[NCEDensity]._replace(**of_trees)
DISCRETE = KINDS[ContrastiveDivergenceDensity]._replace(
    discrete=True,
    outputs=(),
    numbers=(bool, int, np.uint8, np.float16, np.float32, np.float64, list),
    sampler=GibbsWithGradients(),
    partition=Exact(),
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"sampler": DiscreteLangevin(), "chains": Persistent(n_steps=7, n_chains=5)},
        {"chains": ReplayBuffer(size=1)},
        {"chains": "data"},
        {"base": "kernel", "sigma": 0.7},
        {"early_stopping": True, "objective": Likelihood(clip_norm=1.0)},
    ),
    going_on=(
        {"dtype": "float64"},
        {"chains": Persistent(n_chains=7)},
        {"chains": ReplayBuffer(size=80)},
        {"chains": "data"},
        {"chains": "noise"},
        {"sampler": DiscreteLangevin()},
        {"chains": Persistent(n_steps=4, n_independence_steps=0)},
        {"base": "independent"},
        {"base": None},
    ),
)
NOISE_CONTRASTIVE = DISCRETE._replace(
    later=(
        {"network": MLP((5, 5))},
        *PRECISIONS,
        {"sampler": DiscreteLangevin(), "noise_ratio": 2.5},
        {"form": "ranking"},
        {"early_stopping": True, "optimizer__averaging": 0.9},
    ),
    going_on=(
        {"dtype": "float64"},
        {"form": "ranking"},
        {"noise_ratio": 3},
        {"sampler": DiscreteLangevin()},
        {"noise": "independent"},
    ),
)

NEURAL = DISCRETE._replace(
    later=KINDS[NeuralDensity].later[:-2],
    going_on=(
        {"dtype": "float64"},
        {"sampler": DiscreteLangevin()},
        {"objective": "likelihood"},
        {"objective": "nce"},
        {"base": "independent"},
    ),
)
OF_BITS = {
    NCEDensity: NOISE_CONTRASTIVE,
    NeuralDensity: NEURAL,
    BoostedDensity: DISCRETE._replace(**of_trees),
}

INSTANCES = {
    f"{cls.__name__}-{name}": instance
    for cls, cases in CASES.items()
    for name, instance in cases.items()
}
# What the modes of an estimator cannot differ in, as it happens before or after them, is checked on
# one or two of them.
# A Boltzmann machine leads with a given penalty, as most of the time of a fit is the search of one.
GIVEN_PENALTY = "BoltzmannMachineDensity-pseudo_likelihood"
LEADS = [
    name
    for name in INSTANCES
    if name in (GIVEN_PENALTY, "RBMEstimator-auto", "SubspaceRBM-auto")
    or name.partition("-")[2]
    in (
        "pcd",
        "spikes",
        "deep",
        "denoising",
        "persistent",
        "replay",
        "gaussian-noise",
        "maf",
        "binary",
        "likelihood",
    )
]
# The first tier has one mode of each estimator, by enumeration and of bits too, of flows, which are
# slow, only where they have something of their own; two of what the base class and the engine do
# alike for all.
FIRST = [
    "RBMEstimator-auto",
    "RBMEstimator-pcd",
    "SpikeSlabRBM-spikes",
    "SubspaceRBM-pcd",
    "DeepBoltzmannMachine-deep",
    GIVEN_PENALTY,
    "ScoreMatchingDensity-denoising",
    "ContrastiveDivergenceDensity-persistent",
    "ContrastiveDivergenceDensity-binary",
    "NCEDensity-gaussian-noise",
    # NeuralDensity, the body of the last four, has a file of its own.
]
FLOW = "FlowContrastiveDensity-maf"
FEW = ["RBMEstimator-pcd", "ContrastiveDivergenceDensity-persistent"]
# One estimator of each body, where hidden units and objectives change nothing.
BODIES = [*FEW, "DeepBoltzmannMachine-deep", GIVEN_PENALTY, "ContrastiveDivergenceDensity-binary"]


def tiered(names, first):
    """Cases by name, of which the first tier has those in `first`."""
    return [
        pytest.param(INSTANCES[name], id=name, marks=() if name in first else full)
        for name in names
    ]


each_case = pytest.mark.parametrize("case", tiered(INSTANCES, FIRST))
# Trees are grown at once: no steps that may diverge, be continued or be stopped half way.
each_with_steps = pytest.mark.parametrize(
    "case",
    tiered([name for name in INSTANCES if not name.startswith("BoostedDensity")], FIRST),
)
each_body = pytest.mark.parametrize("case", tiered(INSTANCES, BODIES))
each_lead = pytest.mark.parametrize("case", tiered(LEADS, BODIES))
each_alike = pytest.mark.parametrize("case", tiered(LEADS, FEW))
with_log_z = pytest.mark.parametrize(
    "case",
    tiered([name for name, case in INSTANCES.items() if case.partition is not None], BODIES),
)


def each_case_at(*batches):
    """Every case at the second of three batches; some at all, with averaged weights as well."""
    chosen = [
        pytest.param(
            case,
            after,
            averaging,
            id=f"{name}-{after}-{averaging}",
            marks=() if name in FEW and averaging == 0.9 * (after == batches[2]) else full,
        )
        for name, case in INSTANCES.items()
        if type(case) is not BoostedDensity
        for after in batches
        for averaging in (0.0, 0.9)
        if name in FEW or (after, averaging) == (batches[1], 0.0)
    ]
    return pytest.mark.parametrize(("case", "after", "averaging"), chosen)


def kind(model):
    """What rows are decides, where an estimator takes several kinds."""
    domain = getattr(model, "domain", None)
    discrete = OF_BITS.get(type(model), DISCRETE)
    if type(model) is RBMEstimator and isinstance(model.hidden, SpikeSlab):
        spikes = KINDS[SpikeSlabRBM]
        return spikes._replace(later=(*KINDS[RBMEstimator].later, {"hidden__features": "slabs"}))
    if type(model) is RBMEstimator and model.base == "gaussian":
        return KINDS[RBMEstimator]._replace(rows=real_rows)
    if isinstance(domain, Categorical):
        return discrete._replace(rows=one_hot_rows)
    return discrete._replace(rows=binary_rows) if domain == "binary" else KINDS[type(model)]


def is_deterministic(case):
    """Whether all rows are used at every step, without chance, until the loss no longer falls."""
    return isinstance(case, BoltzmannMachineDensity) and fitted(case)._recipe.plan.searches


def of_columns(case, d):
    """The case for rows of d columns, of which many are not enumerated."""
    case = clone(case)
    if kind(case).rows is one_hot_rows:
        case.set_params(domain=Categorical((3,) * (d // 3)))
    if kind(case).discrete and d > 12 and case.partition is not None:
        case.set_params(**few_draws)
    if isinstance(case, BoltzmannMachineDensity) and d > 12:
        case.set_params(partition=None)
    return case


def data(model, n=60, d=6, seed=0):
    return kind(model).rows(n, d, seed)


def new_data(model):
    return data(model, 40, seed=1)


def fit(case, **params):
    return clone(case).set_params(**params).fit(data(case))


@functools.cache
def _fitted(case):
    return fit(case)


def fitted(case):
    """A copy of the case after one fit, which is shared: fits cost more than copies."""
    return copy.deepcopy(_fitted(case))


def net_weights(model):
    """Everything that is trained, and what is stored with it, by name."""
    stored = model.net_.module_.state_dict().items()
    return {name: w.double().numpy() for name, w in stored if w.numel()}


def assert_same_model(one, other):
    a, b = net_weights(one), net_weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert_array_equal(a[name], b[name], err_msg=name)


def moved(one, other):
    """How far apart the weights of two models are."""
    a, b = net_weights(one), net_weights(other)
    return max(np.abs(a[name] - b[name]).max() for name in a)


def outputs(model, X):
    """All that a model says of rows, without chance."""
    names = ("energy", "score_samples", "decision_function", "predict", *kind(model).outputs)
    return {name: getattr(model, name)(X) for name in names}


def assert_same_outputs(one, other, case=""):
    assert one.keys() == other.keys()
    for name in one:
        assert_array_equal(one[name], other[name], err_msg=f"{name} {case}")


def draw(model, n=9, seed=0):
    return model.sample(n, random_state=seed, **kind(model).short)


def impute(model, X, seed=0):
    return model.impute(X, random_state=seed, **kind(model).short)


def with_missing(model, X):
    """X with about every fourth number unknown; of one-hot columns all levels or none."""
    width = 3 if kind(model).rows is one_hot_rows else 1
    unknown = np.random.default_rng(5).random((len(X), X.shape[1] // width)) < 0.25
    return np.where(np.repeat(unknown, width, axis=1), np.nan, X)


def denoise(model, X):
    if not hasattr(model, "denoise"):
        return None
    """Noise taken off: by sampling, by the noise level of training, or else by a given one."""
    if isinstance(model, RBMEstimator) or kind(model).discrete:
        return model.denoise(X, random_state=0, n_steps=5)
    return model.denoise(X, 0.3 if model.sigma_ is None else None)


def global_generators():
    """States of the global generators of Python, NumPy and torch."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()


# ------------------------------------------------------------------------------
# scikit-learn's checks
# ------------------------------------------------------------------------------


def test_every_estimator_has_cases():
    assert set(walk(BaseDensity)) == set(CASES) == set(KINDS)


def unequal_by_design(estimator):
    """Weights in mini-batches are not repeated rows; with one full batch they are (below)."""
    if isinstance(estimator, BoltzmannMachineDensity) and estimator.learning == "pseudo_likelihood":
        return {}  # all rows are used at every step
    spikes = isinstance(getattr(estimator, "_hidden", None), SpikeSlab)
    if spikes and estimator.learning != "cd":
        return {}  # copies of rows of numbers are merged, and with them the batches are the same
    reason = "mini-batches and sampled negatives"
    name = "check_sample_weight_equivalence_on_{}_data"
    # scikit-learn 1.6 asks for both of estimators that take no sparse rows, too.
    both = get_tags(estimator).input_tags.sparse or sklearn.__version__.startswith("1.6.")
    kinds = ("dense", "sparse") if both else ("dense",)
    return {name.format(kind): reason for kind in kinds}


# The defaults of each class, made small, one of them with the default base.
smallest = {"network": MLP((4,)), "n_iter": 1, "random_state": 0} | few_draws
DEFAULTS = {
    # The modes have the choice of a base, which takes a second of a table of 300 rows.
    "RBMEstimator": RBMEstimator(2, base="independent", n_iter=2, random_state=0),
    "SpikeSlabRBM": SpikeSlabRBM(2, n_iter=2, random_state=0),
    "SubspaceRBM": SubspaceRBM(2, 2, n_iter=2, random_state=0),
    "DeepBoltzmannMachine": DeepBoltzmannMachine((3, 2), n_iter=2, random_state=0),
    "BoltzmannMachineDensity": BoltzmannMachineDensity(n_iter=2, l2=0.01, random_state=0),
    "ScoreMatchingDensity": ScoreMatchingDensity(**smallest),
    "ContrastiveDivergenceDensity": ContrastiveDivergenceDensity(
        **smallest, base="gaussian", chains=Persistent(n_steps=1), sampler=MALA(0.3)
    ),
    "FlowContrastiveDensity": FlowContrastiveDensity(**smallest, flow="maf", n_flow_steps=1),
    "NCEDensity": NCEDensity(**smallest, noise="gaussian"),
    "BoostedDensity": BoostedDensity("gaussian", n_iter=1, random_state=0, **few_draws),
    "NeuralDensity": NeuralDensity(
        **smallest,
        objective=ContrastiveDivergenceLearning(chains=Persistent(n_steps=1)),
        base="gaussian",
        sampler=MALA(0.3),
    ),
}
# The first tier has the checks of the quickest fit with latent units, and those of training of the
# quickest one with a network.
CHECKED_FIRST = ("RBMEstimator",)
ALIKE = ("ContrastiveDivergenceDensity",)
# The checks fit real numbers. A neural energy of bits or of one-hot columns refuses these by
# design, as it has no probability for them; all other contracts below it must keep.
MODES = {
    name: clone(case).set_params(n_iter=1)
    for name, case in INSTANCES.items()
    if not kind(case).discrete
}

harmless = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "Bits take values in",
        ".*rows are not binary",
        "X. columns",
        "Columns .* (are constant|have few distinct)",
    )
]


def ignore_harmless_warnings(test):
    for mark in harmless:
        test = mark(test)
    return test


@ignore_harmless_warnings
@parametrize_with_checks(
    DEFAULTS | MODES, unequal_by_design, first=CHECKED_FIRST, modes=MODES, alike=ALIKE
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


LEFT_OUT = [
    "check_dataframe_column_names_consistency",
    "check_n_features_in_after_fitting",
    "check_param_validation",
]
LEFT_OUT_OF_TRANSFORMERS = [
    "check_get_feature_names_out_error",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
]


@ignore_harmless_warnings
@pytest.mark.parametrize(
    ("case", "check"),
    [
        pytest.param(case, check, id=f"{name}-{check}", marks=() if name in CHECKED_FIRST else full)
        for name, case in DEFAULTS.items()
        for check in LEFT_OUT + LEFT_OUT_OF_TRANSFORMERS * hasattr(case, "transform")
    ],
)
def test_checks_that_check_estimator_leaves_out(case, check):
    getattr(estimator_checks, check)(type(case).__name__, clone(case))


# ------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------


double = {"n_iter": 3, "batch_size": 1000, "dtype": "float64"}
rbm = {"n_components": 3, "random_state": 0, "dtype": "float64"}
pcd = double | rbm | {"chains": Persistent(n_chains=50)}
matching = small | double | few_draws | {"objective": "exact"}
# As many chains whatever the number of rows, and no noise in training, which two copies of a row
# would each get their own of.
chains_full = small | double | few_draws | {"sigma": None}
chains_full |= {"chains": Persistent(n_steps=2, n_chains=50)}
bits_full = bits | double | {"chains": Persistent(n_steps=2, n_chains=50)}
# One draw of the noise, however many rows there are.
nce_full = small | double | few_draws | {"sigma": None, "noise_ratio": 0.001}

# In one full batch a weight is a number of rows; where the copies of a row start chains of their
# own, from noise, from a replay buffer and, for samplers that draw anything, from data, only on
# average. So against flows, which make as many draws as there are rows: see
# tests/estimators/neural/test_flow_contrastive.py.
WEIGHTED = {
    "rbm-line_search": RBMEstimator(**rbm, learning="exact", n_iter=7),
    "rbm-exact": RBMEstimator(**rbm | double, learning="exact", learning_rate=0.1),
    "rbm-pcd": RBMEstimator(**pcd),
    "rbm-local": RBMEstimator(**rbm | double, learning="ratio_matching", learning_rate=0.1),
    "rbm-subspaces": SubspaceRBM(**pcd | {"n_components": 2, "n_subspace": 2}),
    "deep": DeepBoltzmannMachine((3, 2), random_state=0, **double, chains=Persistent(n_chains=50)),
    "rbm-penalty": RBMEstimator(
        **pcd, centering=None, penalty=Penalty(sparsity_target=0.1, l2=0.01)
    ),
    "score-gaussian": ScoreMatchingDensity(**matching, base="gaussian"),
    "score-mixture": ScoreMatchingDensity(**matching, base="mixture"),
    "score-kernel": ScoreMatchingDensity(**matching, base="kernel"),
    "score-bounds": ScoreMatchingDensity(**matching, bounds=(-9, None)),
    "chains-gaussian": ContrastiveDivergenceDensity(**chains_full, base="gaussian"),
    "chains-mixture": ContrastiveDivergenceDensity(**chains_full, base="mixture"),
    "chains-kernel": ContrastiveDivergenceDensity(**chains_full, base="kernel"),
    "chains-bounds": ContrastiveDivergenceDensity(**chains_full, bounds=(-9, None)),
    "chains-reweight": ContrastiveDivergenceDensity(
        **chains_full | {"chains": Persistent(n_steps=2, n_chains=50, reweight=True)},
        base="gaussian",
    ),
    "chains-penalties": ContrastiveDivergenceDensity(
        **chains_full,
        base="gaussian",
        objective=Likelihood(energy_l2=0.1, clip_norm=0.1, kl_weight=0.1),
    ),
    "chains-data": ContrastiveDivergenceDensity(
        **chains_full | {"chains": FromData(n_steps=2, n_independence_steps=0)},
        base="gaussian",
        sampler=Langevin(0.05, noise_scale=0.0),
        objective=Likelihood(energy_l2=0.1),
    ),
    "nce-mixture": NCEDensity(**nce_full, noise="mixture"),
    "nce-kernel": NCEDensity(**nce_full, noise="kernel"),
    "nce-bridges": NCEDensity(**nce_full, noise="gaussian", n_bridges=2),
    "nce-ranking": NCEDensity(**nce_full, noise="gaussian", form="ranking"),
    "nce-binary": NCEDensity(**nce_full | against_noise | {"n_iter": 3, "sigma": "auto"}),
    "chains-binary": ContrastiveDivergenceDensity(**bits_full),
    "local-binary": ContrastiveDivergenceDensity(
        **{k: v for k, v in bits_full.items() if k != "chains"}, objective="probability_flow"
    ),
    "chains-binary-no_base": ContrastiveDivergenceDensity(**bits_full, base=None),
    "chains-one-hot": ContrastiveDivergenceDensity(**bits_full | {"domain": Categorical((3, 3))}),
}


def later(name, as_rows):
    """Whether a case repeats another one: its base by the weights of another estimator."""
    repeats = ("score-gaussian", "chains-mixture", "chains-kernel", "chains-bounds", "nce-mixture")
    return as_rows is not np.asarray or name in (
        *repeats,
        "chains-binary-no_base",
        "chains-one-hot",
    )


@pytest.mark.parametrize(
    ("name", "as_rows"),
    [
        pytest.param(name, as_rows, marks=full if later(name, as_rows) else ())
        for name, model in WEIGHTED.items()
        for as_rows in (np.asarray, sp.csr_array)
        if as_rows is np.asarray or get_tags(model).input_tags.sparse
    ],
)
def test_integer_weights_are_repeated_rows(name, as_rows):
    model = WEIGHTED[name]
    X, X_new = data(model), new_data(model)
    count = np.random.default_rng(3).integers(0, 5, len(X))
    weighted = clone(model).fit(as_rows(X), sample_weight=count)
    repeated = clone(model).fit(as_rows(np.repeat(X, count, axis=0)))
    assert_allclose(weighted.score_samples(X_new), repeated.score_samples(X_new), rtol=1e-7, atol=0)
    assert weighted.threshold_ == pytest.approx(repeated.threshold_, rel=1e-7)
    assert_array_equal(weighted.predict(X_new), repeated.predict(X_new))


@pytest.mark.parametrize(
    "name",
    named(["rbm-exact", "rbm-pcd", "score-kernel"], WEIGHTED),
)
def test_the_scale_of_weights_does_not_matter(name):
    model = WEIGHTED[name]
    X = data(model)
    weight = np.random.default_rng(3).random(len(X))
    one = clone(model).fit(X, sample_weight=weight)
    other = clone(model).fit(X, sample_weight=8 * weight)
    assert_allclose(one.score_samples(X), other.score_samples(X), rtol=1e-7, atol=0)


@each_body
def test_rows_of_weight_zero_are_not_there(case):
    X = data(case)
    weight = np.ones(len(X))
    weight[::3] = 0
    with_zeros = clone(case).fit(X, sample_weight=weight)
    without = clone(case).fit(X[weight > 0], sample_weight=weight[weight > 0])
    assert_same_model(with_zeros, without)
    assert with_zeros.threshold_ == without.threshold_


@each_lead
def test_equal_weights_are_no_weights(case):
    case = clone(case).set_params(dtype="float64")
    weighted = clone(case).fit(data(case), sample_weight=np.full(60, 0.3))
    expected = net_weights(fit(case))
    for name, found in net_weights(weighted).items():
        assert_allclose(found, expected[name], rtol=1e-6, atol=1e-9, err_msg=name)


# ------------------------------------------------------------------------------
# Randomness
# ------------------------------------------------------------------------------


@each_body
def test_fit_sets_only_names_that_end_in_an_underscore(case):
    new = set(vars(fitted(case))) - set(vars(clone(case)))
    assert {name for name in new if not name.endswith("_") and not name.startswith("_")} == set()


@each_case
def test_the_seed_decides_everything(case):
    X, one, same, other = data(case), fitted(case), fit(case), fit(case, random_state=1)
    X_missing = with_missing(case, X)
    assert_array_equal(one.score_samples(X), same.score_samples(X))
    if not is_deterministic(case):
        assert not np.array_equal(one.score_samples(X), other.score_samples(X))
    for use, rows in ((draw, 20), (impute, X_missing)):
        found = use(one, rows, 3)
        assert_array_equal(found, use(same, rows, 3))
        assert not np.array_equal(found, use(one, rows, 4))


@each_alike
def test_a_random_state_instance_is_consumed(case):
    model = fit(case, random_state=np.random.RandomState(0))
    assert_same_model(model, fit(case, random_state=np.random.RandomState(0)))
    state = np.random.RandomState(0)
    assert not np.array_equal(draw(model, 20, state), draw(model, 20, state))


@each_body
def test_global_generators_are_not_touched(case):
    before, X = global_generators(), data(case)
    model = fit(case)
    if hasattr(model, "partial_fit"):
        model.partial_fit(X)
    outputs(model, X)
    model.score(X)
    draw(model)
    impute(model, with_missing(case, X))
    denoise(model, X)
    assert global_generators() == before


@each_alike
def test_without_a_seed_numpys_global_generator_decides(case):
    np.random.seed(0)  # noqa: NPY002
    one, other = fit(case, random_state=None), fit(case, random_state=None)
    np.random.seed(0)  # noqa: NPY002
    assert_same_model(one, fit(case, random_state=None))
    assert is_deterministic(case) or moved(one, other) > 0


# ------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------


# Numbers of columns at which matrix products round in ways of their own; most modes at one alone.
SHAPES = [
    pytest.param(
        case,
        as_rows,
        d,
        id=f"{name}-{as_rows.__name__}-{d}",
        marks=() if name in FIRST and d == 33 and as_rows is np.asarray else full,
    )
    for name, case in INSTANCES.items()
    for as_rows in (np.asarray, sp.csr_array)
    if as_rows is np.asarray or (name in LEADS and get_tags(case).input_tags.sparse)
    for d in (3, 6, 33, 64)
    if d == 33 or (name in LEADS and (d == 3 or kind(case).rounding == 0))
]


@pytest.mark.parametrize(("case", "as_rows", "d"), SHAPES)
def test_score_samples_of_a_row_does_not_depend_on_its_neighbours(case, as_rows, d):
    rows, case = data(case, 600, d), of_columns(case, d)
    if "n_components" in case.get_params():
        case.set_params(n_components=5)
    model = case.set_params(n_iter=1).fit(rows[:60])
    expected, rounding = outputs(model, rows), kind(case).rounding
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 255, 257):  # rows are mapped in chunks of 256
        pick = rng.permutation(600)[:size]
        for name, values in expected.items():
            found = getattr(model, name)(as_rows(rows[pick]))
            if name == "predict":  # the row that is the threshold may be rounded to either side
                least = rounding * max(1.0, np.abs(expected["energy"]).max())
                sure = np.abs(expected["decision_function"][pick]) >= least
                assert_array_equal(found[sure], values[pick][sure])
            else:
                assert_allclose(found, values[pick], rtol=rounding, atol=rounding, err_msg=name)


@each_alike
def test_memory_layout_does_not_matter(case):
    X, X_new, model = data(case), new_data(case), fitted(case)
    expected = outputs(model, X_new)
    for copies in (np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2]):
        assert_same_outputs(outputs(model, copies(X_new)), expected)
        assert_same_model(clone(case).fit(copies(X)), model)


class Refused(PartitionEstimator):
    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        raise RuntimeError("log Z was asked for")


class Counted(PartitionEstimator):
    calls = 0

    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        type(self).calls += 1
        return LogPartition(1.5, 0.0, 1.5, 1.5, "exact", 1.5)


@each_body
def test_only_likelihoods_compute_log_z(case):
    X, model = data(case), fit(case, partition=Refused())
    if hasattr(model, "partial_fit"):
        model.partial_fit(X)
    for name in ("energy", "decision_function", "predict", *kind(case).outputs):
        getattr(model, name)(X)
    draw(model, 2)
    impute(model, with_missing(case, X))
    denoise(model, X)
    by_pickle(model).predict(X)
    for ask in (lambda: model.score_samples(X), lambda: model.score(X), lambda: model.offset_):
        with pytest.raises(RuntimeError, match="log Z was asked for"):
            ask()


@each_alike
def test_log_z_is_computed_once_per_fit(case, monkeypatch):
    monkeypatch.setattr(Counted, "calls", 0)
    X, model = data(case), fit(case, partition=Counted())
    assert Counted.calls == 0
    for _ in range(2):
        model.score_samples(X)
        model.score(X)
        _ = model.offset_, model.log_partition_, model.log_partition_bounds_
    assert Counted.calls == 1
    by_pickle(model).score(X)
    assert Counted.calls == 1  # stored with the model
    model.fit(X).score(X)
    assert Counted.calls == 2
    model.partial_fit(X).score(X)
    assert Counted.calls == 3


@each_body
def test_using_a_model_leaves_its_attributes_alone(case):
    X, model = data(case), fitted(case)
    before = dict(vars(model))
    stored = joblib.hash([model.history_, model.threshold_, net_weights(model)])
    outputs(model, X)
    model.score(X)
    draw(model, 3)
    impute(model, with_missing(case, X))
    denoise(model, X)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert stored == joblib.hash([model.history_, model.threshold_, net_weights(model)])


@each_body
def test_decision_is_the_score_above_the_offset(case):
    X, X_new, model = data(case), new_data(case), fitted(case)
    decision = model.decision_function(X_new)
    assert_allclose(decision, model.score_samples(X_new) - model.offset_, rtol=0, atol=1e-9)
    assert_array_equal(model.predict(X_new), np.where(decision >= 0, 1, -1))
    assert 0 < (model.predict(X) == -1).sum() <= 0.1 * len(X) + 1


@with_log_z
def test_score_is_the_mean_log_likelihood(case):
    """Or somewhat less, where log Z is estimated: by its largest credible value."""
    X, model = new_data(case), fitted(case)
    log_z, (lower, upper) = model.log_partition_, model.log_partition_bounds_
    assert_allclose(model.score_samples(X), -model.energy(X) - log_z, rtol=0, atol=1e-9)
    assert lower <= log_z
    assert not upper < log_z  # nan where there is none
    mean = model.score_samples(X).mean()
    assert model.score(X) <= mean + 1e-9
    if model.log_partition_kind_ == "exact":
        assert model.log_partition_std_ == 0
        assert model.score(X) == pytest.approx(mean, abs=1e-9)


@each_with_steps
def test_without_a_partition_no_log_z_enters(case):
    X, model = data(case), fit(case, partition=None)
    assert_array_equal(model.score_samples(X), -model.energy(X))
    assert model.log_partition_ == 0
    assert model.log_partition_method_ == "none"
    assert model.offset_ == -model.threshold_
    assert np.isfinite(model.score(X))


# ------------------------------------------------------------------------------
# Storage
# ------------------------------------------------------------------------------


def ways_to_store(*values):
    """All of them; skops asks about types of others, as functions and optimizers of users are.

    joblib and deepcopy go by what pickle does; skops takes an object apart.
    """
    of_others = any(value is tanh or isinstance(value, type) for value in values)
    return [by_pickle] if of_others else [by_pickle, by_skops]


@each_case
def test_a_stored_model_is_the_same_model(case):
    X, model = new_data(case), _fitted(case)  # itself, as copies have been stored
    expected, score, X_missing = outputs(model, X), model.score(X), with_missing(case, X)
    for store in ways_to_store(*case.get_params().values()):
        loaded = store(model)
        assert_same_model(model, loaded)
        assert_same_outputs(outputs(loaded, X), expected, store.__name__)
        assert loaded.score(X) == score
        assert loaded.history_ == model.history_
        assert loaded.get_params().keys() == model.get_params().keys()
    assert_array_equal(draw(loaded), draw(model))
    assert_array_equal(impute(loaded, X_missing), impute(model, X_missing))


@each_alike
def test_an_unfitted_model_is_stored(case):
    by_skops_or_pickle = ways_to_store(*case.get_params().values())[-1]
    for store in (by_joblib, copy.deepcopy, by_pickle, by_skops_or_pickle):
        loaded = store(clone(case))
        assert repr(loaded) == repr(clone(case))
        with pytest.raises(NotFittedError):
            loaded.predict(data(case))
    assert_same_model(loaded.fit(data(case)), fitted(case))


@pytest.mark.parametrize(
    ("case", "params"),
    [
        pytest.param(
            case,
            params,
            id=f"{name}-{'-'.join(params)}",
            marks=() if name in FEW or (name in BODIES and not params) else full,
        )
        for name, case in INSTANCES.items()
        for params in kind(case).optimizers
        if name in LEADS or not params
    ],
)
def test_a_stored_stream_goes_on_as_if_it_had_not_stopped(case, params):
    model = clone(case).set_params(learning_rate=0.05, batch_size=15, **params)
    X, X_new = data(case)[:30], new_data(case)[:30]
    model.partial_fit(X).partial_fit(X_new)
    streams = [store(model) for store in ways_to_store(*model.get_params().values())]
    assert all(stream.net_ is not model.net_ for stream in streams)
    for rows in (X_new, X):
        model.partial_fit(rows)
        for stream in streams:
            assert_same_model(model, stream.partial_fit(rows))
            assert stream.n_iter_ == model.n_iter_


@each_alike
def test_a_stored_fit_is_the_start_of_the_same_stream(case):
    X, model = new_data(case), fit(case)
    ways = ways_to_store(*case.get_params().values())
    streams = [store(model) for store in (*ways, by_joblib, copy.deepcopy)]
    model.partial_fit(X)
    for stream in streams:
        assert_same_model(model, stream.partial_fit(X))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@each_alike
def test_a_model_from_a_missing_device_is_loaded_on_the_cpu(case):
    X, model = data(case), fitted(case)
    expected = model.score_samples(X)
    model.device = "cuda"
    for store in ways_to_store(*case.get_params().values()):
        with pytest.warns(UserWarning, match="cuda.*not available"):
            loaded = store(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_array_equal(loaded.score_samples(X), expected)
            draw(loaded, 2)
            loaded.partial_fit(X)
        with pytest.raises(ValueError, match='cuda.*Pass device="auto"'):
            loaded.fit(X)


@each_alike
def test_a_clone_is_not_fitted(case):
    model = clone(fit(case, net_params={"callbacks": []}, sampler=kind(case).sampler))
    with pytest.raises(NotFittedError):
        model.score_samples(data(case))
    assert not [name for name in vars(model) if name.endswith("_")]


@each_lead
def test_a_parameter_set_after_fit_waits_for_the_next_fit(case):
    """As with every scikit-learn estimator: the fitted model stays what it is."""
    X, model = new_data(case), fitted(case)
    X_missing = with_missing(case, X)
    expected, drawn, imputed = outputs(model, X), draw(model, 2), impute(model, X_missing)
    for later in kind(case).later:
        model.set_params(**later)
        assert_same_outputs(outputs(model, X), expected, later)
    for same in (model, by_pickle(model)):
        assert_same_outputs(outputs(same, X), expected)
        assert_array_equal(draw(same, 2), drawn)
        assert_array_equal(impute(same, X_missing), imputed)


# ------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------


@each_with_steps
def test_warm_start_goes_on(case):
    X, model = data(case), clone(case).set_params(warm_start=True)
    first = by_pickle(model.fit(X))
    second = by_pickle(model.fit(X))
    assert second.n_iter_ > first.n_iter_ or is_deterministic(case)  # from optimum to optimum
    if not (is_deterministic(case) or case.early_stopping):  # which may find the start best
        assert moved(first, second) > 0
    assert_same_model(by_pickle(first).set_params(n_iter=0).fit(X), first)
    assert_same_model(model.set_params(warm_start=False).fit(X), first)


@each_lead
def test_warm_start_with_other_weights_is_refused(case):
    model = fitted(case).set_params(warm_start=True, **kind(case).wider)
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(data(case))


@pytest.mark.parametrize("case", tiered(LEADS, [*FEW, "ContrastiveDivergenceDensity-binary"]))
def test_warm_start_with_other_settings_goes_on_or_says_why_not(case):
    for going_on in kind(case).going_on:
        model = fitted(case).set_params(warm_start=True, **going_on)
        try:
            model.fit(data(case))
        except ValueError as error:
            if "warm_start" not in str(error):
                with pytest.raises(ValueError, match=re.escape(str(error))):  # nor without one
                    clone(model).fit(data(case))
        else:
            assert np.isfinite(model.score(data(case))), going_on


@each_with_steps
def test_partial_fit_is_one_pass(case, monkeypatch):
    """One step of each batch: as many as there are batches."""
    monkeypatch.setattr(BatchCounter, "calls", 0)
    model = clone(case).set_params(batch_size=15, net_params={"callbacks": [BatchCounter()]})
    model.partial_fit(data(case)[:50])
    assert BatchCounter.calls == 4
    assert model.n_iter_ == 1
    model.partial_fit(data(case)[:15])
    assert BatchCounter.calls == 5
    assert model.n_iter_ == 2


@each_with_steps
def test_partial_fit_goes_on_from_fit(case):
    model, before = fitted(case), fitted(case)
    model.partial_fit(data(case))
    largest = max(np.abs(w).max() for w in net_weights(before).values())
    assert 0 < moved(model, before) < 0.5 * largest + 0.2


@each_alike
def test_fit_forgets_the_stream(case):
    model = clone(case).partial_fit(new_data(case)).fit(data(case))
    assert_same_model(model, fitted(case))


# ------------------------------------------------------------------------------
# The net
# ------------------------------------------------------------------------------


class BatchCounter(Callback):
    calls = 0

    def on_batch_end(self, net, training=True, **kwargs):
        type(self).calls += bool(training)


class EpochCounter(Callback):
    calls = 0

    def on_epoch_end(self, net, **kwargs):
        type(self).calls += 1


@each_alike
def test_callbacks_are_called(case, monkeypatch):
    monkeypatch.setattr(BatchCounter, "calls", 0)
    monkeypatch.setattr(EpochCounter, "calls", 0)
    callbacks = [("batches", BatchCounter()), ("epochs", EpochCounter())]
    model = fit(case, net__callbacks=callbacks, learning_rate=0.01, batch_size=10)
    assert EpochCounter.calls == model.n_iter_
    assert BatchCounter.calls == model.n_iter_ * 6


@each_alike
def test_counting_batches_does_not_change_training(case):
    assert_same_model(fit(case, net__callbacks=[BatchCounter()]), fitted(case))


@each_alike
def test_the_optimizer_can_be_replaced(case):
    for optimizer in (torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD):
        model = clone(case).set_params(
            net__optimizer=optimizer, net__lr=0.01, optimizer__schedule="constant"
        )
        assert model.get_params()["net__optimizer"] is optimizer
        assert model.net_params == {"optimizer": optimizer, "lr": 0.01}
        model.fit(data(case))
        assert type(model.net_.optimizer_) is optimizer
        assert model.history_[0]["lr"] == 0.01
        assert moved(model, fitted(case)) > 0


@each_alike
def test_optimizer_arguments_reach_the_optimizer(case):
    model = fit(case, net__optimizer__weight_decay=0.01, net__lr=0.02)
    assert model.net_.optimizer_.param_groups[-1]["weight_decay"] == 0.01


@each_alike
def test_net_parameters_are_the_parameters_of_the_same_meaning(case):
    case = clone(case).set_params(optimizer__schedule="constant")
    by_net = fit(case, net__lr=0.03, net__batch_size=10)
    by_name = fit(case, learning_rate=0.03, batch_size=10)
    assert_same_model(by_net, by_name)
    assert by_net.history_[0]["lr"] == by_net.history_[-1]["lr"] == 0.03
    assert by_net.net_.batch_size == 10


@each_alike
def test_setting_a_net_parameter_leaves_the_given_dict_alone(case):
    given = {"lr": 0.1}
    model = clone(case)
    model.net_params = given
    other = clone(model)
    model.set_params(net__lr=0.2)
    assert given == {"lr": 0.1}
    assert other.get_params()["net__lr"] == 0.1
    assert clone(model).get_params()["net__lr"] == 0.2


@pytest.mark.parametrize("name", ["optimiser", "modle", "module", "criterion", "learning_rate"])
@each_alike
def test_a_misspelt_net_parameter_is_answered_with_the_valid_ones(case, name):
    valid = f"{name}.*optimizer.*lr.*callbacks"
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(**{f"net__{name}": 1})
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).fit(data(case))
    with pytest.raises(ValueError, match=valid):
        clone(case).set_params(net_params={name: 1}).partial_fit(data(case))


@each_lead
def test_given_parts_are_cloned(case):
    sampler, partition = clone(kind(case).sampler), clone(kind(case).partition)
    model = fit(case, sampler=sampler, partition=partition)
    model.score(data(case))
    draw(model)
    assert model.sampler is sampler
    assert model.partition is partition
    assert model.sampler_ is not sampler
    assert vars(sampler) == vars(kind(case).sampler)
    assert vars(partition) == vars(kind(case).partition)


@each_alike
def test_a_grid_search_in_a_pipeline(case):
    """Also over parameters of objects that defaults stand for."""
    if getattr(case, "network", None) is tanh:
        case = clone(case).set_params(network=MLP((8,)))
    name = type(case).__name__.lower()
    case = clone(case)
    (searched, values), *_ = kind(case).searched.items()
    grid = {
        f"{name}__{searched}": values,
        f"{name}__net__lr": [0.001, 0.1],
        f"{name}__optimizer__schedule": ["constant"],
    }
    case.set_params(partition=clone(kind(case).partition))
    pipeline = make_pipeline(FunctionTransformer(), case)
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(data(case))
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_[-1]
    assert best.get_params()[searched] == search.best_params_[f"{name}__{searched}"]
    assert best.history_[-1]["lr"] == search.best_params_[f"{name}__net__lr"]
    assert len(np.unique(search.cv_results_["mean_test_score"])) == 4
    assert case.net_params is None
    assert case.optimizer is None


# ------------------------------------------------------------------------------
# Inputs and outputs
# ------------------------------------------------------------------------------


@each_alike
def test_frames(case):
    X, columns, plain = data(case), [f"column {i}" for i in range(6)], fitted(case)
    expected, X_missing = outputs(plain, X), with_missing(case, X)
    imputed, score = impute(plain, X_missing), plain.score(X)
    for library in map(pytest.importorskip, ("pandas", "polars")):
        frame, missing = (
            library.DataFrame(dict(zip(columns, rows.T, strict=True))) for rows in (X, X_missing)
        )
        model = clone(case).fit(frame)
        assert_same_model(model, plain)
        assert list(model.feature_names_in_) == columns
        assert_same_outputs(outputs(model, frame), expected, library.__name__)
        assert model.score(frame) == score
        assert_array_equal(impute(model, missing), imputed)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[columns[::-1]])


@each_alike
def test_every_kind_of_number_gives_the_same_model(case):
    X, expected = data(case), fitted(case)
    scores = expected.score_samples(X)
    for numbers in kind(case).numbers:
        rows = X.tolist() if numbers is list else X.astype(numbers)
        model = clone(case).fit(rows)
        assert_same_model(model, expected)
        assert model.threshold_ == expected.threshold_
        assert_array_equal(model.score_samples(rows), scores, err_msg=str(numbers))
        assert all(p.dtype == getattr(torch, model.dtype) for p in model.energy_.parameters())
        for method in ("score_samples", "energy", "decision_function"):
            assert getattr(model, method)(rows).dtype == np.float64


@each_lead
def test_input_is_not_changed(case):
    rows = data(case)
    X_missing = with_missing(case, rows)
    before = rows.copy(), X_missing.copy()
    rows.setflags(write=False)
    X_missing.setflags(write=False)
    model = clone(case).fit(rows).partial_fit(rows)
    outputs(model, rows)
    impute(model, rows)
    impute(model, X_missing)
    denoise(model, rows)
    assert_array_equal(rows, before[0])
    assert_array_equal(X_missing, before[1])


@each_body
def test_known_entries_are_returned_as_they_are(case):
    X, model = new_data(case), fitted(case)
    unknown = with_missing(case, X)
    unknown[0], unknown[1] = X[0], np.nan
    imputed = impute(model, unknown)
    assert_array_equal(imputed[~np.isnan(unknown)], X[~np.isnan(unknown)])
    assert np.isfinite(imputed).all()
    assert_array_equal(impute(model, X), X)


# ------------------------------------------------------------------------------
# What a fit says
# ------------------------------------------------------------------------------


@each_alike
def test_a_silent_fit_prints_nothing(case, capfd):
    model = fit(case, verbose=0).partial_fit(data(case))
    model.score(data(case))
    draw(model, 3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("verbose", [1, True])
@each_alike
def test_a_verbose_fit_shows_one_bar(case, verbose, capfd):
    model = fit(case, verbose=verbose)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1  # written over and over, ended once
    last = err.rstrip("\n").split("\r")[-1]
    assert f"{model.n_iter_}/" in last
    assert "train_loss" in last


@each_body
def test_the_history_has_a_dict_for_each_epoch(case):
    model = fitted(case)
    assert isinstance(model.history_, list)
    assert len(model.history_) == model.n_iter_ > 0
    for number, row in enumerate(model.history_, 1):
        assert type(row) is dict
        assert row["epoch"] == number
        assert np.isfinite(row["train_loss"])
        assert row["lr"] > 0
        assert ("valid_loss" in row) == bool(case.early_stopping)


@each_lead
def test_a_fit_without_epochs_has_an_empty_history(case):
    assert fit(case, n_iter=0).history_ == []


class Silence(Callback):
    """Set every gradient to zero, as a callback that clips them would change them."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        for _, parameter in named_parameters:
            parameter.grad.zero_()


@each_alike
def test_a_callback_may_change_the_gradients(case):
    still = fit(case, net_params={"callbacks": [Silence()]})
    assert_same_model(still, fit(case, n_iter=0))


@each_alike
def test_averaging_gives_other_finite_weights(case):
    if is_deterministic(case):
        pytest.skip("a line search has no average of weights, and warns that it does not")
    last, mean = fitted(case), fit(case, optimizer__averaging=0.9)
    assert all(np.isfinite(w).all() for w in net_weights(mean).values())
    assert moved(last, mean) > 0


# ------------------------------------------------------------------------------
# Interruptions
# ------------------------------------------------------------------------------


def assert_usable(model):
    X = data(model)
    assert all(np.isfinite(w).all() for w in net_weights(model).values())
    assert np.isfinite(model.score(X))
    assert set(model.predict(X)) <= {-1, 1}
    assert len(draw(model, 3)) == 3
    assert len(model.history_) == model.n_iter_
    same = by_pickle(model)
    assert_array_equal(same.predict(X), model.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(net_params=None).partial_fit(X)
    assert moved(same, model) > 0


@each_case_at(1, 4, 10)
def test_an_interrupted_fit_leaves_a_usable_model(case, after, averaging):
    params = {"learning_rate": 0.01, "batch_size": 10, "optimizer__averaging": averaging}
    model = clone(case).set_params(net__callbacks=[Interrupt(after)], **params)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch.*usable"):
        model.fit(data(case))
    assert model.n_iter_ <= 1 + after // 5
    assert_usable(model)


@each_alike
def test_an_interruption_is_reported_once(case):
    X, callback = data(case), Interrupt(3)
    model = clone(case).set_params(batch_size=10, net__callbacks=[callback])
    model.set_params(net__on_interrupt="return")
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.partial_fit(X)
    callback.after = -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)


# ------------------------------------------------------------------------------
# Divergence
# ------------------------------------------------------------------------------


@each_case_at(1, 9, 12)
def test_nan_in_the_weights_is_rolled_back(case, after, averaging):
    poisoned = {
        "learning_rate": 0.05,
        "batch_size": 10,
        "optimizer__averaging": averaging,
        "net_params": {"callbacks": [Poison(after)]},
    }
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times.*epoch.*batch"):
        model = fit(case, **poisoned)
    assert model.n_restarts_ == 1
    assert case.n_iter in ("auto", model.n_iter_)
    assert all(np.isfinite(w).all() for w in net_weights(model).values())
    assert np.isfinite(model.score(data(case)))


@each_alike
def test_a_roll_back_in_a_stream_is_reported_once(case):
    X = data(case)
    model = clone(case).set_params(batch_size=10, net_params={"callbacks": [Poison(2)]})
    with pytest.warns(ConvergenceWarning, match="rolled back 1 times"):
        model.partial_fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X)


@each_alike
def test_without_restarts_divergence_is_an_error(case):
    model = clone(case).set_params(
        batch_size=10, optimizer__max_restarts=0, net_params={"callbacks": [Poison(2)]}
    )
    with pytest.raises(FloatingPointError, match=r"epoch \d+, batch \d+.*learning_rate"):
        model.fit(data(case))
    with pytest.raises(NotFittedError):
        model.predict(data(case))


@each_case
def test_the_guard_leaves_good_training_alone(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Without effect on this fit: sigma")
        assert fit(case).n_restarts_ == 0
