r"""Objectives of classes and rows: classifiers whose logits also define a density."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from skebm.base import Batch, Loss, Objective, Sampler, sampling
from skebm.base.objective import fill_missing, weighted_mean
from skebm.base.processes import reduce_gradients
from skebm.distributions._fitting import draw_index
from skebm.energies import ClassMarginal, NeuralEnergy
from skebm.objectives.contrastive.divergence import ContrastiveDivergence
from skebm.objectives.joint.adversarial import AdversarialContrast, SignAttack
from skebm.samplers import ChainPolicy

FORMS = ("factored", "joint")
# Target of an unlabelled row.
UNKNOWN = -1
# Probability from which on a model's own class of an unlabelled row counts as its label.
SURE = 0.9
# Error of a mean of logits in float32, and halvings by which the power of their sum is found.
ROUNDING, N_BISECTIONS = 1e-5, 20


class View(NamedTuple):
    """Inputs of a batch to the loss: rows of both terms, random numbers, state of the chains.

    Attributes
    ----------
    classified : Tensor of shape (n, d) or None
        Rows of the cross-entropy; None if they are those of the likelihood.
    x : Tensor of shape (n, d) or None
        Rows of the likelihood, with training noise; None if the likelihood has no weight.
    negatives : Tensor of shape (m, d) or None
        Rows that those are compared with: of the chains, or moved by gradient ascent.
    u : Tensor of shape (m,) or None
        Uniform numbers that determine the classes of the chains; None if none are drawn.
    state : object
        State of the chains.
    pseudo : Tensor of shape (n,) or None
        Classes of unlabelled rows that the model is sure of, -1 for all others; None if they have
        no weight.
    """

    classified: Tensor | None
    x: Tensor | None
    negatives: Tensor | None
    u: Tensor | None
    state: Any
    pseudo: Tensor | None = None


class ClassObjective(Objective):
    """Cross-entropy plus `generative_weight` times the negative log-likelihood of the rows.

    This base class holds what all such objectives monitor and store. Rows with target -1 are
    unlabelled and contribute to p(x) alone, as do all rows of a batch without targets.

    Attributes
    ----------
    generative : ContrastiveDivergence or AdversarialContrast
        Objective of p(x).
    generative_weight : float
    class_weight : Tensor of shape (K,) or None
        Weights of the classes in the cross-entropy.
    """

    class_weight: Tensor | None
    unlabeled_weight: float = 0.0

    def __init__(
        self,
        generative: Any,
        generative_weight: float,
        class_weight: Tensor | None,
    ):
        super().__init__()
        if not 0 <= generative_weight < math.inf:
            raise ValueError(
                f"generative_weight must be finite and not negative, got {generative_weight!r}."
            )
        if getattr(getattr(generative, "chains", None), "reweight", False):
            raise ValueError(f"{type(self).__name__} takes no chains with reweight=True.")
        self.generative, self.generative_weight = generative, generative_weight
        self.register_buffer("class_weight", class_weight, persistent=False)

    @property
    def energy(self) -> Any:  # type: ignore[override]
        """Energy of the marginal p(x)."""
        return self.generative.energy

    @abc.abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """log p(x, y) up to a function of x, (n, K)."""

    @property
    def persistent(self) -> bool:
        """Whether chains continue from batch to batch."""
        return self.generative.persistent

    def kernel(self, halvings: int) -> Sampler:
        """The sampler with its step size halved `halvings` times."""
        return self.generative.kernel(halvings)

    @property
    def clean_monitor(self) -> Any:
        """The ``clean_monitor`` of the likelihood."""
        return self.generative.clean_monitor

    @clean_monitor.setter
    def clean_monitor(self, monitor: Any) -> None:
        self.generative.clean_monitor = monitor

    def start(self, batch: Batch, generator: torch.Generator) -> Any:
        return self.generative.start(batch, generator) if self.generative_weight else None

    def cross_entropy_of(
        self, logits: Tensor, batch: Batch, pseudo: Tensor | None = None
    ) -> Tensor:
        """Mean over all rows, with zero for unlabelled ones that have no pseudo-label (n,)."""
        if batch.y is None:
            return 0 * logits.sum()
        value = cross_entropy(logits, batch.y, reduction="none", ignore_index=UNKNOWN)
        if self.class_weight is not None:
            value = value * self.class_weight[batch.y.clamp_min(0)]
        if pseudo is not None:
            of_pseudo = cross_entropy(logits, pseudo, reduction="none", ignore_index=UNKNOWN)
            value = value + self.unlabeled_weight * of_pseudo
        return (value if batch.weight is None else batch.weight * value).mean()

    # ---------------------------------------------------------------- monitoring

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Cross-entropy and accuracy on labelled rows, and the values monitored for p(x)."""
        with sampling(self.energy):
            logits = self.logits(batch.x)
            loss = self.cross_entropy_of(logits, batch)
        logs = {"loss": loss, "cross_entropy": loss}
        if batch.y is not None and bool((batch.y != UNKNOWN).any()):
            known = batch.y != UNKNOWN
            weight = None if batch.weight is None else batch.weight[known]
            right = (logits.argmax(1) == batch.y)[known].to(logits.dtype)
            logs["accuracy"] = weighted_mean(right, weight)
        if not self.generative_weight:
            return logs
        generative = self.generative.monitor(batch, state, generator)
        loss = loss + self.generative_weight * generative["loss"]
        return generative | logs | {"loss": loss}

    @torch.no_grad()
    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        """Cross-entropy minus the weighted log-likelihood ratio to the base."""
        with sampling(self.energy):
            value = self.cross_entropy_of(self.logits(batch.x), batch)
        if self.generative_weight:
            weight = self.generative_weight
            value = value + weight * self.generative.validation_loss(batch, state, generator)
        return value

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        """Apply the criteria of contrastive divergence; check a plain classifier for finite values.

        A decrease in log p(x) does not count if a weighted increase in log p(y | x) compensates it.
        """
        if not self.generative_weight:
            return super().divergence_reason(logs, before, n_rows)
        if before and "gain_over_base" in logs:
            improved = (before["cross_entropy"] - logs["cross_entropy"]) / self.generative_weight
            gain = logs["gain_over_base"] + max(0.0, improved)
            logs = logs | {"gain_over_base": gain}
        return self.generative.divergence_reason(logs, before, n_rows)

    def work(self, n_rows: int) -> float:
        """Cost of both terms together."""
        if not self.generative_weight:
            return 3 * super().work(n_rows)
        return self.generative.work(n_rows)

    # ---------------------------------------------------------------- state

    def snapshot(self, state: Any) -> Any:
        return state if state is None else self.generative.snapshot(state)

    def state_after_roll_back(
        self, state: Any, batch: Batch, generator: torch.Generator, tries: int = 1
    ) -> Any:
        if state is None:
            return None
        return self.generative.state_after_roll_back(state, batch, generator, tries)

    def over_ranks(self, state: Any, rows: Any, mean: Any) -> Any:
        return state if state is None else self.generative.over_ranks(state, rows, mean)

    def advice(self, state: Any) -> str:
        return "" if state is None else self.generative.advice(state)

    def pack(self, state: Any) -> dict[str, Tensor | None]:
        return self.generative.pack(state)

    def unpack(self, packed: dict[str, Tensor | None]) -> Any:
        return self.generative.unpack(packed) if packed else None


