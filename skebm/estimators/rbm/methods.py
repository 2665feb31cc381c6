"""Methods shared by estimators of restricted Boltzmann machines, whatever their hidden units are.

They are functions of an estimator, which each class assigns as its methods.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from skebm._validation import Interval, MinMax, StrOptions, check_is_fitted
from skebm.base import BipartiteEnergy, LogLikelihoods, Sampler
from skebm.base.energy import check_temperature
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.energies import Tilted
from skebm.estimators.base import (
    DENSITY_CONSTRAINTS,
    BaseDensity,
    BaseEBM,
    LogZ,
    chain_rows,
    read_only,
)
from skebm.estimators.rbm.drawing import BLOCK, draw_visible, imputed, starts_of
from skebm.estimators.rbm.missing import hidden_means, log_sums
from skebm.estimators.tables.bases import COLUMN_BASES
from skebm.estimators.tables.frames import as_given
from skebm.estimators.tables.table import UnitIntervalTable
from skebm.objectives import Centering, Penalty
from skebm.objectives.local import LOCAL_RULES
from skebm.samplers import ChainPolicy, FromData, Gibbs, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.rows import Rows
from skebm.training.streams import by_blocks

# Gibbs steps for the features of rows with missing entries.
N_MEAN_STEPS = 100
# Valid parameters, and the objects that None stands for in those with parameters of their own.
CONSTRAINTS: dict[str, Any] = DENSITY_CONSTRAINTS | {
    "learning_rate": [Interval(numbers.Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "learning": [StrOptions({"auto", "pcd", "cd", "exact", *LOCAL_RULES})],
    "chains": [ChainPolicy, None],
    "base": [StrOptions({"auto", *COLUMN_BASES}), Distribution],
    "centering": [Centering, StrOptions({"auto"}), None],
    "penalty": [Penalty, None],
    "optimizer": [SGD, None],
    "visible": [StrOptions({"auto", "bernoulli"})],
    "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
}
CONFIGS: dict[str, Callable[[Any, set[str]], Any]] = {
    "chains": lambda value, names: Persistent(n_steps=1),
    "sampler": lambda value, names: Gibbs(),
    "centering": lambda value, names: Centering(),
    "penalty": lambda value, names: Penalty(),
    "optimizer": lambda value, names: SGD(),
    "early_stopping": lambda value, names: EarlyStopping(),
}


def _has_bits_only(model: Any) -> bool:
    """Whether noise can flip every column; `AttributeError` that says so otherwise."""
    if model.__sklearn_is_fitted__() and model._blueprint.is_mixed:
        raise AttributeError("denoise is for binary columns only, which noise flips.")
    return True


def config_of(self: Any, owner: str, value: Any, names: set[str]) -> Any:
    """The object that None or a string stands for; chains are those of the learning rule."""
    if owner == "chains" and self.learning == "cd":
        return FromData(n_steps=1)
    return BaseEBM._config_of(self, owner, value, names)


def energies_of_known(self: Any, rows: Rows, known: Tensor, *, likely: bool = False) -> np.ndarray:
    """Energies of rows, of which some have missing entries: those are summed out."""
    found, complete = np.empty(len(rows)), known.all(1)
    if complete.any():
        some = rows.subset(complete.nonzero().ravel())
        some.known = None
        found[complete.cpu().numpy()] = BaseDensity._energies(self, some, likely=likely)
    sums, _, _ = sums_over_missing(self, rows, known, ~complete)
    found[~complete.cpu().numpy()] = -sums
    return found


def log_marginal(self: Any, X: Any) -> LogLikelihoods:
    r"""Log-likelihood of the known entries of each row, with its error.

    The values are those of `score_samples`: log p(x) for complete rows, and
    :math:`\log \sum_{x_{missing}} p(x)` (an integral over real columns) for others. A value is
    exact, up to log Z, if the row has few completions or the model few hidden states.
    Otherwise it is estimated by annealing from the base given the known entries, and is low on
    average by about half of the squared standard error.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        NaN marks missing entries.

    Returns
    -------
    LogLikelihoods
        ``std_error`` and ``exact`` are of the sums over missing entries. The ends are two standard
        errors away, with the pessimistic log Z at the lower one.
    """
    rows = self._rows(X)
    value = np.empty(len(rows))
    error, exact = np.zeros(len(rows)), np.ones(len(rows), dtype=bool)
    known = rows.known_entries()
    complete = np.ones(len(rows), bool) if known is None else known.all(1).cpu().numpy()
    if complete.any():
        index = torch.as_tensor(complete.nonzero()[0], device=rows.device)
        value[complete] = -BaseDensity._energies(self, rows.subset(index), likely=True)
    if known is not None:
        found = sums_over_missing(self, rows, known, ~known.all(1))
        value[~complete], error[~complete], exact[~complete] = found
    log_prob = value - self.log_partition_
    lower = value - self._log_partition().pessimistic - 2 * error
    return LogLikelihoods(log_prob, error, lower, log_prob + 2 * error, exact)


def sums_over_missing(self: Any, rows: Rows, known: Tensor, some: Tensor) -> tuple[np.ndarray, ...]:
    """log of the sum of exp(-E) over missing entries of some rows, in the units of the data."""
    energy, table, index = self.energy_, self._blueprint.table, some.nonzero().ravel()
    generator = torch.Generator(known.device).manual_seed(self.net_.seed_)
    base = self._blueprint.partition_input("base", energy, self.net_, known)
    found = log_sums(energy, base, rows.take(index), known[index], table.groups, generator)
    parts = found.value, found.std_error, found.exact
    value, error, exact = (part.cpu().numpy() for part in parts)
    return value - table.log_volumes(known[index].cpu().numpy()), error, exact


def complete_rows(self: Any, X: Any, method: str) -> Rows:
    """Rows of new X; `ValueError` for missing entries."""
    rows = self._rows(X)
    if rows.has_missing():
        raise ValueError(f"X contains NaN, and {method} needs complete rows: call impute first.")
    return rows


def checked_states(states: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """States of hidden units as an array; `ValueError` for others than 0 and 1."""
    found: np.ndarray = check_array(states, dtype=np.float64, input_name=name, allow_nd=True)
    if found.shape != shape:
        raise ValueError(
            f"{name} has shape {found.shape}: it must have a state of each hidden unit for each of "
            f"the {shape[0]} rows, {shape}."
        )
    if not np.isin(found, (0, 1)).all():
        raise ValueError(f"{name} must hold states of hidden units, 0 or 1.")
    return found


def _of_layer(energy: Any, x: Tensor) -> Tensor:
    mean: Tensor = energy.hidden(x).mean
    return mean


def features(self: Any, X: Any, of_rows: Callable[[Any, Tensor], Tensor] = _of_layer) -> np.ndarray:
    """Means of the hidden units that are features, given each row of X, in the precision of X.

    For a row with missing entries they are the means conditional on its known entries, estimated by
    Gibbs chains. `of_rows` computes them from an energy and rows; by default they are the means of
    the hidden layer.
    """
    check_is_fitted(self)
    X = self._validate(X)
    rows = self._rows_of(X)
    means_of_all = self._map(rows, of_rows)
    n = self._n_features_out
    found: np.ndarray = means_of_all[:, :n].numpy().astype(X.dtype, copy=False)
    known = rows.known_entries()
    if known is not None:
        index = (~known.all(1)).nonzero().ravel()
        generator = torch.Generator(known.device).manual_seed(self.net_.seed_)
        energy, x = self.energy_, rows.take(index)
        how = known[index], N_MEAN_STEPS, generator, of_rows
        averages, _ = hidden_means(energy, energy.base, x, *how)
        found[index.cpu().numpy()] = averages[:, :n].cpu().numpy()
    return found


@by_blocks
def transform(self: Any, X: Any) -> np.ndarray:
    """Probability that each hidden unit is on, p(h_j = 1 given x).

    For a row with missing entries it is the probability given the known entries, estimated by a
    mean over Gibbs chains with a fixed seed.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)

    Returns
    -------
    ndarray of shape (n_samples, n_components)
        In the precision of X.
    """
    return features(self, X)


def pseudo_likelihood(self: Any, X: Any) -> np.ndarray:
    """Pseudo-log-likelihood of each row, summed exactly over all columns.

    The sum over columns of log p(x_i given the other columns), in nats. It is neither a lower
    nor an upper bound of log p(x).

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)

    Returns
    -------
    ndarray of shape (n_samples,)

    References
    ----------
    Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
    """
    rows = complete_rows(self, X, "pseudo_likelihood")
    energy = self._blueprint.scoring_energy(self.energy_)
    return self._blueprint.proper_score(rows, energy).double().numpy()


@as_given(means=True)
def reconstruct(self: Any, X: Any) -> np.ndarray:
    """Mean-field reconstruction: mean of x given the conditional mean of h given x.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        In the units of the data.
    """
    rows = complete_rows(self, X, "reconstruct")
    mean = self._map(rows, lambda energy, x: energy.reconstruct(x))
    return self._blueprint.table.invert(mean[:, : rows.n_columns])


@as_given
def gibbs(self: Any, v: Any) -> np.ndarray:
    """Take one Gibbs step from v: draw h given v, then v given h.

    Parameters
    ----------
    v : array-like of shape (n_samples, n_features)

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        Booleans as in scikit-learn; in the units of the data if columns were scaled.
    """
    rows = complete_rows(self, v, "gibbs")
    generator = self._generator(self.random_state_)
    state, _ = self._blueprint.layer_sampler.kernel.run(
        self.energy_, rows.block(0, len(rows)), 1, generator
    )
    table = self._blueprint.table
    if not isinstance(table, UnitIntervalTable) or len(table.scaling.columns):
        return table.invert(state.x)
    return state.x.cpu().numpy().astype(bool)


def sample(
    self: Any,
    n_samples: int = 1,
    random_state: Any = None,
    *,
    temperature: float = 1.0,
    n_steps: int = 1000,
) -> np.ndarray:
    r"""Draw rows from the model, the marginal of :math:`p(x, h)^{1/T}` normalised.

    Samples are exact and independent if the states can be enumerated (at most 1e7 terms).
    Otherwise they are the final states of Gibbs chains of `n_steps` steps, and approximate if
    the chains have not converged. The chains start from the persistent chains or training rows;
    for temperatures other than 1, from draws of the base, or from uniform rows if there is none.

    Parameters
    ----------
    n_samples : int, default=1
    random_state : int, RandomState instance or None, default=None
        None draws from NumPy's global generator.
    temperature : float, default=1.0
        T > 0, by which the energy of both layers, E(x, h), is divided: above 1 rows are more
        random, below 1 they are closer to the most probable ones. Temperatures other than 1
        raise `ValueError` if the base has latent classes, whose powers have no closed form.
    n_steps : int, default=1000
        Number of Gibbs steps of the chains, if they are needed.

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        In the units of the data.
    """
    check_is_fitted(self)
    whole_number("n_samples", n_samples, 1)
    n_numbers = n_samples * self.energy_.domain.n_columns
    check_memory(f"n_samples={n_samples}", n_numbers, torch.float64)
    whole_number("n_steps", n_steps, 1)
    check_temperature(temperature)
    return self._blueprint.table.invert(
        draw_rows(self, n_samples, self._generator(random_state), n_steps, temperature)
    )


def draw_rows(
    self: Any, n: int, generator: torch.Generator, n_steps: int = 1000, temperature: float = 1.0
) -> Tensor:
    """Rows of the model at a temperature, exact if the states can be enumerated."""
    reference = torch.as_tensor(self._reference).to(self.energy_.weight)
    starts = starts_of(self.energy_, self._blueprint, self.net_, reference)
    how: dict[str, Any] = {"n_steps": n_steps, "temperature": temperature}
    return draw_visible(self.energy_, self._blueprint.layer_sampler, starts, n, generator, **how)


@as_given
def impute(
    self: Any,
    X: Any,
    random_state: Any = None,
    *,
    how: str = "sample",
    n_draws: int | None = None,
    n_steps: int = 200,
) -> Any:
    """Replace missing entries by draws from the model given the known entries, or their means.

    The draws come from block Gibbs sampling with the known entries clamped, and are
    approximate because the chains are finite. A row without known entries becomes a sample of
    the model.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        NaN marks missing entries.
    random_state : int, RandomState instance or None, default=None
        None draws from NumPy's global generator.
    how : {"sample", "mean", "mode"}, default="sample"
        ``"sample"``: the imputations of a row are a joint draw, as in multiple imputation.
        ``"mean"``: the mean of a number and the probability of a bit, which have the least
        squared error; the most probable level of a category. ``"mode"``: the more probable
        value of a bit as well.
    n_draws : int >= 1 or None, default=None
        Number of imputed tables; with ``how="sample"`` only. None returns a single table, not
        in a list.
    n_steps : int, default=200
        Gibbs steps; means are taken over the second half.

    Returns
    -------
    ndarray or data frame of shape (n_samples, n_features), or a list of `n_draws` of these
        A data frame with the index, columns and types of X if X is one, otherwise an array. Known
        entries are unchanged. In frames, columns of integers and booleans are rounded.
    """
    check_is_fitted(self)
    whole_number("n_steps", n_steps, 1)
    if how not in ("sample", "mean", "mode"):
        raise ValueError(f'how must be "sample", "mean" or "mode", got {how!r}.')
    if n_draws is not None:
        whole_number("n_draws", n_draws, 1)
        if how != "sample":
            raise ValueError(f'n_draws={n_draws} is for how="sample": there is one {how}.')
    X = self._validate(X)
    rows, generator = self._rows_of(X), self._generator(random_state)
    made = [imputed_rows(self, rows, generator, how, n_steps) for _ in range(n_draws or 1)]
    table = self._blueprint.table
    found = [table.filled(X, x) for x in made]
    return found[0] if n_draws is None else found


def imputed_rows(
    self: Any, rows: Rows, generator: torch.Generator, how: str, n_steps: int
) -> Tensor:
    """Rows of the energy with their missing entries filled in."""
    blocks = []
    for start in range(0, len(rows), BLOCK):
        x = rows.block(start, start + BLOCK)
        blocks.append(imputed(self.energy_, self._blueprint, x, how, n_steps, generator).cpu())
    return torch.cat(blocks)


@available_if(_has_bits_only)
@as_given(means=True)
def denoise(
    self, X: Any, noise_level: float = 0.1, random_state: Any = None, *, n_steps: int = 200
) -> np.ndarray:
    r"""Posterior mean of the clean row, if each bit was flipped with probability `noise_level`.

    The posterior :math:`p(x \mid \tilde x)` is the same RBM with visible biases shifted by
    :math:`(2 \tilde x - 1) \log\frac{1 - \epsilon}{\epsilon}`; its mean is the Bayes-optimal
    denoiser under the model. The mean is estimated by averaging p(x given h) over the second
    half of `n_steps` Gibbs steps, without bias if the chains have converged by then.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
    noise_level : float in (0, 0.5), default=0.1
        Probability that a bit was flipped.
    random_state : int, RandomState instance or None, default=None
        None draws from NumPy's global generator.
    n_steps : int, default=200
        Gibbs steps.

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        Probabilities; in the units of the data if columns were scaled.
    """
    if not 0 < noise_level < 0.5:
        raise ValueError(f"noise_level must lie in (0, 0.5), got {noise_level}.")
    whole_number("n_steps", n_steps, 1)
    rows = complete_rows(self, X, "denoise")
    generator, energy = self._generator(random_state), self.energy_
    strength = float(np.log((1 - noise_level) / noise_level))
    blocks = []
    for start in range(0, len(rows), BLOCK):
        x = rows.block(start, start + BLOCK)
        posterior = Tilted(energy, strength * (2 * x - 1))
        blocks.append(_posterior_mean(posterior, x, n_steps, generator).cpu())
    return self._blueprint.table.invert(torch.cat(blocks))


def _posterior_mean(
    energy: BipartiteEnergy, x: Tensor, n_steps: int, generator: torch.Generator
) -> Tensor:
    """Mean of x under a bipartite energy, from conditional means along a Gibbs chain from x."""
    total, burn_in = torch.zeros_like(x), n_steps // 2
    with torch.no_grad():
        for step in range(n_steps):
            conditional = energy.visible(energy.hidden(x).sample(generator))
            x = conditional.sample(generator)
            if step >= burn_in:
                total += conditional.mean
    return total / (n_steps - burn_in)


# ------------------------------------------------------------------------------
# Fitted attributes
# ------------------------------------------------------------------------------


def parameter(name: str, doc: str) -> property:
    """A parameter of the energy as a read-only array, which a whole array may be assigned to."""

    def get(self: Any) -> np.ndarray:
        return read_only(self, name)

    def assign(self: Any, value: Any) -> None:
        check_is_fitted(self)
        old = getattr(self.energy_, name)
        new = torch.as_tensor(np.array(value), dtype=old.dtype, device=old.device)
        if new.shape != old.shape:
            raise ValueError(f"Expected an array of shape {tuple(old.shape)}, got {new.shape}.")
        with torch.no_grad():
            old.copy_(new)
        self._log_z = LogZ()

    return property(get, assign, doc=doc)


def _h_samples(self: Any) -> np.ndarray:
    """Hidden units of the persistent chains, (n_chains, n_components).

    If the chains keep no hidden units, these are drawn with a fixed seed; if the rule has no
    chains, the visible rows are drawn from the model as well.
    """
    x, state = chain_rows(self.net_), self.net_.state_
    if x is not None and type(self.sampler_) is Gibbs and state.chain.aux is not None:
        return state.chain.aux.cpu().numpy()
    generator = torch.Generator(self.energy_.weight.device).manual_seed(self.net_.seed_)
    if x is None:
        x = draw_rows(self, self.n_chains_, generator)
    with torch.no_grad():
        return self.energy_.hidden(x).sample(generator).cpu().numpy()


def _base(self: Any) -> Distribution:
    """The fitted base."""
    check_is_fitted(self)
    return self._blueprint.base


def _base_name(self: Any) -> str:
    """Name of the base."""
    check_is_fitted(self)
    return self._blueprint.base_name or "given"


def _n_components(self: Any) -> int:
    """Number of hidden units."""
    check_is_fitted(self)
    return self._blueprint.n_hidden


def _base_reason(self: Any) -> str:
    """Why this base was chosen, and this number of hidden units where rows chose it."""
    check_is_fitted(self)
    return self._blueprint.base_reason


def _scaling(self: Any) -> MinMax:
    """Columns that were scaled to [0, 1], their minima and ranges."""
    check_is_fitted(self)
    table = self._blueprint.table
    if not isinstance(table, UnitIntervalTable):
        raise AttributeError("There is no scaling_: real columns are Gaussian units.")
    return table.scaling


def _sampler(self: Any) -> Sampler:
    """Sampler of the chains."""
    check_is_fitted(self)
    return self._blueprint.chain_sampler


def _learning(self: Any) -> str:
    """Learning rule in use."""
    return self._blueprint.learning


def _learning_rate(self: Any) -> float:
    """Initial learning rate; nan with L-BFGS."""
    plan = self._blueprint
    return float("nan") if plan.line_search else plan.plan.learning_rate


def _batch_size(self: Any) -> int:
    """Rows per step."""
    return self._blueprint.plan.batch_size


def _n_chains(self: Any) -> int:
    """Number of persistent chains."""
    chains = self._blueprint.chains
    return int(chains.n_chains or 0) if isinstance(chains, Persistent) else self.batch_size_


def _centered(self: Any) -> bool:
    """Whether the gradient is centred."""
    return self._blueprint.centering is not None


def _precondition(self: Any) -> float:
    """Exponent of the variances by which the gradient is divided."""
    centering = self._blueprint.centering
    return 0.0 if centering is None else centering.precondition


h_samples_ = property(_h_samples)
base_ = property(_base)
base_name_ = property(_base_name)
n_components_ = property(_n_components)
base_reason_ = property(_base_reason)
scaling_ = property(_scaling)
sampler_ = property(_sampler)
learning_ = property(_learning)
learning_rate_ = property(_learning_rate)
batch_size_ = property(_batch_size)
n_chains_ = property(_n_chains)
centered_ = property(_centered)
precondition_ = property(_precondition)
