r"""The vocabulary: what every part of skebm is, and what it may rely on.

One convention holds everywhere: :math:`p(x) = \exp(-E(x)) / Z`, so lower energy means more likely.
Configuration lives in constructor arguments, running state in named tuples that are passed through,
randomness in one :class:`torch.Generator` that is passed as an argument.
"""

from skebm.base.contrast import Centering, ContrastGradient, Offsets, Penalty
from skebm.base.domains import Binary, Categorical, Domain, Mixed, Real
from skebm.base.energy import (
    BipartiteEnergy,
    Clamp,
    Conditional,
    Energy,
    EnergyLadder,
    EnergyMixture,
    EnergySum,
    PairwiseEnergy,
    PairwiseSum,
)
from skebm.base.objective import Batch, Loss, Objective
from skebm.base.partition import LogLikelihoods, LogPartition, PartitionEstimator
from skebm.base.processes.categories import (
    DataWarning,
    LikelihoodWarning,
    SamplingWarning,
    SettingWarning,
    SkebmWarning,
    TrainingWarning,
)
from skebm.base.sampler import Sampler, sampling
from skebm.base.state import ChainState, SamplingError, StepInfo
from skebm.base.trace import Trace

__all__ = [
    "Batch",
    "Binary",
    "BipartiteEnergy",
    "Categorical",
    "Centering",
    "ChainState",
    "Clamp",
    "Conditional",
    "ContrastGradient",
    "DataWarning",
    "Domain",
    "Energy",
    "EnergyLadder",
    "EnergyMixture",
    "EnergySum",
    "LikelihoodWarning",
    "LogLikelihoods",
    "LogPartition",
    "Loss",
    "Mixed",
    "Objective",
    "Offsets",
    "PairwiseEnergy",
    "PairwiseSum",
    "PartitionEstimator",
    "Penalty",
    "Real",
    "Sampler",
    "SamplingError",
    "SamplingWarning",
    "SettingWarning",
    "SkebmWarning",
    "StepInfo",
    "Trace",
    "TrainingWarning",
    "sampling",
]