class Compared(NamedTuple):
    """Rows with training noise, what they are compared with, and the state of the chains."""

    x: Tensor
    negatives: Tensor
    state: Any


class JointObjective(ClassObjective):
    """Cross-entropy of classes plus a contrast of rows, of one network.

    :class:`JointLikelihood` documents the parameters; a subclass says what rows are compared with.
    """

    form = "factored"

    def __init__(
        self,
        generative: Any,
        *,
        generative_weight: float = 1.0,
        class_weight: Tensor | None = None,
        noisy: bool = True,
        augmentation: Any = None,
        attack: SignAttack | None = None,
        sharpness: float = 0.0,
        clip_norm: float | None = None,
        unlabeled_weight: float = 0.0,
    ):
        super().__init__(generative, generative_weight, class_weight)
        self.noisy, self.augmentation, self.attack = noisy, augmentation, attack
        self.sharpness, self.clip_norm = sharpness, clip_norm
        self.unlabeled_weight = unlabeled_weight

    @abc.abstractmethod
    def _draw_batch(self, batch: Batch, state: Any, generator: torch.Generator) -> Compared:
        """Noisy rows of a batch, the rows that they are compared with, and the next state."""

    # ---------------------------------------------------------------- the loss

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Loss of a batch, after its chains have moved."""
        view = self._view(batch, state, generator)
        return Loss(self._value(view, batch), view.state)

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """Write the clipped gradient, evaluated at the weights or after the ascent step."""
        view, trained = self._view(batch, state, generator), self.clear_gradients()
        value = self._backward(view, batch, trained)
        if self.sharpness:
            norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
            length = self.sharpness / norm.clamp_min(1e-12)
            before = [p.clone() for p in trained]
            for p in trained:
                assert p.grad is not None
                p.add_(length * p.grad)
            self._backward(view, batch, self.clear_gradients())
            for p, old in zip(trained, before, strict=True):
                p.copy_(old)
        if self.clip_norm is not None:
            reduce_gradients(value)
            torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)
        return Loss(value, view.state)

    def _view(self, batch: Batch, state: Any, generator: torch.Generator) -> View:
        """Move the chains and draw the noise, classes and augmentation of a batch."""
        classified: Tensor | None = batch.x
        x, negatives, u = None, None, None
        if self.generative_weight:
            x, negatives, state = self._draw_batch(batch, state, generator)
            if self.form == "joint":
                kind: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
                u = torch.rand(len(negatives), generator=generator, **kind)
            if self.noisy or self.generative.sigma is None:
                classified = None if self.augmentation is None and self.attack is None else x
        if self.augmentation is not None:
            with torch.no_grad():
                classified = self.augmentation(classified, generator)
        if self.attack is not None and batch.y is not None:
            assert classified is not None  # an attack is on rows of its own
            with sampling(self.energy):
                domain = self.energy.domain
                classified = self.attack(self.logits, classified, batch.y, generator, domain)
        return View(classified, x, negatives, u, state, self._pseudo_labels(batch))

    @torch.no_grad()
    def _pseudo_labels(self, batch: Batch) -> Tensor | None:
        """Classes of unlabelled rows that the model is sure of, without noise; -1 for others."""
        if not self.unlabeled_weight or batch.y is None:
            return None
        unknown = (batch.y == UNKNOWN).nonzero().ravel()
        found = torch.full_like(batch.y, UNKNOWN)
        if len(unknown):
            with sampling(self.energy):
                share, label = self.logits(batch.x[unknown]).softmax(1).max(1)
            found[unknown] = torch.where(share >= SURE, label, UNKNOWN)
        return found

    def _backward(self, view: View, batch: Batch, trained: list[torch.nn.Parameter]) -> Tensor:
        """Write the gradient at the current weights and return the loss there."""
        with torch.enable_grad():
            value = self._value(view, batch)
            value.backward()
        fill_missing(trained)
        return value.detach()

    def _value(self, view: View, batch: Batch) -> Tensor:
        """Loss, by a single pass over the rows of all terms."""
        network, weight = self._class_marginal, self.generative_weight
        if view.x is None:
            assert view.classified is not None
            return self.cross_entropy_of(self.logits(view.classified), batch, view.pseudo)
        assert view.negatives is not None
        chain, n = view.negatives, len(view.x)
        shared = view.classified is None
        parts = [view.x, chain] if view.classified is None else [view.x, chain, view.classified]
        logits = self.logits(torch.cat(parts))
        both = logits[: n + len(chain)]
        classified = logits[:n] if shared else logits[len(both) :]
        discriminative = self.cross_entropy_of(classified, batch, view.pseudo)
        if view.u is None:
            f = network.of_logits(both)
            return discriminative + weight * self.generative.contrast(f, batch, view.state)
        of_rows, of_chains = both.split([n, len(chain)])
        f = torch.cat([self._of_targets(of_rows, batch.y), self._of_draws(of_chains, view.u)])
        joint = self.generative.contrast(f, batch, view.state)
        return (1 - weight) * discriminative + weight * joint

    def _of_targets(self, logits: Tensor, y: Tensor | None) -> Tensor:
        """Minus the logit of each row's class; minus the log-sum-exp of all for unlabelled rows."""
        if y is None:
            return self._class_marginal.of_logits(logits)
        known = y != UNKNOWN
        own = logits.gather(1, y.clamp_min(0)[:, None])[:, 0]
        return torch.where(known, -own, self._class_marginal.of_logits(logits))

    def _of_draws(self, logits: Tensor, u: Tensor) -> Tensor:
        """Minus the logit of a class drawn from p(y | x) for each row."""
        drawn = draw_index(logits.detach().softmax(1), u)
        return -logits.gather(1, drawn[:, None])[:, 0]

    @property
    def _class_marginal(self) -> ClassMarginal:
        network: Any = self.energy.network
        return network

    def logits(self, x: Tensor) -> Tensor:
        """log p(x, y) - log q(x) up to a constant, (n, K)."""
        return self._class_marginal.classifier(self.energy.as_input(x))


