"""Adversarial training of joint energies: rows that gradients move, of p(y | x) and of p(x)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from skebm.base import Batch, Loss, Objective, Real, sampling
from skebm.base.objective import weighted_mean
from skebm.base.torchtools import softplus
from skebm.energies import NeuralEnergy
from skebm.samplers._moves import standard_normal

# Draws of noise and negatives over which the loss of held-out rows is averaged.
N_COPIES = 8


class SignAttack(NamedTuple):
    r"""Projected gradient ascent of the cross-entropy in a box around each row.

    .. math:: \delta \leftarrow \mathrm{clip}\bigl(\delta + \eta\, \mathrm{sign}\,
        \nabla_\delta [-\log p(y \mid x + \delta)], -\epsilon, \epsilon\bigr)

    from uniform numbers in the box [1]_. Rows whose class is unknown keep those.

    Attributes
    ----------
    radius : Tensor of shape (d,)
        :math:`\epsilon` of each column, in units of x.
    n_steps : int
        Number of steps; with 0 the rows have uniform noise.
    step_size : float
        :math:`\eta`, in units of the radius.

    References
    ----------
    .. [1] Madry, Makelov, Schmidt, Tsipras and Vladu (2018), "Towards deep learning models
       resistant to adversarial attacks", ICLR, section 2.1 and equation 2.1.
    """

    radius: Tensor
    n_steps: int = 10
    step_size: float = 0.25

    def __call__(
        self,
        logits: Callable[[Tensor], Tensor],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        domain: Real | None = None,
    ) -> Tensor:
        """Rows (n, d) moved against their classes y, within the bounds of a domain; detached."""
        radius = self.radius.to(x)
        uniform = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        x = x.detach()
        moved = within(domain, x + radius * (2 * uniform - 1))
        for _ in range(self.n_steps):
            with torch.enable_grad():
                at = moved.requires_grad_(True)
                loss = cross_entropy(logits(at), y, reduction="sum", ignore_index=-1)
                (grad,) = torch.autograd.grad(loss, at)
            step = self.step_size * radius * grad.sign()
            moved = (at.detach() + step).clamp(x - radius, x + radius)
            moved = within(domain, moved)
        return moved.detach()


class AdversarialContrast(Objective):
    r"""Logistic loss of rows against rows that gradient ascent has made likely.

    .. math:: L = \mathbb E_{data}\, \mathrm{softplus}(-g(x))
        + \mathbb E_{neg}\, \mathrm{softplus}(g(x')) , \qquad
        x'_{t + 1} = x'_t + \eta \sqrt d\, \frac{\nabla g(x'_t)}{|\nabla g(x'_t)|}

    where g is minus the trained part of the energy, of a joint energy the log-sum-exp of its logits
    [1]_, [2]_. Each negative starts at a draw of the base, or at one of the rows `start`, and takes
    a number of steps that is uniform from 0 to `n_steps`. Without steps this is noise contrastive
    estimation, at whose minimum g is the log of the ratio of the density of the rows to that of the
    starts. With steps the negatives follow the model and g is no log-ratio of anything that is
    known: it separates the rows from whatever the model would take for them.

    Parameters
    ----------
    energy : NeuralEnergy
        Energy of real rows.
    n_steps : int, default=10
        Maximum number of steps.
    step_size : float, default=0.1
        :math:`\eta`: root mean square over the columns of what a step changes, in units of x.
    start : Tensor of shape (m, d) or None, default=None
        Rows at which negatives start; None are draws of the base, or uniform ones within bounds.
    sigma : Tensor of shape (d,) or None, default=None
        Standard deviation of Gaussian noise added to the rows, and to `start`, in units of x.
    energy_l2 : float, default=0
        Weight of a penalty on the squares of g at rows and negatives.

    References
    ----------
    .. [1] Yin, Zhang, Steele, Shavit and Wang (2025), "Joint discriminative-generative modeling via
       dual adversarial training", arXiv:2510.13872 (the loss of p(x); there negatives start at
       images of another data set, and the number of steps grows during training).
    .. [2] Yin, Li and Rohde (2022), "Learning energy-based models with adversarial training", ECCV.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.distributions import Gaussian
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.objectives import AdversarialContrast
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = Gaussian(torch.zeros(2), 1.0)
    >>> energy = NeuralEnergy(MLP((16,)).build(Spec((2,), generator)), Real((2,)), base)
    >>> objective = AdversarialContrast(energy, n_steps=5)
    >>> loss = objective(Batch(torch.randn(20, 2, generator=generator)), None, generator)
    >>> round(loss.value.item(), 4)  # 2 log 2: the network starts at zero
    1.3863
    """

    persistent = False

    def __init__(
        self,
        energy: NeuralEnergy,
        *,
        n_steps: int = 10,
        step_size: float = 0.1,
        start: Tensor | None = None,
        sigma: Tensor | None = None,
        energy_l2: float = 0.0,
    ):
        super().__init__()
        if not isinstance(energy.domain, Real):
            raise ValueError(
                f"Negatives by gradient ascent are rows of numbers, not of {energy.domain}: use "
                "chains."
            )
        self.energy: NeuralEnergy = energy
        self.n_steps, self.step_size, self.energy_l2 = n_steps, step_size, energy_l2
        self.sigma: Tensor | None
        self.starts: Tensor | None
        self.register_buffer("sigma", sigma, persistent=False)
        self.register_buffer("starts", start, persistent=False)

    def start(self, batch: Batch, generator: torch.Generator) -> None:
        """No state; `ValueError` if negatives have nowhere to start."""
        domain = self.energy.domain
        bounded = isinstance(domain, Real) and None not in (domain.lower, domain.upper)
        if self.energy.base is None and self.starts is None and not bounded:
            raise ValueError(
                "Negatives have nowhere to start without a base: set base or bounds, or `start` of "
                "Adversarial."
            )

    # ---------------------------------------------------------------- the loss

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch against as many negatives."""
        x, negatives = self.phases(batch, generator)
        f = self.energy.parametric_energy(torch.cat([x, negatives]))
        return Loss(self.contrast(f, batch), state)

    def phases(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noisy rows, and as many negatives."""
        with torch.no_grad(), sampling(self.energy):
            x = self._noisy(batch.x, generator)
            return x, self._ascend(self._starts(x, generator), generator)

    def contrast(self, f: Tensor, batch: Batch, state: Any = None) -> Tensor:
        """The loss from the values f = -g at the rows, then at the negatives, and the penalty."""
        data, negatives = f[: len(batch.x)], f[len(batch.x) :]
        value, other = softplus(data), softplus(-negatives)
        if self.energy_l2:
            value = value + self.energy_l2 * data.square()
            other = other + self.energy_l2 * negatives.square()
        if batch.weight is None:
            return value.mean() + other.mean()
        return (batch.weight * value).mean() + batch.weight.mean() * other.mean()

    def _noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x if self.sigma is None else x + self.sigma * standard_normal(x, generator)

    def _starts(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """As many starts as there are rows x."""
        energy = self.energy
        if self.starts is not None:
            place = torch.randint(len(self.starts), (len(x),), generator=generator, device=x.device)
            return self._noisy(self.starts[place].to(x), generator)
        if energy.base is not None:
            return energy.base.sample(len(x), generator).to(x)
        return energy.domain.uniform(len(x), generator, dtype=x.dtype)

    def _ascend(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Rows after a random number of steps of ascent each."""
        last = torch.randint(
            self.n_steps + 1, (len(x),), generator=generator, device=generator.device
        )
        x, length = x.clone(), self.step_size * x.shape[1] ** 0.5
        for step in range(self.n_steps):
            moves = (last > step).nonzero().ravel()
            if not len(moves):
                break
            at = x[moves]
            grad = self.energy.correction_and_grad(at)[1]
            norm = grad.norm(dim=1, keepdim=True)
            at = at - length * torch.where(norm > 0, grad / norm, 0.0)
            x[moves] = within(self.energy.domain, at)
        return x

    def work(self, n_rows: int) -> float:
        """Forward and backward passes over both, and at each step of the negatives."""
        return (6 + self.n_steps) * super().work(n_rows)

    # ---------------------------------------------------------------- monitoring

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Loss, and mean of f over the rows less that over negatives."""
        with sampling(self.energy):
            x, negatives = self.phases(batch, generator)
            f = self.energy.parametric_energy(torch.cat([x, negatives]))
            gap = weighted_mean(f[: len(x)], batch.weight) - f[len(x) :].mean()
            if batch.weight is not None:
                mean = batch.weight.mean()
                batch = batch._replace(weight=batch.weight / mean.clamp_min(1e-30))
            return {"loss": self.contrast(f, batch), "energy_gap": gap}

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """The loss of held-out rows, a mean over new noise and negatives."""
        losses = [self.monitor(batch, state, generator)["loss"] for _ in range(N_COPIES)]
        return torch.stack(losses).mean()


def within(domain: Any, x: Tensor) -> Tensor:
    """Rows with entries outside the bounds of a domain moved to them."""
    if domain is None or (domain.lower is None and domain.upper is None):
        return x
    return x.clamp(domain.lower, domain.upper)
