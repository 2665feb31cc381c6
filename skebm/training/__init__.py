"""Training: the engine, what it trains on, and how users configure it."""

from typing import TYPE_CHECKING

from skebm.training.distributed import RankStoppedError, single_process
from skebm.training.guard import DivergenceError
from skebm.training.plan import SGD, AdamW, EarlyStopping, Trajectory

if TYPE_CHECKING:
    from skebm.training.resume import Resume

__all__ = [
    "SGD",
    "AdamW",
    "DivergenceError",
    "EarlyStopping",
    "RankStoppedError",
    "Resume",
    "Trajectory",
    "single_process",
]


def __getattr__(name):
    # A callback of skorch, which is imported by the first fit, not by `import skebm`.
    if name == "Resume":
        from skebm.training.resume import Resume

        return Resume
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