class JointLikelihood(JointObjective):
    r"""Cross-entropy plus the negative log-likelihood of the rows, by contrastive divergence.

    .. math:: L = -\mathbb E \log p(y \mid x) - \lambda\, \mathbb E \log p(x) , \qquad
        p(x, y) = \tfrac1Z q(x)\, e^{\mathrm{logits}_y(x)}

    The first term is exact. The gradient of the second is that of :class:`ContrastiveDivergence`
    for the energy :math:`-\log q(x) - \log \sum_y e^{\mathrm{logits}_y(x)}`, with the bias of its
    chains. With :math:`\lambda = 0` the model is a plain classifier and no chains are run. With
    ``form="joint"`` the loss is

    .. math:: L = -(1 - \lambda)\, \mathbb E \log p(y \mid x) - \lambda\, \mathbb E \log p(x, y) ,

    whose gradient draws the classes of the chains from :math:`p(y \mid x)`: if the chains are
    distributed as the model, it has the same expectation and more variance; if not, the classes
    are biased as the chains are [1]_.

    Rows with target -1 are unlabelled and contribute to p(x), as do all rows of a batch without
    targets. With `unlabeled_weight` they also contribute to the cross-entropy, by the class that
    has a probability of 0.9 or more at the row without noise, where there is one [4]_, [5]_.

    Parameters
    ----------
    energy : NeuralEnergy
        Energy whose network is a :class:`~skebm.energies.ClassMarginal`.
    sampler, chains, **generative
        Arguments of :class:`ContrastiveDivergence`, except for `refinement` and reweighted chains.
    generative_weight : float, default=1
        :math:`\lambda \ge 0`, at most 1 with ``form="joint"``.
    form : {"factored", "joint"}, default="factored"
        Which of the two losses to minimise.
    class_weight : Tensor of shape (K,) or None, default=None
        Weights of the classes in the cross-entropy.
    noisy : bool, default=True
        Whether the cross-entropy is computed on the noisy rows, as the likelihood is, so that both
        terms belong to one density of noisy rows and classes. Otherwise, and always with
        :math:`\lambda = 0`, it is computed on the rows without noise.
    augmentation : callable or None, default=None
        ``augmentation(rows, generator)``, applied to the rows of the cross-entropy only, not to
        those of the likelihood [2]_.
    attack : SignAttack or None, default=None
        What moves the rows of the cross-entropy against their classes, after noise and
        augmentation.
    sharpness : float, default=0
        :math:`\rho` of sharpness-aware minimisation [3]_: the gradient is evaluated after an ascent
        step of this length, which costs a second pass. With 0 it is evaluated at the weights.
    clip_norm : float or None, default=None
        Maximum norm of the gradient.
    unlabeled_weight : float, default=0
        Weight of the cross-entropy of unlabelled rows.

    References
    ----------
    .. [1] Grathwohl et al. (2020), "Your classifier is secretly an energy based model and you
       should treat it like one", ICLR, section 4, equation 10.
    .. [2] Yang, Su and Ji (2023), "Towards bridging the performance gaps of joint energy-based
       models", CVPR, section 4 (SADA-JEM).
    .. [3] Foret, Kleiner, Mobahi and Neyshabur (2021), "Sharpness-aware minimization for
       efficiently improving generalization", ICLR, algorithm 1.
    .. [4] Lee (2013), "Pseudo-label: the simple and efficient semi-supervised learning method for
       deep neural networks", ICML workshop on challenges in representation learning.
    .. [5] Sohn et al. (2020), "FixMatch: simplifying semi-supervised learning with consistency and
       confidence", NeurIPS.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, ClassMarginal, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import JointLikelihood
    >>> from skebm.samplers import MALA, FromData
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = ClassMarginal(MLP((16,)).build(Spec((2,), generator, n_classes=3)))
    >>> energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2), 1.0))
    >>> objective = JointLikelihood(energy, MALA(0.5), FromData())
    >>> rows = torch.randn(20, 2, generator=generator)
    >>> batch = Batch(rows, torch.randint(3, (20,), generator=generator))
    >>> loss = objective(batch, objective.start(batch, generator), generator)
    >>> round(loss.value.item(), 4)  # log 3: all classes are equally likely
    1.0986
    """

    def __init__(
        self,
        energy: NeuralEnergy,
        sampler: Sampler,
        chains: ChainPolicy,
        *,
        generative_weight: float = 1.0,
        form: str = "factored",
        class_weight: Tensor | None = None,
        noisy: bool = True,
        augmentation: Any = None,
        attack: SignAttack | None = None,
        sharpness: float = 0.0,
        clip_norm: float | None = None,
        unlabeled_weight: float = 0.0,
        **generative: Any,
    ):
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}.")
        if form == "joint" and generative_weight > 1:
            raise ValueError(
                f'generative_weight must be between 0 and 1 with form="joint", got '
                f"{generative_weight!r}."
            )
        if "refinement" in generative:
            raise ValueError("JointLikelihood takes no `refinement`.")
        check_has_classes(energy)
        super().__init__(
            ContrastiveDivergence(energy, sampler, chains, **generative),
            generative_weight=generative_weight,
            class_weight=class_weight,
            noisy=noisy,
            augmentation=augmentation,
            attack=attack,
            sharpness=sharpness,
            clip_norm=clip_norm,
            unlabeled_weight=unlabeled_weight,
        )
        self.form = form

    def _draw_batch(self, batch: Batch, state: Any, generator: torch.Generator) -> Compared:
        x, state = self.generative.phases(batch, state, generator)
        return Compared(x, state.chain.x, state)


