"""Noise contrastive estimation: learn a density by telling its rows from known noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Batch, Energy, Loss, sampling
from skebm.base.objective import fill_missing, weighted_mean
from skebm.base.torchtools import softplus
from skebm.distributions import Distribution
from skebm.energies import Telescope
from skebm.objectives.log_partition import LogPartitionMonitor, gains, log_mean
from skebm.objectives.score_matching import Rowwise
from skebm.samplers._moves import standard_normal

FORMS = ("logistic", "ranking")
# Nats of log Z for a unit of the parameter: an optimizer that moves each parameter by as much gets
# there as soon as the network does.
SCALE = 10.0
NO_RANKS = 'form="ranking" knows no bridges: use form="logistic", or n_bridges=1.'


class Bridges(NamedTuple):
    """What the classifiers of a telescope say of rows.

    Attributes
    ----------
    loss : Tensor of shape (n,)
        Mean over the bridges.
    right : Tensor of shape (K, n)
        Share that each tells right, of its waymarks at either end that the row is a part of.
    """

    loss: Tensor
    right: Tensor


class NoiseContrastive(Rowwise):
    r"""Noise contrastive estimation: is a row one of the data or one of the noise?

    With :math:`\nu` draws of the noise q for a row of the data, and
    :math:`r(x) = -E(x) - c - \log q(x)` for the log of the density ratio that the model claims,

    .. math:: J = \mathbb E_{data}\, \mathrm{softplus}(\log \nu - r(x))
        + \nu\, \mathbb E_q\, \mathrm{softplus}(r(x) - \log \nu)

    is the cross-entropy of the classifier whose posterior log-odds are :math:`r - \log \nu`. c is
    learned with the energy and estimates log Z: where the energy can be the data's, J is least at
    that, and c is its log Z [1]_. As :math:`\nu` grows the gradient becomes that of the likelihood.

    ``form="ranking"`` picks the row among all draws of the batch, which leaves c out [2]_:

    .. math:: J = -\mathbb E_{data} \log
        \frac{e^{r(x)}}{e^{r(x)} + \sum_{j=1}^{m} e^{r(x'_j)}} , \qquad x'_j \sim q

    Both have an expected gradient of zero at the data's density.

    Where the data are far from the noise, every row is told from every draw, and nothing is
    learned. If the energy's network is a :class:`skebm.energies.Telescope`, rows and draws are
    mixed to waymarks in between, each of which is told from the next by a classifier of its own;
    J is the mean of their logistic losses, and c the sum of their constants [3]_.

    Parameters
    ----------
    energy : Energy
        On the domain of the noise. Where the noise is the energy's own base, log q cancels, and
        the classifier is the part of the energy that is trained.
    noise : Distribution
        q, with a density wherever the data are.
    noise_ratio : float > 0, default=1.0
        :math:`\nu`. A batch of n rows gets :math:`\nu n` draws, rounded, one at least. On the way
        to the data as many mixtures are made of them as are needed to use all, rows and draws.
    form : {"logistic", "ranking"}, default="logistic"
        A telescope has logistic bridges only.
    sigma : Tensor of shape (d,) or None, default=None
        Standard deviation of normal noise that is added to real rows of the data, in units of x.

    Attributes
    ----------
    log_partition : Tensor, scalar
        c, in nats; 0 for ever where rows are ranked.
    telescope : Telescope or None
        The network, if it is one.

    References
    ----------
    .. [1] Gutmann and Hyvarinen (2012), "Noise-contrastive estimation of unnormalized statistical
       models, with applications to natural image statistics", JMLR 13, section 2.2.
    .. [2] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP, section 3 (ranking).
    .. [3] Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS,
       section 3.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import NoiseContrastive
    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = Gaussian(torch.zeros(2), 1.0)
    >>> energy = NeuralEnergy(MLP().build(Spec((2,), generator)), Real((2,)), noise)
    >>> objective = NoiseContrastive(energy, noise)
    >>> loss = objective(Batch(torch.randn(20, 2, generator=generator)), None, generator)
    >>> round(loss.value.item(), 4)  # 2 log 2: the energy starts as the noise
    1.3863
    """

    passes = 3  # forward, and back for the rows of each layer and for its weights

    def __init__(
        self,
        energy: Energy,
        noise: Distribution,
        *,
        noise_ratio: float = 1.0,
        form: str = "logistic",
        sigma: Tensor | None = None,
    ):
        super().__init__()
        if not 0 < noise_ratio < math.inf:
            raise ValueError(f"noise_ratio must be positive and finite, got {noise_ratio!r}.")
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}.")
        if noise.domain != energy.domain:
            raise ValueError(f"The noise is one of {noise.domain}, the energy of {energy.domain}.")
        self.energy, self.noise = energy, noise
        self.noise_ratio, self.form = float(noise_ratio), form
        self.sigma: Tensor | None
        self.register_buffer("sigma", sigma, persistent=False)
        like = next(iter(energy.parameters()), torch.empty(0))
        if self.telescope is not None and form == "ranking":
            raise ValueError(NO_RANKS)
        shift = like.new_zeros(() if self.telescope is None else self.telescope.n_bridges)
        self.shift: Tensor
        if form == "logistic":
            self.shift = nn.Parameter(shift)
        else:  # stored alike, so that weights of the one form go on with the other
            self.register_buffer("shift", shift)
        self._log_partition_monitor = LogPartitionMonitor(noise, energy.domain)

    @property
    def telescope(self) -> Telescope | None:
        """The network, if it is one."""
        network = getattr(self.energy, "network", None)
        return network if isinstance(network, Telescope) else None

    @property
    def log_partition(self) -> Tensor:
        """c."""
        return SCALE * self.shift.sum()

    def log_ratio(self, x: Tensor) -> Tensor:
        """log of model over noise as the model has it, (n,)."""
        return -self._tilt(x) - self.log_partition

    def _tilt(self, x: Tensor) -> Tensor:
        """Minus the same without log Z."""
        if getattr(self.energy, "base", None) is self.noise:
            return self.energy.correction(x)
        return self.energy(x) + self.noise.log_prob(x)

    def _pair(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows with the noise that is added to them, and draws of the noise."""
        if self.sigma is not None:
            x = torch.addcmul(x, self.sigma, standard_normal(x, generator))
        m = max(1, round(self.noise_ratio * len(x)))
        return x, self.noise.sample(m, generator).to(x)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,), against fresh draws."""
        if without is not None:
            raise ValueError("Noise contrastive estimation leaves no centres of kernels out.")
        with torch.no_grad():
            x, other = self._pair(x, generator)
        if self.telescope is not None:
            return self._bridges(x, other).loss
        ratio = self.log_ratio(torch.cat([x, other]))
        return self._entropy(ratio[: len(x)], ratio[len(x) :])

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the gradient; what the loss says of each row is known, and asks for no graph."""
        if self.form == "ranking" or self.telescope is not None:
            return super().gradients(batch, state, generator)
        trained = self.cleared()
        x, other = self._pair(batch.x, generator)
        with torch.enable_grad():
            f = self._tilt(torch.cat([x, other]))
        n, m, weight = len(x), len(other), batch.weight
        # Log-odds of the wrong answer: what log-ratios of rows are short of, and draws too high.
        wrong = torch.add(f.detach(), self.shift, alpha=SCALE)
        if self.noise_ratio != 1:
            wrong += math.log(self.noise_ratio)
        of_draws = wrong[n:].neg_()
        share = wrong.new_full((n + m,), 1 / n)
        if weight is None:
            share[n:] = self.noise_ratio / m
        else:
            share[:n] *= weight
            share[n:] = weight.mean() * (self.noise_ratio / m)
        value = share @ softplus(wrong)
        pull = wrong.sigmoid_().mul_(share)
        of_draws.neg_()
        if f.requires_grad:
            f.backward(pull)
        self.shift.grad = SCALE * pull.sum()
        fill_missing(trained)
        return Loss(value, state)

    def _entropy(self, data: Tensor, noise: Tensor) -> Tensor:
        """Loss of each row of the data, (n,), from log-ratios; all carry the noise's share."""
        if self.form == "ranking":
            return softplus(noise.logsumexp(0) - data)
        prior = math.log(self.noise_ratio)
        return softplus(prior - data) + self.noise_ratio * softplus(noise - prior).mean()

    def _bridges(self, x: Tensor, other: Tensor) -> Bridges:
        """All classifiers of the telescope, at waymarks of rows and draws."""
        telescope = self.telescope
        assert telescope is not None
        n, m = len(x), len(other)
        copies = -(-m // n)  # of rows, so that no draw is left over
        one, two = x.repeat(copies, 1), other[torch.arange(copies * n, device=x.device) % m]
        here, loss, right = one, x.new_zeros(n), []
        for k in range(telescope.n_bridges):
            there = telescope.waymark(one, two, k + 1)
            ratio = telescope.log_ratio(torch.cat([here, there]), k) - SCALE * self.shift[k]
            near, far = ratio.view(2, copies, n)
            loss = loss + (softplus(-near) + softplus(far)).mean(0)
            discriminated = (near > 0).to(x.dtype) + (far < 0).to(x.dtype)
            right.append(discriminated.mean(0) / 2)
            here = there
        return Bridges(loss / telescope.n_bridges, torch.stack(right))

    def work(self, n_rows: int) -> float:
        """Of rows and draws."""
        return (1 + self.noise_ratio) * super().work(n_rows)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Loss, share of rows and draws told right (a half of each), nats above the noise.

        Of a telescope that of the bridge that tells them best, and no nats: no draw of the noise is
        near the model.
        """
        with sampling(self.energy):
            x, other = self._pair(batch.x, generator)
            if self.telescope is not None:
                found = self._bridges(x, other)
                hits = [weighted_mean(right, batch.weight) for right in found.right]
                loss = weighted_mean(found.loss, batch.weight)
                return {"loss": loss, "accuracy": torch.stack(hits).max()}
            n, draws = len(x), self._log_partition_monitor.draws(x)
            ratio = self.log_ratio(torch.cat([x, other, draws]))
        data, noise, log_w = ratio.tensor_split([n, n + len(other)])
        # Bayes' rule for as many rows as draws.
        right = weighted_mean((data > 0).to(x.dtype), batch.weight)
        logs = {
            "loss": weighted_mean(self._entropy(data, noise), batch.weight),
            "accuracy": (right + (log_w < 0).to(x.dtype).mean()) / 2,
        }
        return logs | gains(-data, *log_mean(log_w.double()), batch.weight)
