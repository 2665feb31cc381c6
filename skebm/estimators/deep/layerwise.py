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

# Rate of the moving averages of the units' means, per batch.
OFFSET_RATE = 0.01
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


class Copies(NamedTuple):
    """How often the layer below and the one above are there in the RBM of two layers."""

    below: int
    above: int


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

    In the machine, all layers but the first and the last have input from two sides, in an RBM from
    one. Units of the first RBM are therefore trained with two copies of x, those of the last with
    two copies of the top layer, which share their weights, and the weights of RBMs in between are
    halved. Biases of a layer that two RBMs have are averaged: the machine's log-odds are then the
    averages of theirs.

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
        copies = Copies(2 if first and not last else 1, 2 if last and not first else 1)
        rbm = _rbm(
            base if first else None, layers.sizes[number - 1 : number + 1], energy, generator
        )
        train_pair(rbm, below, copies, settings, generator)
        weights[number - 1].copy_(rbm.weight if first or last else rbm.weight / 2)
        if first:
            biases[0].copy_(rbm.visible_bias)
        else:
            biases[number - 1].add_(rbm.visible_bias).div_(2)
        biases[number].copy_(rbm.hidden_bias)
        if not last:
            below = _upwards(rbm, below, copies)
    if isinstance(energy, MixedRBM) and layers.n_beside:  # biases beside those of the base
        energy.visible_bias[layers.n_visible :] -= HIDDEN_LOGIT


def _rbm(
    base: Distribution | None, sizes: tuple[int, ...], energy: Any, generator: torch.Generator
) -> BernoulliRBM | MixedRBM:
    """An untrained RBM of two neighbouring layers, with weights as in the machine."""
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
    copies: Copies,
    settings: Greedy,
    generator: torch.Generator,
) -> None:
    """Persistent contrastive divergence with the centred gradient, one Gibbs step a batch."""
    u, w = copies
    weight, visible_bias, hidden_bias = rbm.tensors
    first = torch.arange(min(N_FIRST, len(rows)), device=rows.device)
    mu = _statistics(rbm, rows.take(first)).mean(0)
    lam = torch.full_like(hidden_bias, HIDDEN_LOGIT).sigmoid()
    visible_bias.sub_(w * (lam @ weight))
    hidden_bias.sub_(u * (weight @ mu))
    hidden: Tensor | None = None
    for epoch in range(settings.n_epochs):
        rate = settings.learning_rate * max(0.01, 1 - epoch / settings.n_epochs) / (u * w)
        for batch in Batches(rows, settings.batch_size, generator):
            x = _statistics(rbm, batch.x)
            h = torch.addmm(hidden_bias, x, weight.t(), alpha=u).sigmoid_()
            if hidden is None:
                hidden = _summed(Bernoulli(h), w, generator)
            below = rbm.visible(hidden)
            v = torch.stack([_statistics(rbm, below.sample(generator)) for _ in range(u)]).sum(0)
            mean = torch.addmm(hidden_bias, v, weight.t()).sigmoid_()
            hidden = _summed(Bernoulli(mean), w, generator)
            share = _shares(batch.weight, x)
            mu.lerp_(share @ x, OFFSET_RATE)
            lam.lerp_(share @ h, OFFSET_RATE)
            left = (h - lam).mul_(share[:, None]).t()
            gradient = left @ (u * (x - mu)) - (mean - lam).t() @ (v - u * mu) / len(v)
            of_visible = u * (share @ x) - v.mean(0)
            of_hidden = share @ h - mean.mean(0)
            gradient *= w
            visible_bias.add_(of_visible - w * (gradient.t() @ lam), alpha=rate)
            hidden_bias.add_(w * of_hidden - u * (gradient @ mu), alpha=rate)
            weight.add_(gradient, alpha=rate)


def _summed(units: Bernoulli, n: int, generator: torch.Generator) -> Tensor:
    """Sum of n independent draws, (m, H)."""
    return torch.stack([units.sample(generator) for _ in range(n)]).sum(0)


def _shares(weight: Tensor | None, x: Tensor) -> Tensor:
    """Shares of the rows of a batch, (n,)."""
    if weight is None:
        return x.new_full((len(x),), 1 / len(x))
    return weight / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def _statistics(rbm: BernoulliRBM | MixedRBM, x: Tensor) -> Tensor:
    return rbm.statistics(x) if isinstance(rbm, MixedRBM) else x


def _upwards(rbm: BernoulliRBM | MixedRBM, rows: Rows, copies: Copies) -> Rows:
    """Means of the units above, the rows of the next RBM."""

    def means(x: Tensor) -> Tensor:
        field = torch.addmm(
            rbm.hidden_bias, _statistics(rbm, x), rbm.weight.t(), alpha=copies.below
        )
        return field.sigmoid_()

    weight = None if rows.weight is None else rows.counts
    x = rows.map(means).to(rows.device)
    return Rows(x, weight, dtype=rows.dtype, device=rows.device)
