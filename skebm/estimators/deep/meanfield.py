r"""Variational inference in deep Boltzmann machines: mean field, and bounds of log p(x) by it."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skebm._validation import Interval
from skebm.base import Domain
from skebm.base.energy import differences_of
from skebm.base.torchtools import softplus
from skebm.energies.deep import HiddenGiven, Layers
from skebm.estimators.deep.module import Map

# Terms of a row up to which the hidden layers are summed out instead of bounded.
EXACT_TERMS = 2**16


class MeanField(BaseEstimator):
    r"""Settings of mean-field inference in a deep Boltzmann machine.

    The posterior of the hidden layers is approximated by independent units of means
    :math:`\mu`, which maximise the variational bound

    .. math:: \log p(x) \ge \mathbb E_q[-E(x, h)] + H(q) - \log Z, \qquad
        q(h) = \prod_j \mu_j^{h_j} (1 - \mu_j)^{1 - h_j},

    by updates of all even and of all odd layers in turn, each of which raises the bound. The means
    of h2, h4, ... are also the proposal of importance sampling, which makes the bound tighter:
    h1, h3, ... are summed out exactly, and the log of the mean of K importance weights is, in
    expectation, at most log p(x), at least the variational bound, and closer to log p(x) the larger
    K is [2]_.

    Parameters
    ----------
    tol : float, default=1e-3
        A row has converged when its means change by less than this in a step. The bound is then off
        by about the square of the change, as it is stationary there; it is a lower bound wherever
        the steps end.
    max_steps : int, default=200
        Largest number of steps for a new row.
    n_train_steps : int, default=2
        Number of steps for each batch in training. They continue from the means at which the steps
        for the same row last ended.
    n_draws : int, default=100
        Number of importance weights, K; 0 gives the variational bound itself.

    See Also
    --------
    skebm.DeepBoltzmannMachine

    References
    ----------
    .. [1] Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, section 2.2.
    .. [2] Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", ICLR,
       theorem 1.

    Examples
    --------
    >>> from skebm import DeepBoltzmannMachine
    >>> from skebm.estimators import MeanField
    >>> model = DeepBoltzmannMachine(mean_field=MeanField(n_draws=1000))
    >>> model.set_params(mean_field__tol=1e-4).mean_field
    MeanField(n_draws=1000, tol=0.0001)
    """

    _parameter_constraints: dict = {
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_steps": [Interval(Integral, 1, None, closed="left")],
        "n_train_steps": [Interval(Integral, 1, None, closed="left")],
        "n_draws": [Interval(Integral, 0, None, closed="left")],
    }

    def __init__(self, *, tol=1e-3, max_steps=200, n_train_steps=2, n_draws=100):
        self.tol = tol
        self.max_steps = max_steps
        self.n_train_steps = n_train_steps
        self.n_draws = n_draws


class Solved(NamedTuple):
    """Where mean field ended.

    Attributes
    ----------
    logit : Tensor of shape (n, B)
        Log-odds of h2, h4, ...
    residual : Tensor of shape (n,)
        Largest change of a mean in the last step of a row.
    n_steps : Tensor of shape (n,)
    """

    logit: Tensor
    residual: Tensor
    n_steps: Tensor


def solve(given: HiddenGiven, tol: float, max_steps: int) -> Solved:
    """Steps from a bottom-up pass until each row has converged by itself."""
    logit = given.bottom_up()
    mean = logit.sigmoid()
    residual = logit.new_zeros(len(logit))
    n_steps = torch.zeros(len(logit), dtype=torch.long, device=logit.device)
    if not given.layers.n_beside:  # the layers are independent given x
        return Solved(logit, residual, n_steps)
    active = torch.ones_like(n_steps, dtype=torch.bool)
    for _ in range(max_steps):
        new = given.beside_field(given.between_field(mean).sigmoid_())
        new_mean = new.sigmoid()
        # Rows that have converged stay: what is found for them does not depend on the others.
        residual = torch.where(active, (new_mean - mean).abs().amax(1), residual)
        logit = torch.where(active[:, None], new, logit)
        mean = torch.where(active[:, None], new_mean, mean)
        n_steps += active
        active &= residual > tol
        if not bool(active.any()):
            break
    return Solved(logit, residual, n_steps)


def means_after_steps(energy: Any, layers: Layers, row: Tensor, n_steps: int) -> Tensor:
    """Means of h2, h4, ... after steps from those in a row (x, means), (n, B)."""
    d = layers.n_visible
    given, mean = HiddenGiven(energy, layers, row[:, :d]), row[:, d:]
    for _ in range(n_steps):
        mean = given.beside_field(given.between_field(mean).sigmoid_()).sigmoid_()
    return mean


# ------------------------------------------------------------------------------
# Bounds
# ------------------------------------------------------------------------------


def entropy(logit: Tensor) -> Tensor:
    """Entropy of independent units of the given log-odds, (n,), in nats."""
    return (softplus(logit) - logit * logit.sigmoid()).sum(1)


def variational_bound(given: HiddenGiven, logit: Tensor) -> Tensor:
    """Lower bound of log sum_h exp(-E(x, h)), (n,): mean field of all hidden layers.

    `logit` are log-odds of h2, h4, ...; those of the other layers are the best given these.
    """
    return (given.log_joint(logit.sigmoid()) + entropy(logit)).double()


def importance_bound(given: HiddenGiven, logit: Tensor, n_draws: int) -> Tensor:
    """log of the mean of importance weights of draws of h2, h4, ..., (n,), float64.

    Lower than log sum_h exp(-E(x, h)) in expectation, and never below the variational bound in
    expectation. The uniform numbers of the draws are the same for all rows, in strata for each
    unit: each draw by itself has the distribution that mean field found.
    """
    mean, total = logit.sigmoid(), torch.full_like(given.log_rest, -math.inf, dtype=torch.float64)
    log_off = -softplus(logit).sum(1)
    for u in _strata(n_draws, logit):
        beside = (u < mean).to(logit)
        log_weight = given.log_joint(beside) - (beside * logit).sum(1) - log_off
        total = torch.logaddexp(total, log_weight.double())
    return total - math.log(n_draws)


def _strata(n_draws: int, like: Tensor) -> Tensor:
    """Uniform numbers (n_draws, B), one of each unit in each of n_draws equal intervals."""
    # Seed of the uniform numbers by which hidden units are drawn, the same for all rows.
    seed = 0
    generator = torch.Generator(like.device).manual_seed(seed)
    shape: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": like.device}
    order = torch.rand(n_draws, like.shape[1], **shape).argsort(0)
    found = (order + torch.rand(n_draws, like.shape[1], **shape)) / n_draws
    return found.to(like.dtype)


class VariationalEnergy(nn.Module):
    r"""Minus the lower bound of log sum_h exp(-E(x, h)) of a deep Boltzmann machine, for rows x.

    Exact where the hidden layers are summed out.

    Parameters
    ----------
    energy : BernoulliRBM or MixedRBM
        The machine, padded.
    layers : Layers
    domain : Domain
        Of x.
    settings : MeanField
    """

    def __init__(self, energy: Any, layers: Layers, domain: Domain, settings: MeanField):
        super().__init__()
        self.energy, self.layers, self.domain, self.settings = energy, layers, domain, settings

    def given(self, x: Tensor) -> HiddenGiven:
        """What is known of the hidden layers of rows x."""
        return HiddenGiven(self.energy, self.layers, x, padded=True)

    def solve(self, given: HiddenGiven) -> Solved:
        """Mean field by the settings."""
        return solve(given, self.settings.tol, self.settings.max_steps)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Upper bound of the free energy, (n,), float64."""
        return -bound_of(self.given(x), self.settings)

    @torch.no_grad()
    def level_difference(self, x: Tensor) -> Tensor:
        """Differences after changes of one column, (n, d), for each by itself."""
        return differences_of(self, x, self.domain)

    @torch.no_grad()
    def means(self, x: Tensor) -> Tensor:
        """Means of all hidden layers side by side, the bound, the residual and the steps, (n, ...).

        Float64.
        """
        given = self.given(x)
        found = self.solve(given)
        mean = found.logit.sigmoid()
        layers = self.layers.hidden_layers(mean, given.between_field(mean).sigmoid())
        bound = variational_bound(given, found.logit)
        last = [bound, found.residual.double(), found.n_steps.double()]
        return torch.cat([*(m.double() for m in layers), torch.stack(last, 1)], 1)


