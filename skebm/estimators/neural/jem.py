"""Classifiers whose logits are a density of the rows as well: joint energy models."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from skebm._validation import Interval, StrOptions, check_is_fitted, check_labels, fit_context
from skebm.base import Sampler
from skebm.base.sampler import whole_number
from skebm.energies import ClassMarginal, NeuralEnergy, Spec, build_network
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import COMMON_CONSTRAINTS, BaseEBM, restores_on_failure
from skebm.estimators.neural import methods
from skebm.estimators.neural.blueprint import (
    BASE,
    CONFIGS,
    DOMAIN,
    NEURAL_CONSTRAINTS,
    POLICIES,
    SIGMA,
    ChainRule,
    NeuralBlueprint,
    accepted_input,
    fit_any_bases,
    is_binary,
    learn_any_table,
    n_batches,
    network_of,
    neural_plan,
    of_images,
    policy_for,
    resolved_chains,
    sampler_of,
)
from skebm.estimators.neural.sampling import LEAST_CHAINS, Chains, draw
from skebm.estimators.tables import FlatTable, Table
from skebm.objectives import JointLikelihood
from skebm.objectives.joint import FORMS, UNKNOWN
from skebm.samplers import ChainPolicy
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows

# Passes of ``n_iter="auto"``; a classifier of few rows that goes on is sure where it should not be.
MOST_PASSES = 100
# Weight of log p(x) at most. As that is a sum over columns, of many it is their mean: the sum would
# outweigh a cross-entropy that is nearly nothing.
MOST_WEIGHT = 0.03


class Hybrid(BaseEstimator):
    r"""Settings of the objective of a joint energy model: cross-entropy and likelihood.

    Parameters
    ----------
    form : {"factored", "joint"}, default="factored"
        ``"factored"``: exact cross-entropy, and `generative_weight` times the sampled
        :math:`-\log p(x)`. ``"joint"``: the fraction `generative_weight` of both is
        :math:`-\log p(x, y)`, sampled as one, with classes drawn for the chains.
    noisy : bool, default=True
        Whether the cross-entropy sees rows with the noise of p(x), `sigma`, so that one density of
        noisy rows and their classes is learned, as in [1]_; False: as they are, as they always are
        with ``generative_weight=0``.
    augmentation : callable or None, default=None
        ``augmentation(rows, generator)``, of standardised rows or of images (n, C, H, W), for the
        cross-entropy alone [2]_. :class:`skebm.samplers.Shift` and the like.
    sharpness : float, default=0
        Length of the step up the gradient at whose end the gradient is taken [3]_; 0 is none.
    sigma_anneal : float, default=1
        Factor of the noise at first; it falls to 1 over the first half of the passes.
    energy_l2 : float, default=0
        Penalty on the squares of :math:`\log \sum_y e^{\mathrm{logits}_y}` at rows and chains.
    clip_norm : float or None, default=None
        Largest norm of a gradient.

    References
    ----------
    .. [1] Grathwohl et al. (2020), "Your classifier is secretly an energy based model and you
       should treat it like one", ICLR.
    .. [2] Yang, Su and Ji (2023), "Towards bridging the performance gaps of joint energy-based
       models", CVPR (SADA-JEM).
    .. [3] Foret, Kleiner, Mobahi and Neyshabur (2021), "Sharpness-aware minimization for
       efficiently improving generalization", ICLR.

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
        "sharpness": [Interval(Real, 0, None, closed="left")],
        "sigma_anneal": [Interval(Real, 1, None, closed="left")],
        "energy_l2": [Interval(Real, 0, None, closed="left")],
        "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
    }

    def __init__(
        self,
        *,
        form="factored",
        noisy=True,
        augmentation=None,
        sharpness=0.0,
        sigma_anneal=1.0,
        energy_l2=0.0,
        clip_norm=None,
    ):
        self.form = form
        self.noisy = noisy
        self.augmentation = augmentation
        self.sharpness = sharpness
        self.sigma_anneal = sigma_anneal
        self.energy_l2 = energy_l2
        self.clip_norm = clip_norm


