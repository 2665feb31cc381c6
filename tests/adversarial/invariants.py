"""What is to hold of any fit to any table, and what a fit is found to violate."""

import contextlib
import itertools
import math
import re
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import logsumexp
from sklearn.base import is_classifier

from skebm import DeepBeliefNetwork, EnergyOutlierDetector, GatedRBM, TemporalRBMClassifier
from skebm.base import Binary
from skebm.estimators.base import BaseEBM

# Seconds that `fit` and the first `score_samples` may take together.
MAX_SECONDS = 60.0
# Of a fit; scores of the same rows may say one thing more.
MAX_WARNINGS = 2
# Of one of them: lines, and characters in all.
MAX_LINES, MAX_TEXT = 2, 320
# Sums over all states are for so many bits at most, integrals for so many real columns.
MAX_BITS, MAX_COLUMNS = 10, 2
# Widths of the kernels from which integrals are sampled, in standard deviations of the columns.
WIDTHS = (0.01, 0.05, 0.2, 1.0, 5.0, 50.0)
N_KERNELS, N_DRAWS, DEGREES = 50, 6000, 2.0
# Errors of integrals beyond which nothing can be said, and what float32 adds.
MAX_ERROR, ROUNDING = 0.2, 0.02
# Words by which a message says what to do instead.
FIX = re.compile(
    r"\b(use|pass|drop|lower|raise|rescale|scale|choose|refit|correct|smooth|set|remove|reshape|"
    r"needs?|takes?|must|minimum of|required|instead|convert|fewer|more)\b",
    re.IGNORECASE,
)


class Found(NamedTuple):
    """What one fit came to; kinds of violations with what was seen."""

    violations: dict[str, str]
    refused: str = ""  # message of the ValueError, which is allowed
    below_base: str = ""  # listed, no violation
    checked: bool = False  # whether the sum or integral of p was computed
    seconds: float = 0.0


class TooSlow(BaseException):
    """Not an Exception, so that nothing in skebm takes it for a failure that it can handle."""


class Caught:
    """A context in which what is raised is noted: a soak of hours does not end at a finding."""

    error: BaseException | None = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.error = error
        return isinstance(error, Exception | TooSlow)


@contextlib.contextmanager
def deadline(seconds):
    """Raise `TooSlow` in the main thread after so many seconds, where the platform has timers."""

    def ring(*_):
        raise TooSlow

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(estimator, table, max_seconds=MAX_SECONDS):
    """Fit to a :class:`~tests.adversarial.hostile.Split`, score, and say what does not hold."""
    started, busy, scores = time.perf_counter(), time.process_time(), None
    of_fit = []
    with Caught() as caught, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with deadline(2 * max_seconds):
            try:
                estimator.fit(table.X, target_of(estimator, table))
            finally:
                of_fit += said
            scores = scores_of(estimator, table.X)
    seconds = time.perf_counter() - started
    violations = violated(caught.error, of_fit, said[len(of_fit) :], table.X)
    if seconds > max_seconds:
        used = time.process_time() - busy
        violations["slow"] = f"{seconds:.0f} s, {used:.0f} of the processor{place(caught.error)}"
    if scores is None:
        refused = "" if "exception" in violations else str(caught.error or "")
        return Found(violations, refused, seconds=seconds)
    with Caught() as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = examined(estimator, table, scores)
        return found._replace(violations=violations | found.violations, seconds=seconds)
    message = f"after the fit, {type(caught.error).__name__}: {caught.error}"
    return Found(violations | {"exception": message}, seconds=seconds)


def place(error):
    """Where in skebm a call was stopped, or nothing."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    inside = [frame for frame in frames if "skebm" in Path(frame.filename).parts]
    return f", stopped in {inside[-1].name} of {Path(inside[-1].filename).name}" if inside else ""


def violated(error, of_fit, of_scores, X):
    """What is wrong with the error and the warnings of `fit` and the first `score_samples`."""
    found = {}
    if isinstance(error, Exception) and not is_refusal(error, X):
        found["exception"] = f"{type(error).__name__}: {error}"
    if len(of_fit) > MAX_WARNINGS or len(of_scores) > 1:
        said = [*of_fit, *of_scores]
        seen = [str(warning.message).split(". ")[0] for warning in said]
        found["warnings"] = f"{len(said)}: " + " | ".join(seen)
    texts = [str(one.message) for one in (*of_fit, *of_scores)]
    long = [text for text in texts if len(text.splitlines()) > MAX_LINES or len(text) > MAX_TEXT]
    if long:
        found["long warnings"] = " | ".join(long)
    return found


def examined(estimator, table, scores):
    """Whether scores are finite, p is normalised, and held-out rows gain over the base."""
    scores = np.concatenate([scores, scores_of(estimator, table.held_out)])
    lost = ~np.isfinite(scores)
    if lost.any():
        return Found({"nan": f"{lost.sum()} of {len(scores)} scores are not finite"})
    density = density_of(estimator)
    if density is None:
        return Found({})
    mass, violations = log_mass(density, table.X), {}
    if mass is not None:
        off, allowed = mass
        # Lower bounds of p sum to less than one, but to no more.
        below = getattr(density, "bound_kind_", "exact") == "lower" and off < 0
        if not (below or abs(off) <= allowed):
            violations["normalised"] = (
                f"log of the integral of p is {off:.3f}, beyond {allowed:.3f}"
            )
    below = loss_to_base(density, table.held_out)
    return Found(violations, "", below, mass is not None)


def is_refusal(error, X):
    """Whether an error is a ValueError that says what to do; for sparse X scikit-learn's own."""
    kinds = (ValueError, TypeError) if sp.issparse(X) else ValueError
    return isinstance(error, kinds) and bool(FIX.search(str(error)))


