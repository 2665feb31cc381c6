"""Training: the engine, what it trains on, and how users configure it."""

from skebm.training.distributed import RankStoppedError, single_process
from skebm.training.engine import DivergenceError
from skebm.training.plan import SGD, AdamW, EarlyStopping
from skebm.training.resume import Resume

__all__ = [
    "SGD",
    "AdamW",
    "DivergenceError",
    "EarlyStopping",
    "RankStoppedError",
    "Resume",
    "single_process",
]