class AdversarialJoint(JointObjective):
    r"""Cross-entropy plus a logistic loss of the rows against rows made by gradient ascent.

    .. math:: L = -\mathbb E \log p(y \mid x) + \lambda \Bigl(
        \mathbb E_{data}\, \mathrm{softplus}(-g(x)) + \mathbb E_{neg}\, \mathrm{softplus}(g(x'))
        \Bigr), \qquad g(x) = \log \sum_y e^{\mathrm{logits}_y(x)}

    With `attack` the first term is that of rows moved against their classes, and both terms are
    trained adversarially [1]_. g is not trained by likelihood: see :class:`AdversarialContrast` for
    what it is.

    Parameters
    ----------
    energy : NeuralEnergy
        Energy whose network is a :class:`~skebm.energies.ClassMarginal`.
    n_steps, step_size, start, sigma, energy_l2
        Arguments of :class:`AdversarialContrast`.
    **of_classes
        Arguments of :class:`JointLikelihood`: `generative_weight`, which is :math:`\lambda \ge 0`,
        `class_weight`, `noisy`, `augmentation`, `attack`, `sharpness`, `clip_norm`,
        `unlabeled_weight`.

    References
    ----------
    .. [1] Yin, Zhang, Steele, Shavit and Wang (2025), "Joint discriminative-generative modeling via
       dual adversarial training", arXiv:2510.13872.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.distributions import Gaussian
    >>> from skebm.energies import MLP, ClassMarginal, NeuralEnergy, Spec
    >>> from skebm.objectives import AdversarialJoint
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = ClassMarginal(MLP((16,)).build(Spec((2,), generator, n_classes=3)))
    >>> energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2), 1.0))
    >>> batch = Batch(torch.randn(20, 2, generator=generator), torch.zeros(20, dtype=torch.long))
    >>> loss = AdversarialJoint(energy, n_steps=3)(batch, None, generator)
    >>> round(loss.value.item(), 4)  # log 3, log 4 / 3 of the rows and log 4 of the negatives
    2.7726
    """

    def __init__(
        self,
        energy: NeuralEnergy,
        *,
        n_steps: int = 10,
        step_size: float = 0.1,
        start: Tensor | None = None,
        sigma: Tensor | None = None,
        energy_l2: float = 0.0,
        **of_classes: Any,
    ):
        check_has_classes(energy)
        of_rows: dict[str, Any] = {"start": start, "sigma": sigma, "energy_l2": energy_l2}
        contrast = AdversarialContrast(energy, n_steps=n_steps, step_size=step_size, **of_rows)
        super().__init__(contrast, **of_classes)

    def _draw_batch(self, batch: Batch, state: Any, generator: torch.Generator) -> Compared:
        x, negatives = self.generative.phases(batch, generator)
        return Compared(x, negatives, state)


def check_has_classes(energy: NeuralEnergy) -> None:
    """Raise `TypeError` for an energy whose network has no logits."""
    if not isinstance(energy.network, ClassMarginal):
        raise TypeError(f"The energy's network must be a ClassMarginal, got {energy.network!r}.")


def likeliest_power(rows: Tensor, weight: Tensor, draws: Tensor) -> float:
    r"""The power c in [0, 1] at which rows are most likely under :math:`q(x) e^{c g(x)} / Z(c)`.

    g is the log-sum-exp of the logits. The mean of :math:`c g - \log \mathbb E_q e^{c g}` over the
    rows is concave in c, and 0 at c = 0: at its maximum the rows are no less likely than under q.

    Parameters
    ----------
    rows : Tensor of shape (n,)
        g at the rows.
    weight : Tensor of shape (n,)
        Weights of the rows.
    draws : Tensor of shape (m,)
        g at draws of q.
    """
    mean, draws = weighted_mean(rows.double(), weight.double()), draws.double()

    def rises(power: float) -> bool:
        """Whether the derivative is positive, or zero up to rounding."""
        return bool(mean - (power * draws).softmax(0) @ draws > -ROUNDING)

    if rises(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) else (low, middle)
    return low