def target_of(estimator, table):
    """What `fit` takes beside the rows: classes, of a model of pairs the reversed rows, or None."""
    if isinstance(estimator, GatedRBM):
        return table.X[:, ::-1]
    return table.y if wants_classes(estimator) else None


def scores_of(estimator, X):
    """Scores of rows, of a model of pairs given which they are the reversed ones.

    Those of a classifier of frames are log-probabilities, as most have no likelihood of frames.
    """
    if isinstance(estimator, GatedRBM):
        return estimator.score_samples(X, np.asarray(X)[..., ::-1])
    if isinstance(estimator, TemporalRBMClassifier):
        return estimator.predict_log_proba(X).max(1)
    return estimator.score_samples(X)


def wants_classes(estimator):
    inner = getattr(estimator, "estimator", estimator)
    return inner is not None and is_classifier(inner)


def density_of(estimator):
    """The fitted density whose `score_samples` is log p(x); None if there is none, or no log Z."""
    if isinstance(estimator, EnergyOutlierDetector):
        if estimator.method == "cross-conformal":
            return None
        estimator = estimator.estimator_
    if isinstance(estimator, DeepBeliefNetwork):
        return estimator if estimator.bound_kind_ == "exact" else None
    has_log_z = isinstance(estimator, BaseEBM) and hasattr(type(estimator), "log_partition_")
    if not has_log_z or estimator.partition is None:
        return None
    return estimator


# ------------------------------------------------------------------------------
# Is p normalised?
# ------------------------------------------------------------------------------


def log_mass(model, X):
    """Log of the sum or integral of p, and the size that it may have; None if not computed."""
    error, table = model.log_partition_std_, table_of(model)
    if isinstance(table.domain, Binary):
        if X.shape[1] > MAX_BITS:
            return None
        states = np.array(list(itertools.product([0.0, 1.0], repeat=X.shape[1])))
        rows = table.invert(torch.as_tensor(states))
        if len(np.unique(rows, axis=0)) < len(rows):
            return None  # a constant column that is scaled has one value for both states
        return float(logsumexp(model.score_samples(rows))), allowed_error(error)
    if X.shape[1] > MAX_COLUMNS:
        return None
    value, spread = log_integral(model.score_samples, np.asarray(X, dtype=float))
    if not spread < MAX_ERROR:
        return None
    return value, allowed_error(math.hypot(error, spread))


def table_of(model):
    """The table by which columns become rows of the energy, of a network that of its first RBM."""
    first = model.rbms_[0] if isinstance(model, DeepBeliefNetwork) else model
    return first._recipe.table


def allowed_error(error):
    return 5 * error + ROUNDING


def log_integral(log_density, X, seed=0):
    """Log of the integral of a density near rows X, and its standard error.

    Importance sampling from Student kernels at rows, with widths from far below to far above the
    distances that a model of the rows may have.
    """
    random = np.random.default_rng(seed)
    centres = X[random.choice(len(X), min(len(X), N_KERNELS), replace=False)]
    scale = np.where(X.std(0) > 0, X.std(0), 1.0)
    d = X.shape[1]
    width = np.array(WIDTHS)[random.integers(len(WIDTHS), size=N_DRAWS)]
    noise = random.standard_normal((N_DRAWS, d))
    noise *= np.sqrt(DEGREES / random.chisquare(DEGREES, N_DRAWS))[:, None]
    origin = X.mean(0)  # so that the means of timestamps do not round
    place = (centres - origin)[random.integers(len(centres), size=N_DRAWS)]
    rows = place + scale * width[:, None] * noise
    log_ratio = log_density(rows + origin) - log_kernels(rows, centres - origin, scale)
    top = log_ratio.max()
    weight = np.exp(log_ratio - top)
    return float(top + np.log(weight.mean())), float(weight.std() / weight.mean() / N_DRAWS**0.5)


def log_kernels(rows, centres, scale):
    """Log density of the mixture of multivariate Student kernels of all widths at the centres."""
    d = len(scale)
    distance = np.zeros((len(rows), len(centres)))
    for column in range(d):
        gap = rows[:, None, column] - centres[None, :, column]
        distance += np.square(gap / scale[column])
    constant = math.lgamma((DEGREES + d) / 2) - math.lgamma(DEGREES / 2)
    constant -= d / 2 * math.log(DEGREES * math.pi) + np.log(scale).sum()
    terms = [
        constant
        - d * math.log(width)
        - (DEGREES + d) / 2 * np.log1p(distance / (DEGREES * width**2))
        for width in WIDTHS
    ]
    return logsumexp(np.stack(terms), axis=(0, 2)) - math.log(len(WIDTHS) * len(centres))


# ------------------------------------------------------------------------------
# Is it better than its base?
# ------------------------------------------------------------------------------


def loss_to_base(model, X):
    """What held-out rows lose to the base, if it is more than two standard errors; "" if not."""
    table, base = table_of(model), getattr(model, "base_", None)
    if base is None:
        return ""
    kind = {"device": torch.device("cpu"), "dtype": getattr(torch, model.dtype)}
    rows = table.rows(X if sp.issparse(X) else np.asarray(X), **kind)
    if not bool(rows.map(table.domain.contains).all()):
        return ""  # probabilities, for which neither has a likelihood
    under_base = rows.map(base.log_prob).double().numpy() - table.log_volume
    gain = model.score_samples(X) - under_base
    error = math.hypot(gain.std() / len(gain) ** 0.5, model.log_partition_std_)
    if gain.mean() < -2 * error - ROUNDING:
        return f"{gain.mean():.3f} +- {error:.3f} nats"
    return ""