@dataclass(frozen=True)
class JointRule(ChainRule):
    """What is minimised, and how negatives are drawn.

    Attributes
    ----------
    sampler : Sampler
    chains : ChainPolicy
    settings : Hybrid
    anneal : tuple of (float, int)
        Factor of the noise at first, and batches until it is 1.
    n_classes : int
    generative_weight : float
    class_weight : tuple of float or None
        Of each class, with the fraction of labelled rows made up for.
    """

    sampler: Sampler
    chains: ChainPolicy
    settings: Hybrid
    anneal: tuple[float, int]
    n_classes: int
    generative_weight: float
    class_weight: tuple[float, ...] | None
    holds_out = False

    def network(self, config: Any, spec: Spec) -> nn.Module:
        spec = spec._replace(n_classes=self.n_classes, whitening=None)
        return ClassMarginal(build_network(config, spec))

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> JointLikelihood:
        """Training begins at the base of the energy, and at even odds."""
        like, weight, asked = next(energy.parameters()), self.class_weight, self.settings
        return JointLikelihood(
            energy,
            self.sampler,
            policy_for(self.chains, energy),
            generative_weight=self.generative_weight,
            form=asked.form,
            noisy=asked.noisy,
            class_weight=None if weight is None else like.new_tensor(weight),
            augmentation=of_images(asked.augmentation, energy.image_shape),
            sharpness=float(asked.sharpness),
            clip_norm=asked.clip_norm,
            sigma=sigma,
            anneal=self.anneal,
            energy_l2=asked.energy_l2,
        )

    def without_effect(self, asked: dict[str, Any]) -> dict[str, str]:
        if "chains" in asked and self.generative_weight == 0:
            return {"chains": "with generative_weight=0 no chain moves"}
        return {}


