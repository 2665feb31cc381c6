r"""Greedy training of a deep Boltzmann machine, layer by layer, as a start of joint training."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base.units import Bernoulli
from skebm.distributions import Distribution, IndependentBernoulli
from skebm.energies import BernoulliRBM, MixedRBM
from skebm.energies.deep import HIDDEN_LOGIT, Layers
from skebm.training.rows import Batches, Rows

# Rows from which they start.
N_FIRST = 1000


class Greedy(NamedTuple):
    """Settings of the trainings of single layers.

    Attributes
    ----------
    n_epochs, batch_size : int
    learning_rate : float
        At the start; it falls linearly to a hundredth.
    """

    n_epochs: int
    batch_size: int
    learning_rate: float


class Factors(NamedTuple):
    """Factors of the weights in the conditionals of two layers: the input expected of others.

    Attributes
    ----------
    up : int
        Of the units above given those below.
    down : int
        Of the units below given those above.
    """

    up: int
    down: int


@torch.no_grad()
def pretrain(
    energy: Any,
    layers: Layers,
    base: Distribution,
    rows: Rows,
    settings: Greedy,
    generator: torch.Generator,
) -> None:
    r"""Write weights and biases of RBMs of neighbouring layers into a deep machine.

    In a deep model, all layers but the first and the last have input from two sides, whereas in an
    RBM they have input from one. In the conditionals of such layers the weights are therefore
    doubled: as if there were two copies of x in the first RBM, and two of the top layer in the
    last; RBMs in between are plain ones, whose weights are halved. If two RBMs share a layer, their
    biases of this layer are averaged, so that its log-odds are the averages of theirs.

    Parameters
    ----------
    energy : BernoulliDBM or MixedDBM
        Its parameters are overwritten; the precisions of real columns stay.
    layers : Layers
    base : Distribution
        Of x.
    rows : Rows
        Of x.
    settings : Greedy
    generator : torch.Generator

    References
    ----------
    Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, section 3.1 and figure 2.
    """
    below: Rows = rows
    weights, biases = layers.weights(energy), layers.biases(energy)
    for number in range(1, layers.depth + 1):
        first, last = number == 1, number == layers.depth
        factors = Factors(2 if first and not last else 1, 2 if last and not first else 1)
        rbm = _new_rbm(
            base if first else None, layers.sizes[number - 1 : number + 1], energy, generator
        )
        train_pair(rbm, below, factors, settings, generator)
        weights[number - 1].copy_(rbm.weight if first or last else rbm.weight / 2)
        if first:
            biases[0].copy_(rbm.visible_bias)
        else:
            biases[number - 1].add_(rbm.visible_bias).div_(2)
        biases[number].copy_(rbm.hidden_bias)
        if not last:
            below = _upwards(rbm, below, factors)
    if isinstance(energy, MixedRBM) and layers.n_beside:  # biases beside those of the base
        energy.visible_bias[layers.n_visible :] -= HIDDEN_LOGIT


def _new_rbm(
    base: Distribution | None, sizes: tuple[int, ...], energy: Any, generator: torch.Generator
) -> BernoulliRBM | MixedRBM:
    """An untrained RBM of two neighbouring layers, with weights as in the deep model."""
    n_below, n_above = sizes
    new: dict[str, Any] = {"generator": generator, "dtype": energy.weight.dtype}
    new["scale"] = math.sqrt(2 / (n_below + n_above))
    rbm: BernoulliRBM | MixedRBM
    if base is None or isinstance(base, IndependentBernoulli):
        rbm = BernoulliRBM(n_below, n_above, base=base, **new)
        if base is not None:
            rbm.visible_bias.copy_(base.logits)
    else:
        rbm = MixedRBM(base, n_above, **new)
    rbm.hidden_bias.fill_(HIDDEN_LOGIT)
    return rbm


@torch.no_grad()
def train_pair(
    rbm: BernoulliRBM | MixedRBM,
    rows: Rows,
    factors: Factors,
    settings: Greedy,
    generator: torch.Generator,
) -> None:
    """Contrastive divergence by persistent chains of both conditionals, with centred units.

    With factors other than 1 these are not the conditionals of one joint distribution, but the
    chains still have a stationary distribution, whose moments become those of the rows.
    """
    up, down = factors
    weight, visible_bias, hidden_bias = rbm.tensors
    first = torch.arange(min(N_FIRST, len(rows)), device=rows.device)
    mu = _statistics(rbm, rows.take(first)).mean(0)
    lam = torch.full_like(hidden_bias, HIDDEN_LOGIT).sigmoid()
    visible_bias.sub_(down * (lam @ weight))
    hidden_bias.sub_(up * (weight @ mu))
    hidden: Tensor | None = None
    # Rate of the moving averages of the units' means, per batch.
    offset_rate = 0.01
    for epoch in range(settings.n_epochs):
        rate = settings.learning_rate * max(0.01, 1 - epoch / settings.n_epochs) / (up * down)
        for batch in Batches(rows, settings.batch_size, generator):
            x = _statistics(rbm, batch.x)
            h = torch.addmm(hidden_bias, x, weight.t(), alpha=up).sigmoid_()
            if hidden is None:
                hidden = Bernoulli(h.clone()).sample(generator)
            v = _statistics(rbm, rbm.visible(down * hidden).sample(generator))
            mean = torch.addmm(hidden_bias, v, weight.t(), alpha=up).sigmoid_()
            hidden = Bernoulli(mean.clone()).sample(generator)
            share = _shares(batch.weight, x)
            of_visible, of_hidden = share @ x - v.mean(0), share @ h - mean.mean(0)
            mu.lerp_(share @ x, offset_rate)
            lam.lerp_(share @ h, offset_rate)
            gradient = (h - lam).mul_(share[:, None]).t() @ (x - mu)
            gradient.addmm_((mean - lam).t(), v - mu, alpha=-1 / len(v))
            visible_bias.add_(of_visible - down * (gradient.t() @ lam), alpha=rate)
            hidden_bias.add_(of_hidden - up * (gradient @ mu), alpha=rate)
            weight.add_(gradient, alpha=rate)


def _shares(weight: Tensor | None, x: Tensor) -> Tensor:
    """Shares of the rows of a batch, (n,)."""
    if weight is None:
        return x.new_full((len(x),), 1 / len(x))
    return weight / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def _statistics(rbm: BernoulliRBM | MixedRBM, x: Tensor) -> Tensor:
    return rbm.statistics(x) if isinstance(rbm, MixedRBM) else x


def _upwards(rbm: BernoulliRBM | MixedRBM, rows: Rows, factors: Factors) -> Rows:
    """Means of the units above, the rows of the next RBM."""

    def means(x: Tensor) -> Tensor:
        field = torch.addmm(rbm.hidden_bias, _statistics(rbm, x), rbm.weight.t(), alpha=factors.up)
        return field.sigmoid_()

    weight = None if rows.weight is None else rows.counts
    x = rows.map(means).to(rows.device)
    return Rows(x, weight, dtype=rows.dtype, device=rows.device)
