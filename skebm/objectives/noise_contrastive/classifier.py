"""Noise contrastive estimation: learn a density by classifying data versus noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Batch, Energy, Loss, sampling
from skebm.base.objective import fill_missing, weighted_mean
from skebm.base.torchtools import check_memory, softplus
from skebm.distributions import Distribution
from skebm.energies import Telescope
from skebm.objectives.log_partition import LogPartitionMonitor, gains, log_mean_and_error
from skebm.objectives.score_matching import Rowwise
from skebm.samplers._moves import standard_normal

FORMS = ("logistic", "ranking")
# Nats of log Z per unit of its parameter: optimizers that move all parameters by equal steps then
# fit log Z as fast as the network.
SCALE = 10.0
NO_RANKING = 'form="ranking" does not support bridges: use form="logistic", or n_bridges=1.'


class Bridges(NamedTuple):
    """Results of the classifiers of a telescope for each row.

    Attributes
    ----------
    loss : Tensor of shape (n,)
        Mean loss over the bridges.
    right : Tensor of shape (K, n)
        Accuracy of each bridge on the waymarks at its two ends that were made from the row.
    """

    loss: Tensor
    right: Tensor


class NoiseContrastive(Rowwise):
    r"""Noise contrastive estimation: train a classifier of data versus noise.

    With :math:`\nu` draws of the noise q per data row, and the model's log density ratio
    :math:`r(x) = -E(x) - c - \log q(x)`,

    .. math:: J = \mathbb E_{data}\, \mathrm{softplus}(\log \nu - r(x))
        + \nu\, \mathbb E_q\, \mathrm{softplus}(r(x) - \log \nu)

    is the cross-entropy of the classifier whose posterior log-odds are :math:`r - \log \nu`. The
    constant c is learned with the energy and estimates log Z: if the model is well specified, J is
    minimised by the energy of the data density, with c its log Z [1]_. As :math:`\nu` grows, the
    gradient approaches that of the likelihood.

    ``form="ranking"`` selects the row among all draws of the batch, so that c cancels [2]_:

    .. math:: J = -\mathbb E_{data} \log
        \frac{e^{r(x)}}{e^{r(x)} + \sum_{j=1}^{m} e^{r(x'_j)}} , \qquad x'_j \sim q

    Both forms have an expected gradient of zero at the data density.

    If the noise is far from the data, all rows and draws are classified correctly, and little is
    learned. If the energy's network is a :class:`skebm.energies.Telescope`, rows and draws are
    interpolated to intermediate waymarks, and a separate classifier discriminates each waymark
    from the next; J is the mean of their logistic losses, and c the sum of their constants [3]_.

    Parameters
    ----------
    energy : Energy
        Energy on the domain of the noise. If the noise is the base of the energy, log q cancels,
        and the classifier is the trained part of the energy.
    noise : Distribution
        q, whose support must include the data.
    noise_ratio : float > 0, default=1.0
        :math:`\nu`. A batch of n rows gets :math:`\nu n` draws, rounded, and at least one. With a
        telescope, rows or draws are repeated so that all of them contribute to the waymarks.
    form : {"logistic", "ranking"}, default="logistic"
        Telescopes support the logistic form only.
    sigma : Tensor of shape (d,) or None, default=None
        Standard deviation of Gaussian noise added to real-valued rows, in units of x.

    Attributes
    ----------
    log_partition : Tensor, scalar
        c, in nats; always 0 with ``form="ranking"``.
    telescope : Telescope or None
        The network, if it is a telescope.

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

    passes = 3  # forward, and backward for inputs and weights of each layer

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
            raise ValueError(
                f"noise and energy must have the same domain, got {noise.domain} and "
                f"{energy.domain}."
            )
        self.energy, self.noise = energy, noise
        self.noise_ratio, self.form = float(noise_ratio), form
        self.sigma: Tensor | None
        self.register_buffer("sigma", sigma, persistent=False)
        like = next(iter(energy.parameters()), torch.empty(0))
        if self.telescope is not None and form == "ranking":
            raise ValueError(NO_RANKING)
        shift = like.new_zeros(() if self.telescope is None else self.telescope.n_bridges)
        self.shift: Tensor
        if form == "logistic":
            self.shift = nn.Parameter(shift)
        else:  # a buffer of the same name, so that either form can load the other's weights
            self.register_buffer("shift", shift)
        self._log_partition_monitor = LogPartitionMonitor(noise, energy.domain)

    @property
    def telescope(self) -> Telescope | None:
        """The network, if it is a telescope."""
        network = getattr(self.energy, "network", None)
        return network if isinstance(network, Telescope) else None

    @property
    def log_partition(self) -> Tensor:
        """c."""
        return SCALE * self.shift.sum()

    def log_ratio(self, x: Tensor) -> Tensor:
        """Log density ratio of the model to the noise, (n,)."""
        return -self._tilt(x) - self.log_partition

    def _tilt(self, x: Tensor) -> Tensor:
        """Minus the log density ratio, without log Z."""
        if getattr(self.energy, "base", None) is self.noise:
            return self.energy.correction(x)
        return self.energy(x) + self.noise.log_prob(x)

    def _pair(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows with Gaussian noise added, and draws from the noise distribution."""
        if self.sigma is not None:
            x = torch.addcmul(x, self.sigma, standard_normal(x, generator))
        m = max(1, round(self.noise_ratio * len(x)))
        what = f"noise_ratio={self.noise_ratio:g} with {len(x)} rows in a batch"
        check_memory(what, m * x[0].numel(), x.dtype, x.device)
        return x, self.noise.sample(m, generator).to(x)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,), against fresh draws."""
        if without is not None:
            raise ValueError("Noise contrastive estimation cannot leave out kernel centres.")
        with torch.no_grad():
            x, other = self._pair(x, generator)
        if self.telescope is not None:
            return self._bridges(x, other).loss
        ratio = self.log_ratio(torch.cat([x, other]))
        return self._entropy(ratio[: len(x)], ratio[len(x) :])

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the gradient, with the derivative of the logistic loss in closed form."""
        if self.form == "ranking" or self.telescope is not None:
            return super().gradients(batch, state, generator)
        trained = self.clear_gradients()
        x, other = self._pair(batch.x, generator)
        with torch.enable_grad():
            f = self._tilt(torch.cat([x, other]))
        n, m, weight = len(x), len(other), batch.weight
        # Log-odds of the wrong class: of noise for the rows, of data for the draws.
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
        f_grad = wrong.sigmoid_().mul_(share)
        of_draws.neg_()
        if f.requires_grad:
            f.backward(f_grad)
        self.shift.grad = SCALE * f_grad.sum()
        fill_missing(trained)
        return Loss(value, state)

    def _entropy(self, data: Tensor, noise: Tensor) -> Tensor:
        """Loss of each data row, (n,), from log-ratios; each includes the noise's mean loss."""
        if self.form == "ranking":
            return softplus(noise.logsumexp(0) - data)
        prior = math.log(self.noise_ratio)
        return softplus(prior - data) + self.noise_ratio * softplus(noise - prior).mean()

    def _bridges(self, x: Tensor, other: Tensor) -> Bridges:
        """Evaluate all classifiers of the telescope at waymarks between rows and draws."""
        telescope = self.telescope
        assert telescope is not None
        n, m = len(x), len(other)
        copies = -(-m // n)  # of rows, so that all draws are used
        one, two = x.repeat(copies, 1), other[torch.arange(copies * n, device=x.device) % m]
        here, loss, right = one, x.new_zeros(n), []
        for k in range(telescope.n_bridges):
            there = telescope.waymark(one, two, k + 1)
            ratio = telescope.log_ratio(torch.cat([here, there]), k) - SCALE * self.shift[k]
            near, far = ratio.view(2, copies, n)
            loss = loss + (softplus(-near) + softplus(far)).mean(0)
            correct = (near > 0).to(x.dtype) + (far < 0).to(x.dtype)
            right.append(correct.mean(0) / 2)
            here = there
        return Bridges(loss / telescope.n_bridges, torch.stack(right))

    def work(self, n_rows: int) -> float:
        """Cost of rows and draws together."""
        return (1 + self.noise_ratio) * super().work(n_rows)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Loss, balanced accuracy, and mean log-likelihood ratio of the model to the noise.

        For a telescope, the accuracy is that of its best bridge, and there is no likelihood ratio,
        because no draw of the noise is near the model.
        """
        with sampling(self.energy):
            x, other = self._pair(batch.x, generator)
            if self.telescope is not None:
                bridges = self._bridges(x, other)
                hits = [weighted_mean(right, batch.weight) for right in bridges.right]
                loss = weighted_mean(bridges.loss, batch.weight)
                return {"loss": loss, "accuracy": torch.stack(hits).max()}
            n, draws = len(x), self._log_partition_monitor.draws(x)
            ratio = self.log_ratio(torch.cat([x, other, draws]))
        data, noise, log_w = ratio.tensor_split([n, n + len(other)])
        # Bayes classifier with equal prior probabilities.
        right = weighted_mean((data > 0).to(x.dtype), batch.weight)
        logs = {
            "loss": weighted_mean(self._entropy(data, noise), batch.weight),
            "accuracy": (right + (log_w < 0).to(x.dtype).mean()) / 2,
        }
        if self.clean_monitor is not None:
            return logs | self.clean_monitor.gains(self.energy, batch.x, batch.weight)
        return logs | gains(-data, *log_mean_and_error(log_w.double()), batch.weight)
