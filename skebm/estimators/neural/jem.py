"""Joint energy-based models: classifiers whose logits also define a density of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from torch import Tensor, nn

from skebm._validation import (
    Interval,
    StrOptions,
    check_is_fitted,
    draw_seed,
)
from skebm.base import Sampler, sampling
from skebm.energies import ClassMarginal, NeuralEnergy, Spec, build_network
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import JOINT_CONSTRAINTS, BaseEBM, assign_parameters
from skebm.estimators.classifiers import (
    ProbabilisticClassifierMixin,
    class_weights,
    with_copies_of_labelled,
)
from skebm.estimators.neural.family import (
    BASE,
    CONFIGS,
    DOMAIN,
    FEWEST_PASSES,
    NEURAL_CONSTRAINTS,
    POLICIES,
    SIGMA,
    ChainRule,
    NeuralFamily,
    NeuralRecipe,
    asks_for_bits,
    fit_any_bases,
    learn_any_table,
    network_of,
    neural_plan,
    of_images,
    policy_for,
    policy_with_chains,
    sampler_of,
    takes_noise_off,
    validation_options,
)
from skebm.estimators.neural.joint_choice import (
    MOST_WORK,
    ClassTrials,
    choose_by_trials,
    epochs_of_few_labels,
    labelled_folds,
    work_of_a_pass,
)
from skebm.estimators.neural.model import NeuralMixin
from skebm.estimators.neural.objectives.adversarial import (
    Adversarial,
    Attack,
    attack_of,
    radius_of,
    starts_of,
)
from skebm.estimators.neural.sampling import (
    LEAST_CHAINS,
    Chains,
    chains_at_temperature,
    draw_by_chains,
)
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.table import Table
from skebm.objectives import AdversarialJoint, JointLikelihood
from skebm.objectives.joint.likelihood import FORMS, JointObjective, likeliest_power
from skebm.objectives.log_partition import LogPartitionMonitor, log_mean_and_error
from skebm.samplers import ChainPolicy, Persistent
from skebm.training.plan import asked_steps
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Maximum number of epochs of ``n_iter="auto"``.
MOST_PASSES = 100
# Maximum of the default weight of log p(x). With many columns the weight is one over their number,
# as log p(x) is a sum over columns that would outweigh a small cross-entropy.
MOST_WEIGHT = 0.03
# Default weight of the logistic loss against adversarial negatives, which is of the size of a
# cross-entropy however many columns there are. With a weight of 1, that of the literature, 2,000
# digits gave an accuracy of 0.814 in ten epochs, with 0.1 one of 0.915 and without density 0.912.
OF_CONTRAST = 0.1


class Hybrid(BaseEstimator):
    r"""Settings of the objective of a joint energy-based model: cross-entropy and likelihood.

    Parameters
    ----------
    form : {"factored", "joint"}, default="factored"
        ``"factored"``: exact cross-entropy plus `generative_weight` times :math:`-\log p(x)`, by
        contrastive divergence. ``"joint"``: a mixture of the cross-entropy and
        :math:`-\log p(x, y)`, of which the latter has the weight `generative_weight`; classes are
        drawn for the chains.
    noisy : bool, default=True
        Whether the cross-entropy is computed on rows with the noise `sigma`, as p(x) is, so that
        the model is one density of noisy rows and their classes, as in [1]_. If False, and always
        with ``generative_weight=0``, it is computed on rows without noise.
    augmentation : callable or None, default=None
        A function ``augmentation(rows, generator)`` of standardised rows or of images (n, C, H, W),
        such as :class:`skebm.samplers.Shift`, ``Flip`` or ``Compose``; it is used for the
        cross-entropy only, so that p(x) remains the density of the rows as they are [2]_. All
        random numbers come from the generator of the fit, of `random_state`.
    negatives : {"chains", "adversarial"} or Adversarial, default="chains"
        What rows are compared with for p(x): chains of the `sampler`, or rows that gradient ascent
        makes likely, with settings in :class:`Adversarial` [6]_. The latter do not maximise the
        likelihood.
    attack : Attack or None, default=None
        Steps against the class of each row, for adversarial training of the cross-entropy
        (:class:`Attack`).
    sharpness : float, default=0
        Radius of sharpness-aware minimisation [3]_: the length of the ascent step after which the
        gradient is evaluated.
    sigma_anneal : float, default=1
        Initial factor on the noise, which decays to 1 over the first half of training.
    unlabeled_weight : float, default=1
        Weight of the cross-entropy of unlabelled rows with the class to which the model gives a
        probability of 0.9 or more at the row without noise, where there is one [4]_, [5]_. The mean
        over these rows counts as much as that over labelled ones. With 0 unlabelled rows contribute
        to p(x) alone.
    energy_l2 : float, default=0
        Weight of a penalty on the squares of :math:`\log \sum_y e^{\mathrm{logits}_y}` at rows and
        chains.
    clip_norm : float or None, default=None
        Maximum norm of the gradient.
    deconvolve : bool, default=True
        Whether the noise is removed from the base after training, so that p(x) is the density of
        clean rows, as in :class:`ContrastiveDivergenceDensity`. If False, it is that of rows with
        noise.
    power : float or "auto", default="auto"
        c in :math:`p(x) \propto q(x) \bigl(\sum_y e^{\mathrm{logits}_y(x)}\bigr)^c`, from 0, where
        p(x) is the base, to 1, the model of [1]_; it does not affect p(y | x). ``"auto"`` is the
        power that maximises the likelihood of the rows that early stopping holds out. Without
        `early_stopping` it is judged by the training rows, and is 0 if there are fewer than 150 of
        them, which the network may have memorised.

    References
    ----------
    .. [1] Grathwohl et al. (2020), "Your classifier is secretly an energy based model and you
       should treat it like one", ICLR.
    .. [2] Yang, Su and Ji (2023), "Towards bridging the performance gaps of joint energy-based
       models", CVPR (SADA-JEM).
    .. [3] Foret, Kleiner, Mobahi and Neyshabur (2021), "Sharpness-aware minimization for
       efficiently improving generalization", ICLR.
    .. [4] Lee (2013), "Pseudo-label: the simple and efficient semi-supervised learning method for
       deep neural networks", ICML workshop on challenges in representation learning.
    .. [5] Sohn et al. (2020), "FixMatch: simplifying semi-supervised learning with consistency and
       confidence", NeurIPS.
    .. [6] Yin, Zhang, Steele, Shavit and Wang (2025), "Joint discriminative-generative modeling via
       dual adversarial training", arXiv:2510.13872.

    Examples
    --------
    >>> from skebm import JEMClassifier
    >>> JEMClassifier().set_params(objective__sharpness=0.1).objective
    Hybrid(sharpness=0.1)
    """

    _parameter_constraints: dict = {
        "form": [StrOptions(set(FORMS))],
        "noisy": ["boolean"],
        "augmentation": [callable, None],
        "negatives": [StrOptions({"chains", "adversarial"}), Adversarial],
        "attack": [Attack, None],
        "sharpness": [Interval(Real, 0, None, closed="left")],
        "unlabeled_weight": [Interval(Real, 0, None, closed="left")],
        "sigma_anneal": [Interval(Real, 1, None, closed="left")],
        "energy_l2": [Interval(Real, 0, None, closed="left")],
        "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
        "deconvolve": ["boolean"],
        "power": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        *,
        form="factored",
        noisy=True,
        augmentation=None,
        negatives="chains",
        attack=None,
        sharpness=0.0,
        unlabeled_weight=1.0,
        sigma_anneal=1.0,
        energy_l2=0.0,
        clip_norm=None,
        deconvolve=True,
        power="auto",
    ):
        assign_parameters(self, locals())

    @property
    def ascent(self) -> Adversarial | None:
        """Settings of adversarial negatives; None with chains."""
        if isinstance(self.negatives, str):
            return Adversarial() if self.negatives == "adversarial" else None
        found: Adversarial = self.negatives
        return found

    def check(self) -> None:
        """Raise `ValueError` for settings that exclude each other, or are invalid themselves."""
        self._validate_params()
        for part in (self.ascent, self.attack):
            if part is not None:
                part._validate_params()
        if self.ascent is not None and self.form == "joint":
            raise ValueError(
                'form="joint" draws the classes of chains, and negatives="adversarial" has none: '
                'use form="factored".'
            )


class NormalNoise(NamedTuple):
    """An augmentation by normal noise of standard deviations `sigma`, and then by another one."""

    sigma: Tensor
    then: Any

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        x = x + self.sigma.to(x) * noise
        found: Tensor = x if self.then is None else self.then(x, generator)
        return found


@dataclass(frozen=True)
class JointRule(ChainRule):
    """Training of a joint energy-based model.

    Attributes
    ----------
    sampler : Sampler
    chains : ChainPolicy
    settings : Hybrid
    anneal : tuple of (float, int)
        Initial factor on the noise, and number of batches until it is 1.
    n_classes : int
    generative_weight : float
    class_weight : tuple of float or None
        Weights of the classes, divided by the fraction of labelled rows.
    power : float
        Power of the trained model's sum over classes; training is at power 1.
    unlabeled_weight : float
        Weight of the pseudo-labels of unlabelled rows.
    radius : ndarray of shape (d,) or None
        Radius of the attack for each column, in units of the energy.
    starts : ndarray of shape (m, d) or None
        Rows at which negatives by gradient ascent start; None after training.
    """

    sampler: Sampler
    chains: ChainPolicy
    settings: Hybrid
    anneal: tuple[float, int]
    n_classes: int
    generative_weight: float
    class_weight: tuple[float, ...] | None
    power: float = 1.0
    unlabeled_weight: float = 0.0
    radius: np.ndarray | None = None
    starts: np.ndarray | None = None
    holds_out = False

    def training_rows(self, rows: Rows) -> Rows:
        return with_copies_of_labelled(rows) if self.unlabeled_weight else rows

    def model_network(self, network: nn.Module) -> nn.Module:
        joint: Any = network
        return network if self.power == 1 else joint.at(self.power)

    def after_training(self, recipe: NeuralRecipe, net: EnergyNet, rows: Rows) -> JointRule:
        if net.streaming:
            return self
        trained = replace(self, starts=None, settings=without_starts(self.settings))
        if self.settings.power != "auto":
            return trained
        energy = recipe.family.energy(recipe, net.module_.energy.eval())
        noise = None if takes_noise_off(recipe) else recipe.family.sigma
        return replace(trained, power=choose_power(noise, energy, rows, net.validation))

    def without_chains(self, recipe: NeuralRecipe) -> JointRule:
        """The classifier alone, on rows with the noise that those of the likelihood have."""
        noise, settings = recipe.family.sigma, clone(self.settings)
        if settings.noisy and noise is not None:
            sigma = noise.view(recipe.table.image_shape or noise.shape)
            settings.set_params(augmentation=NormalNoise(sigma, settings.augmentation))
        return replace(self, generative_weight=0.0, settings=settings)

    def network(self, config: Any, spec: Spec) -> nn.Module:
        spec = spec._replace(n_classes=self.n_classes, whitening=None)
        return ClassMarginal(build_network(config, spec))

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> JointObjective:
        """Objective of an energy that starts at its base, with equal class probabilities."""
        like, weight, asked = next(energy.parameters()), self.class_weight, self.settings
        of_classes: dict[str, Any] = {
            "generative_weight": self.generative_weight,
            "noisy": asked.noisy,
            "class_weight": None if weight is None else like.new_tensor(weight),
            "augmentation": of_images(asked.augmentation, energy.image_shape),
            "attack": attack_of(asked.attack, self.radius),
            "sharpness": float(asked.sharpness),
            "clip_norm": asked.clip_norm,
            "unlabeled_weight": self.unlabeled_weight,
        }
        of_rows: dict[str, Any] = {"sigma": sigma, "energy_l2": asked.energy_l2}
        ascent = asked.ascent
        if ascent is not None and self.generative_weight:
            return AdversarialJoint(
                energy,
                n_steps=int(ascent.n_steps),
                step_size=float(ascent.step_size),
                start=None if self.starts is None else torch.as_tensor(self.starts).to(like),
                **of_classes,
                **of_rows,
            )
        chains = policy_for(self.chains, energy)
        of_chains: dict[str, Any] = {"form": asked.form, "anneal": self.anneal}
        return JointLikelihood(energy, self.sampler, chains, **of_chains, **of_classes, **of_rows)

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        if "chains" in asked and self.generative_weight == 0:
            return {"chains": "with generative_weight=0 no chain moves"}
        if self.settings.ascent is not None:
            none = 'with negatives="adversarial" no chain moves'
            names = {"chains": "chains", "objective__sigma_anneal": "sigma_anneal of objective"}
            return {name: none for key, name in names.items() if key in asked}
        if "objective__unlabeled_weight" in asked and "unlabeled" not in asked:
            return {"unlabeled_weight of objective": "without `unlabeled` all rows are labelled"}
        return {}


@insert_shared_docs
class JEMClassifier(ProbabilisticClassifierMixin, NeuralMixin, BaseEBM):
    r"""Joint energy-based model: a classifier whose logits also define a density of the rows.

    .. math:: p(x, y) = p(y \mid x)\, p(x) , \qquad
        p(y \mid x) = \mathrm{softmax}(\mathrm{logits}(x)) , \qquad
        p(x) = \frac1Z q(x) \Bigl(\sum_y e^{\mathrm{logits}_y(x)}\Bigr)^c

    Adding the same function of x to all logits does not change the class probabilities. A joint
    energy-based model uses this freedom to learn the density of the rows as well, by contrastive
    divergence, with c = 1 and thus :math:`p(x, y) = q(x)\, e^{\mathrm{logits}_y(x)} / Z` [1]_. The
    same network then classifies, detects rows unlike the training data, samples rows of a class,
    and learns from unlabelled rows. The base q is fitted first, to the training rows without regard
    to their labels. If training diverges, it is rolled back to an earlier state and continues with
    smaller steps.

    The cross-entropy raises the sum over classes for rows that are easy to classify, whether they
    are likely or not. The power c is therefore fitted after training: `power_` is the value in
    [0, 1] at which rows are most likely, so that they are no less likely than under the base. With
    c = 0, p(x) is q. The class probabilities, and with them the predictions, do not depend on c,
    but densities, samples and logits do: :meth:`logits` returns the logits of the network minus
    (1 - c) times their log-sum-exp.

    Parameters
    ----------
    network : config object, class, callable, nn.Module or None, default=None
        Network that maps rows (n, ...) to logits (n, K). None is :class:`skebm.energies.MLP`;
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A class or callable builds a module
        from ``n_features`` and ``n_classes``, or from a :class:`skebm.energies.Spec`, and its other
        arguments are ``network__<name>`` (:class:`skebm.energies.NetworkOf`); a module is copied
        with its weights.
    objective : {"factored", "joint"} or Hybrid, default="factored"
        Cross-entropy plus `generative_weight` times :math:`-\log p(x)`, or a joint likelihood of
        rows and classes; settings of noise, power, augmentation, sharpness-aware minimisation and
        penalties in :class:`Hybrid`.
    generative_weight : float or "auto", default="auto"
        :math:`\lambda \ge 0`. 0 is a plain classifier, without chains. 1 is the joint maximum
        likelihood of rows and labels, in which :math:`\log p(x)`, a sum over columns, outweighs the
        labels. ``"auto"`` is 0.03, or one over the number of columns if there are more than 33, and
        0.1 with adversarial negatives, whose loss is no sum over columns; it is 0 where trials (see
        `n_iter`) find that the noise costs class probabilities. The density alone would choose the
        largest weight: what it gets is what the classes do not pay.
    sampler : Sampler or None, default=None
        Sampler of the chains, in training and for samples. None is adaptive
        :class:`skebm.samplers.MALA` (samples are drawn by proposals of the base where it is near
        the model), and :class:`~skebm.samplers.GibbsWithGradients` on discrete
        rows. The settings of [1]_ are ``Langevin(1.0, noise_scale=0.01)``; ``clip_grad=`` clips its
        steps. Parameters can be searched over by ``sampler__<name>``.
    chains : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        As in :class:`ContrastiveDivergenceDensity`; without a base, chains are initialised
        uniformly within `bounds`.
    unlabeled : label or None, default=None
        Label of rows whose class is unknown. They contribute to p(x), and to the cross-entropy by
        the class that the model itself is sure of (`unlabeled_weight` of :class:`Hybrid`). None:
        all are labelled.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the cross-entropy; they do not affect p(x).
    <<domain>>
    base : str, MixtureBase, Distribution or None, default="auto"
        Base q, as in :class:`ContrastiveDivergenceDensity`, or ``"classes"``: a Gaussian fitted to
        the labelled rows of each class, from which chains then start [4]_.
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the noise added to the rows in p(x), in standard deviations of the
        columns, as in :class:`ContrastiveDivergenceDensity`. After training the noise is removed
        from the base (``deconvolve`` of :class:`Hybrid`).
    <<bounds>>
    standardize : bool, default=True
        Train on columns of mean 0 and variance 1.
    <<learning_rate, batch_size>>
    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` is the one for which the cross-entropy of labelled rows that
        trials leave out is least. Trials train the classifier without chains, on rows with and
        without noise. Compared are five numbers, each half of the next, until a larger one is
        clearly worse; the largest amounts to about a thousand steps, in at most 100 epochs. Each
        trial leaves out a third of the labelled rows in turn, or a tenth once if there are more
        than 2,000. Without trials, with fewer than 30 labelled rows or less than a third, the
        number amounts to at most five steps for each labelled row; with `early_stopping` it is the
        largest one. A costly network has at most 1.3e12 multiplications, a minute of a core, but
        four epochs at least; by default it then has a fourth of the chains, of one step, and three
        numbers are compared by one trial each. As work is counted and not timed, a seed determines
        the model.
    <<optimizer>>
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows no longer improves, and keep the best weights;
        settings in :class:`skebm.training.EarlyStopping`.
    warm_start : bool, default=False
        Continue from the weights of the previous `fit`, with the same base and classes.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z of p(x) is estimated, when it is first needed, as in
        :class:`ContrastiveDivergenceDensity`. None: log Z is not estimated; `score_samples` is then
        -E(x).
    <<compute>>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    generative_weight_ : float
        :math:`\lambda`.
    power_ : float
        c, the power of the sum over classes; 1 after `partial_fit`, without a base, and if
        :class:`Hybrid` sets it to 1.
    <<sigma_, base_, units_, row_shape_, log_partition>>
    history_ : list of dict
        One entry per epoch: ``cross_entropy`` and ``accuracy`` on a hundred training rows (no
        accuracy if none of these has a label); ``train_loss``; ``energy_gap``, ``gain_over_base``
        and ``acceptance`` as in :class:`ContrastiveDivergenceDensity`; learning rate, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, and of roll-backs.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The sampler, the energy of p(x) on standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ContrastiveDivergenceDensity : The same density without classes.
    EnergyOutlierDetector : Outlier detection by log p(x), the largest probability or the score.

    References
    ----------
    .. [1] Grathwohl, Wang, Jacobsen, Duvenaud, Norouzi and Swersky (2020), "Your classifier is
       secretly an energy based model and you should treat it like one", ICLR.
    .. [2] Yang, Su and Ji (2023), "Towards bridging the performance gaps of joint energy-based
       models", CVPR (SADA-JEM).
    .. [3] Foret, Kleiner, Mobahi and Neyshabur (2021), "Sharpness-aware minimization for
       efficiently improving generalization", ICLR.
    .. [4] Yang and Ji (2021), "JEM++: improved techniques for training JEM", ICCV.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import JEMClassifier
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> model = JEMClassifier(random_state=0).fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.97)
    True
    >>> near, far = model.score_samples([[0.0, 1.0], [10.0, 10.0]])  # log p(x) in nats
    >>> bool(near > far + 100)
    True
    >>> model.sample(3, y=1, random_state=0).shape
    (3, 2)
    """

    _reads_files = True
    _parameter_constraints: dict = (
        JOINT_CONSTRAINTS
        | NEURAL_CONSTRAINTS
        | {
            "objective": [StrOptions(set(FORMS)), Hybrid],
            "generative_weight": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
            "chains": [StrOptions(set(POLICIES)), ChainPolicy],
            "unlabeled": "no_validation",  # a label of any type
            "class_weight": [dict, StrOptions({"balanced"}), None],
            "domain": DOMAIN,
            "base": [*BASE, StrOptions({"classes"})],
            "sigma": SIGMA,
        }
    )
    _configs = CONFIGS | {
        "objective": lambda value, names: Hybrid(form=value),
        "chains": lambda value, names: POLICIES[value](),
    }
    _density_alone = "ContrastiveDivergenceDensity"

    def __init__(
        self,
        network=None,
        *,
        objective="factored",
        generative_weight="auto",
        sampler=None,
        chains="persistent",
        unlabeled=None,
        class_weight=None,
        domain="auto",
        base="auto",
        sigma="auto",
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        batch_size="auto",
        n_iter="auto",
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        partition="auto",
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return validation_options(self, self.domain, reset=reset)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        return learn_any_table(self, X, weight, domain=self.domain, bounds=self.bounds)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralRecipe:
        asked = (
            self.objective if isinstance(self.objective, Hybrid) else Hybrid(form=self.objective)
        )
        asked.check()
        kept: Any = None if before is None else self._recipe.family.rule
        weight = generative_weight_of(self.generative_weight, asked, rows.n_columns)
        if kept is not None and self.generative_weight == "auto":
            weight = kept.generative_weight
        chains = self.chains if kept is None or self.chains != "persistent" else kept.chains
        class_weight = class_weights(self.class_weight, self.classes_, rows.whole)
        if before is None:
            # Kernels would slow the chains down.
            kind: dict[str, Any] = {"deconvolve": asked.deconvolve, "stacks": "mixtures"}
            bases, noise = fit_any_bases(self, self.base, rows, table, **kind)
        else:
            bases, noise = self._recipe.base, self._recipe.family.noise
        own: dict[str, Any] = {"most_passes": MOST_PASSES, "most_epochs": 0}  # folds choose
        plan = neural_plan(self, rows.n_table, streaming=streaming, **own)
        rule = JointRule(
            sampler_of(self, table.domain),
            policy_with_chains(chains, min(plan.batch_size, rows.n_table), before),
            clone(asked),
            (asked.sigma_anneal, plan.n_batches(rows.n_table) // 2),
            len(self.classes_),
            weight,
            class_weight,
            1.0 if asked.power == "auto" else float(asked.power),
            0.0 if self.unlabeled is None else float(asked.unlabeled_weight),
            radius_of(asked.attack, table),
            None if asked.ascent is None else starts_of(asked.ascent, table),
        )
        found = Recipe(table, plan, bases, NeuralFamily(rule, network_of(self), noise))
        free = asked_steps(self).n_iter == "auto" and not self.early_stopping
        if free and before is None and not streaming:
            found = self._by_trials(found, rows)
        elif free and before is not None and not (streaming or before.streaming):
            found = found.with_epochs(self._recipe.plan.n_iter)
        chosen: Any = found.family.rule
        self.generative_weight_ = chosen.generative_weight
        return found

    def _by_trials(self, recipe: NeuralRecipe, rows: Rows) -> NeuralRecipe:
        """The recipe with affordable chains and epochs, and settings that trials choose."""
        seed = draw_seed(self.random_state_)
        generator = torch.Generator(rows.device).manual_seed(seed)
        work = work_of_a_pass(recipe, rows, generator)
        costly = work * recipe.plan.n_iter > MOST_WORK
        if costly and self.chains == "persistent":
            rule: Any = recipe.family.rule
            chains = Persistent(n_steps=1, n_chains=max(1, rule.chains.n_chains // 4))
            recipe = recipe.with_settings(rule=replace(rule, chains=chains))
            work = work_of_a_pass(recipe, rows, generator)
        affordable = max(FEWEST_PASSES, int(MOST_WORK / work))
        recipe = recipe.with_epochs(min(recipe.plan.n_iter, affordable))
        folds = labelled_folds(rows, generator, together=not recipe.table.discrete)
        if not folds:
            return recipe.with_epochs(min(recipe.plan.n_iter, epochs_of_few_labels(recipe, rows)))
        trials = ClassTrials(rows, folds[:1] if costly else folds, seed, self.net_params)
        any_weight = self.generative_weight == "auto"
        return choose_by_trials(recipe, trials, costly=costly, any_weight=any_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = asks_for_bits(self.domain)
        return tags

    @property
    def power_(self) -> float:
        """The power of the sum over classes in p(x)."""
        check_is_fitted(self)
        rule: Any = self._recipe.family.rule
        return float(rule.power)

    # ---------------------------------------------------------------- classes

    def logits(self, X: Any) -> np.ndarray:
        """Logits of all classes: log p(x, y) - log q(x), up to a constant.

        They are the logits of the network minus (1 - `power_`) times their log-sum-exp.

        If a row is so far from the training rows that they overflow, a `ValueError` is raised, as
        in :meth:`predict`, :meth:`predict_proba` and :meth:`decision_function`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._of_rows(X, self._logits_of)

    def _network_logits(self, X: Any) -> np.ndarray:
        """Logits of the network, (n, K), at power 1: their log-sum-exp corrects the base."""

        def finite(rows: Rows) -> np.ndarray:
            found = self._map(rows, logits_of).double().numpy()
            return self._recipe.table.check_finite(found, rows, "the logits")

        return self._of_rows(X, finite)

    def _logits_of(self, rows: Rows) -> np.ndarray:
        found = self._map(rows, logits_of).double()
        found = found - (1 - self.power_) * found.logsumexp(1, keepdim=True)
        return self._recipe.table.check_finite(found.numpy(), rows, "the logits")

    def _log_class_proba(self, x: Tensor) -> Tensor:
        with sampling(energy := self._energy_of_net):
            return logits_of(energy, x).log_softmax(1)

    # ---------------------------------------------------------------- density

    def sample(
        self,
        n_samples: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 100,
    ) -> np.ndarray:
        """Draw rows from p(x) or p(x | y), to the power of 1 / T and normalised.

        Without `y`, rows are drawn as in :meth:`ContrastiveDivergenceDensity.sample`. The chains of
        a class start from draws of the base, or from training chains, that are resampled by their
        weights for the class, and move by the energy of the class. Samples are exact in the limit
        of many draws and steps.

        Parameters
        ----------
        n_samples : int, default=1
        y : label, array-like of shape (n_samples,) or None, default=None
            Class of all rows, or of each; None draws from p(x).
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of x, or of x given y, is divided: above 1 rows are more
            random, below 1 nearer to the most probable ones.
        given : array-like of shape (n_features,) or None, default=None
            A row whose known entries are fixed, and whose NaN entries are drawn; only without `y`.
        n_steps : int, default=100
            Number of steps of the chains, after as many adaptation steps.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        return self._draw_labelled(n_samples, y, random_state, temperature, given, n_steps)

    def _draw_class(
        self, code: int, n: int, generator: torch.Generator, n_steps: int, temperature: float
    ) -> Tensor:
        energy, chains = self._energy_of_class(code)
        chains = chains_at_temperature(chains, energy, temperature)
        return draw_by_chains(energy, chains, max(n, LEAST_CHAINS), generator, n_steps)

    def _energy_of_class(self, code: int) -> tuple[NeuralEnergy, Chains]:
        """The energy of p(x | y), and chains that start at rows weighted by their p(y | x)."""
        energy = self.energy_
        network: Any = energy.network
        shape = self._recipe.table.image_shape
        given = NeuralEnergy(network.given(code), energy.domain, energy.base, image_shape=shape)
        given = given.eval()

        @torch.no_grad()
        def weights(known: Tensor) -> Tensor:
            return (energy(known) - given(known)).double().softmax(0)

        chains = self._chains()
        return given, chains._replace(proposal=given.base, weights=weights)


def logits_of(energy: NeuralEnergy, x: Tensor) -> Tensor:
    """Logits (n, K) of an energy's classifier, at power 1."""
    network: Any = energy.network
    found: Tensor = network.classifier(energy.as_input(x))
    return found


def without_starts(settings: Hybrid) -> Hybrid:
    """Settings without the rows at which negatives start, which no trained model needs."""
    if settings.ascent is None or settings.ascent.start is None:
        return settings
    return clone(settings).set_params(negatives__start=None)


def choose_power(
    noise: Tensor | None, energy: NeuralEnergy, rows: Rows, held_out: Rows | None
) -> float:
    """The likeliest power of a model of rows with noise, by held-out or else training rows."""
    monitor = LogPartitionMonitor.of(energy)
    if monitor is None:
        return 1.0  # without a base there is nothing to go back to
    # Training rows of which fewer do not determine the power: with 104 rows of 60 columns it was
    # 0.5, and new rows were 0.14 nats less likely than under the base; with 175 of 32, 0.7 nats
    # more likely.
    fewest_judged = 150
    if held_out is None and rows.total_weight < fewest_judged:
        return 0.0
    validation_rows = rows if held_out is None else held_out
    generator = torch.Generator(validation_rows.device).manual_seed(0)

    def total(x: Tensor) -> Tensor:
        if noise is not None:
            x = x + noise.to(x) * torch.randn(
                x.shape, generator=generator, dtype=x.dtype, device=x.device
            )
        return logits_of(energy, x).logsumexp(1)

    with torch.no_grad():
        draws = logits_of(energy, monitor.draws(next(energy.parameters()))).logsumexp(1)
        power = likeliest_power(validation_rows.map(total), validation_rows.counts, draws)
        log_w = power * draws
        log_z, _ = monitor.from_draws(log_w, lambda x: power * logits_of(energy, x).logsumexp(1))
        is_near = bool(log_z == log_mean_and_error(log_w.double())[0])  # nothing more is far away
        return power if is_near else 0.0


# ------------------------------------------------------------------------------
# Weight of log p(x)
# ------------------------------------------------------------------------------


def generative_weight_of(asked: Any, settings: Hybrid, n_columns: int) -> float:
    """Weight of log p(x), by default depending on the number of columns."""
    if asked == "auto":
        return min(MOST_WEIGHT, 1 / n_columns) if settings.ascent is None else OF_CONTRAST
    weight = float(asked)
    if settings.form == "joint" and weight > 1:
        raise ValueError(
            f'generative_weight must be between 0 and 1 with objective="joint", got {weight}.'
        )
    return weight