@shared_docs
class JEMClassifier(ClassifierMixin, BaseEBM):
    r"""Classifier whose logits are a density of the rows as well: a joint energy model.

    .. math:: p(x, y) = \frac1Z q(x)\, e^{\mathrm{logits}_y(x)} , \qquad
        p(y \mid x) = \mathrm{softmax}(\mathrm{logits}(x)) , \qquad
        p(x) = \frac1Z q(x) \sum_y e^{\mathrm{logits}_y(x)}

    A classifier leaves open what is added to all of its logits; here that is learned, from the
    likelihood of the rows, by sampled negatives [1]_. One network then classifies, knows rows that
    are unlike those of training, draws rows of a class, and learns from rows without labels. The
    base q, which the rows alone decide, is fitted first. Training that runs away goes back to where
    it was well, with smaller steps.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        From rows (n, ...) to logits (n, K). None is :class:`skebm.energies.MLP`;
        :class:`skebm.energies.Conv` takes images (n, C, H, W). A callable makes a module from a
        :class:`skebm.energies.Spec`, whose ``n_classes`` is K; a module is copied, weights and all.
    objective : {"factored", "joint"} or Hybrid, default="factored"
        Cross-entropy plus `generative_weight` times :math:`-\log p(x)`, or the likelihood of rows
        and classes as one term; noise, augmentation, sharpness-aware steps and penalties as
        :class:`Hybrid`.
    generative_weight : float or "auto", default="auto"
        :math:`\lambda \ge 0`. 0 is a plain classifier: no chain moves. 1 is maximum likelihood of
        rows and labels together, in which :math:`\log p(x)`, a sum over columns, outweighs the
        labels. ``"auto"`` is 0.03, or 1 over the number of columns where these are more than 33.
    sampler : Sampler or None, default=None
        What moves the chains, in training and for samples. None is :class:`skebm.samplers.MALA`,
        adaptive, and :class:`~skebm.samplers.GibbsWithGradients` on discrete rows. The step and the
        noise of the paper are ``Langevin(1.0, noise_scale=0.01)``, steps that are clipped
        ``clip_grad=``. ``sampler__step_size`` and the like can be searched over.
    chains : {"persistent", "replay", "data", "noise"} or ChainPolicy, default="persistent"
        As of :class:`ContrastiveDivergenceDensity`; without a base chains begin uniformly inside
        `bounds`.
    unlabeled : label or None, default=None
        The label of rows whose class is not known: they count in p(x) alone. None: there are none.
    class_weight : dict, "balanced" or None, default=None
        Factors of the classes in the cross-entropy; p(x) is that of the rows as they are.
    <<domain>>
    base : str, MixtureBase, Distribution or None, default="auto"
        q; as of :class:`ContrastiveDivergenceDensity`, or ``"classes"``: a normal distribution for
        the labelled rows of each class, where chains then start [4]_.
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Noise of the rows in p(x), in standard deviations of the columns. As of
        :class:`ContrastiveDivergenceDensity`.
    <<bounds>>
    standardize : bool, default=True
        Train on columns of mean 0 and variance 1.
    <<learning_rate, batch_size>>
    n_iter : int or "auto", default="auto"
        Passes over the data; ``"auto"`` makes about a thousand steps, in at most 100 passes: more
        of them make a classifier of a small table surer of itself than it should be.
    <<optimizer>>
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows stagnates, and keep the best weights; settings as
        :class:`skebm.training.EarlyStopping`.
    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its base and its classes.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z of p(x) is found, on first need; as of :class:`ContrastiveDivergenceDensity`.
        None: not at all; `score_samples` is then -E(x).
    <<compute>>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    generative_weight_ : float
        :math:`\lambda`.
    <<sigma_, base_, units_, row_shape_, log_partition>>
    history_ : list of dict
        One for each pass: ``cross_entropy`` and ``accuracy`` on a hundred training rows (no
        accuracy where none of these has a label);
        ``train_loss``; ``energy_gap``, ``gain_over_base`` and ``acceptance`` as of
        :class:`ContrastiveDivergenceDensity`; learning rate, seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of p(x) of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    ContrastiveDivergenceDensity : The same density without classes.
    EnergyOutlierDetector : Outliers by log p(x), the largest probability or the score of log p.

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

    _parameter_constraints: dict = (
        COMMON_CONSTRAINTS
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
    _blueprint: NeuralBlueprint

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
        self.network = network
        self.objective = objective
        self.generative_weight = generative_weight
        self.sampler = sampler
        self.chains = chains
        self.unlabeled = unlabeled
        self.class_weight = class_weight
        self.domain = domain
        self.base = base
        self.sigma = sigma
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.partition = partition
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- fitting

    @fit_context(prefer_skip_nested_validation=True)
    @restores_on_failure
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> JEMClassifier:
        """Fit the model to rows and their labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Labels of any type; those equal to `unlabeled` are not known.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight 0 is as if it were not there.

        Returns
        -------
        self : object
        """
        self._fit(X, sample_weight, streaming=False, encode=lambda X, on: self._encode(X, y, on))
        return self

    @fit_context(prefer_skip_nested_validation=True)
    @restores_on_failure
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> JEMClassifier:
        """Make one pass over rows and labels, in mini-batches, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, with the columns of the first call.
        y : array-like of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), default=None
            All classes that there will be, for the first call; None takes those of its y.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights.

        Returns
        -------
        self : object
        """
        self._fit(
            X,
            sample_weight,
            streaming=True,
            encode=lambda X, on: self._encode(X, y, on, classes),
        )
        return self

    def _encode(self, X: Any, y: Any, on: bool, classes: Any = None) -> np.ndarray:
        """Places of the labels among the classes, -1 for rows that have none."""
        found = check_labels(self, X, y)
        known = np.ones(len(found), dtype=bool)
        if self.unlabeled is not None:
            known = np.array([label != self.unlabeled for label in found.tolist()])
            if not known.any():
                raise ValueError(
                    f"All rows are unlabelled (unlabeled={self.unlabeled!r}): a classifier needs "
                    "labels. For p(x) alone there is ContrastiveDivergenceDensity."
                )
        labels = found[known]
        check_classification_targets(labels)
        if not on:
            self.classes_ = all_classes(labels, classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={np.unique(classes).tolist()} are not those of the first call, "
                f"{self.classes_.tolist()}."
            )
        place = {label: number for number, label in enumerate(self.classes_.tolist())}
        new = sorted({label for label in labels.tolist() if label not in place}, key=str)
        if new:
            raise ValueError(
                f"y holds classes {new} that the model was not made for, {self.classes_.tolist()}: "
                "name all of them as classes= in the first call of partial_fit, or clone the "
                "estimator to start anew."
            )
        codes = np.full(len(found), UNKNOWN, dtype=np.int64)
        codes[known] = [place[label] for label in labels.tolist()]
        return codes

    # ---------------------------------------------------------------- hooks of the base class

    def _accepted_input(self, *, reset: bool) -> dict[str, Any]:
        return accepted_input(self, reset=reset)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> FlatTable:
        return learn_any_table(self, X, weight)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralBlueprint:
        assert isinstance(table, FlatTable)
        asked = (
            self.objective if isinstance(self.objective, Hybrid) else Hybrid(form=self.objective)
        )
        asked._validate_params()
        self.generative_weight_ = weight_of(self.generative_weight, asked.form, rows.n_columns)
        class_weight = class_weights(self.class_weight, self.classes_, rows)
        if before is None:
            bases, noise = fit_any_bases(self, self.base, rows, table)
        else:
            bases, noise = self._blueprint.bases, self._blueprint.noise
        plan = neural_plan(self, len(rows), streaming=streaming, most_passes=MOST_PASSES)
        return NeuralBlueprint(
            table=table,
            plan=plan,
            rule=JointRule(
                sampler_of(self, table.domain),
                resolved_chains(self.chains, min(plan.batch_size, len(rows)), before),
                clone(asked),
                (asked.sigma_anneal, n_batches(plan, len(rows)) // 2),
                len(self.classes_),
                self.generative_weight_,
                class_weight,
            ),
            network_config=network_of(self),
            bases=bases,
            noise=noise,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = is_binary(self.domain)
        return tags

    # ---------------------------------------------------------------- classes

    def logits(self, X: Any) -> np.ndarray:
        """Logits of all classes: log p(x, y) up to what all classes of all rows share but log q(x).

        `ValueError` for a row so far from the training rows that they overflow; so do
        :meth:`predict`, :meth:`predict_proba` and :meth:`decision_function`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._logits(self._rows(X))

    def _logits(self, rows: Rows) -> np.ndarray:
        found = self._map(rows, logits_of).double().numpy()
        return self._blueprint.table.check_finite(found, rows, "the logits")

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, p(y | x), in the order of `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        logits = self.logits(X)
        share = np.exp(logits - logits.max(1, keepdims=True))
        return share / share.sum(1, keepdims=True)

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits; of two classes their difference, the log-odds of the second.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) of two classes
        """
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        place = self.logits(X).argmax(1)  # checks that the model is fitted
        return self.classes_[place]

    def joint_energy(self, X: Any, y: Any) -> np.ndarray:
        r"""Energy of rows and classes, :math:`-\log q(x) - \mathrm{logits}_y(x)`, in nats.

        Minus log p(x, y) up to `log_partition_`; :meth:`energy` is minus the logarithm of the
        sum of :math:`e^{-E(x, y)}` over classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), or a label
            Classes of the rows, or one for all.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        rows = self._rows(X)
        codes = codes_of(y, len(rows), self.classes_)
        logits = torch.as_tensor(self._logits(rows))
        own = logits[torch.arange(len(rows)), torch.as_tensor(codes)]
        return self._energies(rows) + (logits.logsumexp(1) - own).numpy()

    # ---------------------------------------------------------------- density

    impute, denoise = methods.impute, methods.denoise
    score_function = methods.score_function
    _score_and_laplacian = methods._score_and_laplacian
    sampler_, sigma_, base_ = methods.sampler_, methods.sigma_, methods.base_
    units_, row_shape_ = methods.units_, methods.row_shape_

    def sample(
        self,
        n_samples: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        given: Any = None,
        n_steps: int = 100,
    ) -> np.ndarray:
        """Draw rows of p(x), or of p(x | y).

        As :meth:`ContrastiveDivergenceDensity.sample`; chains of a class start at draws of the
        base, or at training chains, that are likely of the class, and follow its energy:
        approximate, exact as draws and steps grow.

        Parameters
        ----------
        n_samples : int, default=1
        y : label, array-like of shape (n_samples,) or None, default=None
            Class of all rows, or of each; None draws from p(x).
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        given : array-like of shape (n_features,) or None, default=None
            A row whose numbers are held, and whose NaN are drawn; without y.
        n_steps : int, default=100
            Steps of the chains, after as many that adapt the sampler.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        if y is None:
            return methods.sample(self, n_samples, random_state, given=given, n_steps=n_steps)
        check_is_fitted(self)
        if given is not None:
            raise ValueError("Pass y or given: rows of a class are drawn as a whole.")
        methods.check_n_samples(self, n_samples)
        whole_number("n_steps", n_steps, 1)
        codes, generator = (
            codes_of(y, n_samples, self.classes_),
            self._generator(random_state),
        )
        found = np.empty((n_samples, *self.row_shape_))
        for code in np.unique(codes):
            here = codes == code
            n = int(here.sum())
            energy, chains = self._given_class(int(code))
            drawn = draw(energy, chains, max(n, LEAST_CHAINS), generator, n_steps)
            found[here] = self._blueprint.table.invert(drawn[:n])
        return found

    def _given_class(self, code: int) -> tuple[NeuralEnergy, Chains]:
        """The energy of p(x | y), and chains that start at rows by how likely they are of it."""
        energy = self.energy_
        network: Any = energy.network
        shape = self._blueprint.table.image_shape
        given = NeuralEnergy(network.given(code), energy.domain, energy.base, image_shape=shape)
        given = given.eval()

        @torch.no_grad()
        def weights(known: Tensor) -> Tensor:
            return (energy(known) - given(known)).double().softmax(0)

        chains = methods.chains_of(self)
        return given, chains._replace(proposal=given.base, weights=weights)


def logits_of(energy: NeuralEnergy, x: Tensor) -> Tensor:
    """Logits (n, K) of an energy's classifier."""
    network: Any = energy.network
    found: Tensor = network.classifier(energy.as_input(x))
    return found


# ------------------------------------------------------------------------------
# Labels and weights
# ------------------------------------------------------------------------------


def all_classes(labels: np.ndarray, named: Any) -> np.ndarray:
    """Sorted classes: those that are named, or those of the labels."""
    classes = np.unique(labels if named is None else named)
    if len(classes) < 2:
        raise ValueError(
            f"y holds {len(classes)} class, {classes.tolist()}, and a classifier needs two at "
            "least. For p(x) alone there is ContrastiveDivergenceDensity."
        )
    return classes


def codes_of(y: Any, n: int, classes: np.ndarray) -> np.ndarray:
    """Places of labels that are asked for, of each of n rows or of all."""
    labels = np.asarray(y)
    if labels.shape not in ((), (n,)):
        raise ValueError(f"y must be a label, or one for each of {n} rows, got {y!r}.")
    names = classes.tolist()
    asked = np.broadcast_to(labels, (n,)).tolist()
    unknown = sorted({label for label in asked if label not in names}, key=str)
    if unknown:
        raise ValueError(f"y holds {unknown}, and the classes are {names}.")
    return np.array([names.index(label) for label in asked])


def weight_of(asked: Any, form: str, n_columns: int) -> float:
    """Weight of log p(x) that a classifier asks for, of rows of so many columns."""
    if asked == "auto":
        return min(MOST_WEIGHT, 1 / n_columns)
    weight = float(asked)
    if form == "joint" and weight > 1:
        raise ValueError(
            f'generative_weight is the fraction of log p(x, y) with objective="joint", 0 to 1, got '
            f"{weight}."
        )
    return weight


def class_weights(asked: Any, classes: np.ndarray, rows: Rows) -> tuple[float, ...] | None:
    """Factors of the classes in the cross-entropy, so that its mean is one over labelled rows.

    None where they are all one.
    """
    assert rows.y is not None
    y, counts = rows.y.cpu().numpy(), rows.counts.cpu().numpy()
    labelled = y != UNKNOWN
    of_class = np.bincount(y[labelled], weights=counts[labelled], minlength=len(classes))
    found = np.ones(len(classes))
    if isinstance(asked, dict):
        names = classes.tolist()
        unknown = [label for label in asked if label not in names]
        if unknown:
            raise ValueError(f"class_weight names {unknown}, and the classes are {names}.")
        found = np.array([float(asked.get(label, 1.0)) for label in names])
        if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
            raise ValueError(f"class_weight must be finite numbers from 0, got {asked!r}.")
    elif asked == "balanced":
        found = of_class.sum() / (len(classes) * np.maximum(of_class, 1e-12))
        found[of_class == 0] = 0.0
    # The batch mean is over all rows: what is labelled counts for what is not.
    found = found * counts.sum() / of_class.sum()
    return None if np.allclose(found, 1) else tuple(found.tolist())
