"""What a call shares with others: processes, threads, and the settings that belong to them.

Nothing here, nor anywhere else in skebm, changes what belongs to the process: generators, default
types, filters of warnings and numbers of threads are those of its user.
"""

from skebm.base.processes.draws import draws_from, may_draw, seed_modules
from skebm.base.processes.entrance import enter_all, inside
from skebm.base.processes.locks import lock_of
from skebm.base.processes.modes import own_modes
from skebm.base.processes.notices import (
    Notice,
    collect_warnings,
    repeat,
    warn,
    without_warnings,
)
from skebm.base.processes.tasks import (
    Epochs,
    TasksMixin,
    as_task,
    begin_task,
    fit_of,
    parts_of_fit,
)
from skebm.base.processes.threads import n_threads, set_threads, threads
from skebm.base.processes.workers import (
    Reduction,
    Workers,
    in_worker,
    mean_over_ranks,
    progress_bar,
    reduce_gradients,
    reducing,
)

__all__ = [
    "Epochs",
    "Notice",
    "Reduction",
    "TasksMixin",
    "Workers",
    "as_task",
    "begin_task",
    "collect_warnings",
    "draws_from",
    "enter_all",
    "fit_of",
    "in_worker",
    "inside",
    "lock_of",
    "may_draw",
    "mean_over_ranks",
    "n_threads",
    "own_modes",
    "parts_of_fit",
    "progress_bar",
    "reduce_gradients",
    "reducing",
    "repeat",
    "seed_modules",
    "set_threads",
    "threads",
    "warn",
    "without_warnings",
]