def bound_of(given: HiddenGiven, settings: MeanField) -> Tensor:
    """The tightest lower bound that the settings ask for, or the exact value, (n,), float64."""
    if enumerates_hidden(given.layers):
        return given.log_marginal()
    logit = solve(given, settings.tol, settings.max_steps).logit
    if not settings.n_draws:
        return variational_bound(given, logit)
    return importance_bound(given, logit, settings.n_draws)


def enumerates_hidden(layers: Layers) -> bool:
    """Whether the hidden layers of a row are summed out by enumeration."""
    n, m = sorted((layers.n_beside, layers.n_between))
    return n == 0 or 2.0 ** min(n, 999) * m <= EXACT_TERMS


class PosteriorMeans(NamedTuple):
    """Means of the hidden layers given rows, by mean field, and how well they converged.

    Attributes
    ----------
    layers : list of ndarray of shape (n_samples, n_units)
        From below.
    bound : ndarray of shape (n_samples,)
        Variational lower bound of log sum_h exp(-E(x, h)), in nats; minus log Z it is a lower bound
        of log p(x).
    residual : ndarray of shape (n_samples,)
        Largest change of a mean in the last step.
    n_steps : ndarray of shape (n_samples,)
        Number of steps.
    converged : ndarray of shape (n_samples,)
        Whether the residual is at most the tolerance.
    """

    layers: list[np.ndarray]
    bound: np.ndarray
    residual: np.ndarray
    n_steps: np.ndarray
    converged: np.ndarray


# ------------------------------------------------------------------------------
# A network that begins with inference
# ------------------------------------------------------------------------------


@torch.no_grad()
def recognition_maps(energy: Any, layers: Layers) -> list[Map]:
    r"""Linear maps of one pass of inference upwards, of the rows of an energy.

    Weights from below are doubled in layers that have another one above: as much input as that one
    would give is expected from it (Salakhutdinov and Hinton, 2009, section 3.1).
    """
    beside = energy.parts[-1].logits if layers.n_beside and hasattr(energy, "parts") else None
    factor = getattr(energy, "factor", lambda: None)()
    maps = []
    weights, biases = layers.weights(energy), layers.biases(energy)[1:]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True), 1):
        if number % 2 == 0 and beside is not None:
            place, d = layers.place(number), layers.n_visible
            bias = bias + beside[place.start - d : place.stop - d]
        statistics = factor[: layers.n_visible] if number == 1 and factor is not None else None
        doubled = 2.0 if number < layers.depth else 1.0
        maps.append(Map.of(doubled * weight, bias, statistics))
    return maps
