"""Deep belief network: RBMs on top of each other, trained one after the other."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import get_tags
from torch import Tensor, nn

from skebm._validation import (
    Interval,
    StrOptions,
    check_columns,
    check_is_fitted,
    check_random_state,
    draw_seed,
    fit_context,
    set_seeds,
    warn,
)
from skebm.base import LikelihoodWarning, PartitionEstimator
from skebm.base.energy import check_temperature
from skebm.base.processes import (
    Notice,
    TasksMixin,
    collect_warnings,
    fit_of,
    parts_of_fit,
    repeat,
)
from skebm.base.sampler import whole_number, whole_numbers
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.estimators._docs import DocLinkMixin
from skebm.estimators.base import (
    assign_parameters,
    atomic,
    non_default_parameters,
    set_by_name,
    warn_without_effect,
)
from skebm.estimators.deep.bounds import (
    all_states,
    is_summed,
    log_mean_gain,
    log_mean_gain_of_draws,
    log_state_gains,
)
from skebm.estimators.deep.module import hidden_map, sigmoid_network
from skebm.estimators.rbm import RBMEstimator
from skebm.estimators.rbm.hidden import BinaryUnits
from skebm.estimators.tables.frames import as_given
from skebm.training.rows import Rows
from skebm.training.streams import SourceMixin


def default_rbm() -> RBMEstimator:
    """Settings of the RBMs by default: usual ones, on independent columns.

    The search for a base takes as long again as both trainings, and hidden units below would be
    modelled by a tree beside the units above.
    """
    return RBMEstimator(base="independent")


class DeepBeliefNetwork(
    DocLinkMixin,
    SourceMixin,
    TasksMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    DensityMixin,
    BaseEstimator,
):
    r"""Deep belief network: features, a density, samples, and a network to start training from.

    .. math::
        p(x) = \sum_{h_1, \dots, h_{L-1}} p_1(x \mid h_1) \, p_2(h_1 \mid h_2) \cdots
        p_{L-1}(h_{L-2} \mid h_{L-1}) \, p_L(h_{L-1}) ,

    with L RBMs: the top one gives the distribution of its visible units, and each of the others the
    conditional distribution of its visible units given its hidden units. They are trained greedily
    [1]_: the first is fitted to X, and each of the others to the probabilities of the hidden units
    of the one below. The model is that of a :class:`~sklearn.pipeline.Pipeline` of these
    :class:`RBMEstimator`, with the likelihood, samples and reconstructions that such a pipeline
    lacks.

    Columns may be bits, numbers and categories, with missing entries, as in :class:`RBMEstimator`.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int or int, default=(256, 256)
        Numbers of hidden units, from the first RBM to the top. A single number gives a single RBM,
        with the features, samples and scores of :class:`RBMEstimator`.
    rbm : RBMEstimator or None, default=None
        Settings of all RBMs, whose hidden units are binary; clones of it are fitted. None is
        ``RBMEstimator(base="independent")``.
        Parameters can be searched over by ``rbm__<name>``. Settings for the types of the columns
        (`visible`, `categorical_features`, a `base` for columns other than bits) apply
        to the first RBM alone; `n_components` and `warm_start` have no effect.
    layer_params : sequence of dict or None, default=None
        Parameters in which the RBMs differ from `rbm`: a dict for each RBM, from the first to the
        top, or None in place of an empty dict.
    upper_input : {"probabilities", "states"}, default="probabilities"
        What the RBMs above the first are fitted to: the probabilities of the hidden units below, or
        states that are drawn from them once.
    n_draws : int, default=100
        Number of draws of the hidden layers for each row in `score_samples`, `score` and `energy`,
        if the layers are not summed over; a change takes effect at the next call.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z of the top RBM is estimated, when it is first needed. ``"auto"``: by the
        `partition` of that RBM. None: log Z is not estimated; `score_samples` is then minus the
        energy.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of the hidden layers, and of every ``random_state`` of the RBMs that is
        None.
    verbose : int, default=0
        1 shows the progress bar of each RBM.

    Attributes
    ----------
    rbms_ : list of RBMEstimator
        The fitted RBMs, from the first to the top.
    bound_kind_ : {"exact", "lower"}
        Whether `score_samples`, given log Z, is the exact log p(x) or a lower bound in expectation.
        It is exact if each hidden layer below the top has at most 12 units, and for a single RBM.
    log_partition_, log_partition_std_ : float
        log Z of the top RBM in nats and its standard error, 0 when exact.
    log_partition_bounds_ : tuple of float
        Ends of the interval for log Z.
    log_partition_kind_ : {"exact", "certain", "probabilistic", "heuristic"}
        Whether the interval is certain, holds with a stated probability, or has no guarantee.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : A single RBM.
    sklearn.pipeline.Pipeline : RBMs, or other transformers, one after the other.

    Notes
    -----
    With two hidden layers or more, log p(x) is a sum over the states of those below the top. If
    there are few states, the sum is computed. Otherwise it is bounded by importance weights of
    draws :math:`h^{(k)} \sim q(h \mid x)` from the conditionals of the RBMs, from below [2]_ [3]_,

    .. math::
        \log p(x) \ge E \log \frac1K \sum_{k=1}^K \frac{p(x, h^{(k)})}{q(h^{(k)} \mid x)} ,

    which is tighter the larger K is, and exact for a single RBM. The value that is returned is one
    draw of the term whose expectation is taken: its mean over many rows is a lower bound up to its
    standard error.

    If Ctrl-C interrupts the training of an RBM, the RBMs trained so far are kept, the last one
    partly trained, and `KeyboardInterrupt` is raised. The model then has fewer layers, unless the
    interrupted RBM was the top one. A call that fails in any other way leaves the estimator
    unchanged.

    References
    ----------
    .. [1] Hinton, Osindero and Teh (2006), "A fast learning algorithm for deep belief nets", Neural
       Computation 18(7).
    .. [2] Salakhutdinov and Murray (2008), "On the quantitative analysis of deep belief networks",
       ICML (a lower bound with log Z by annealing).
    .. [3] Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", ICLR,
       equation 8.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skebm import DeepBeliefNetwork
    >>> X = (load_digits().data > 7).astype("float32")
    >>> model = DeepBeliefNetwork((32, 16), random_state=0).set_params(rbm__n_iter=5).fit(X)
    >>> model.transform(X).shape
    (1797, 16)
    >>> model.sample(2, random_state=0).shape
    (2, 64)
    >>> bool(model.score(X) > -40)  # a lower bound in nats; independent columns have -31.6
    True
    >>> model.to_module(n_outputs=10)
    Sequential(
      (0): Linear(in_features=64, out_features=32, bias=True)
      (1): Sigmoid()
      (2): Linear(in_features=32, out_features=16, bias=True)
      (3): Sigmoid()
      (4): Linear(in_features=16, out_features=10, bias=True)
    )
    """

    _parameter_constraints: dict = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "rbm": [RBMEstimator, None],
        "layer_params": ["array-like", None],
        "upper_input": [StrOptions({"probabilities", "states"})],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "partition": [StrOptions({"auto"}), PartitionEstimator, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _has_tasks = True

    def __init__(
        self,
        hidden_layer_sizes=(256, 256),
        *,
        rbm=None,
        layer_params=None,
        upper_input="probabilities",
        n_draws=100,
        partition="auto",
        random_state=None,
        verbose=0,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- parameters

    def _config_of(self, owner: str, value: Any, names: Iterable[str]) -> Any:
        """The object that a default stands for, whose parameters are being set."""
        return default_rbm() if owner == "rbm" and value is None else None

    @atomic
    def set_params(self, **params: Any) -> DeepBeliefNetwork:
        """Set parameters by name, those of the RBMs by ``rbm__<name>``, even if `rbm` is None."""
        set_by_name(self, params, super().set_params)
        return self

    def _template(self) -> RBMEstimator:
        return default_rbm() if self.rbm is None else self.rbm

    def _layers(self, random: np.random.RandomState) -> list[RBMEstimator]:
        """The RBMs before they are fitted."""
        sizes = whole_numbers("hidden_layer_sizes", self.hidden_layer_sizes, 1)
        if not sizes:
            raise ValueError("hidden_layer_sizes must hold the size of at least one layer, got ().")
        overrides = self._check_layer_params(len(sizes))
        layers = []
        for k, (size, own) in enumerate(zip(sizes, overrides, strict=True)):
            layer = clone(self._template())
            layer.set_params(n_components=size, warm_start=False)
            if k:
                layer.set_params(**_without_columns(layer))
            if self.verbose:
                layer.set_params(verbose=self.verbose)
            if k == len(sizes) - 1 and self.partition != "auto":
                layer.set_params(partition=clone(self.partition, safe=False))
            layer.set_params(**own)
            _check_units(layer)
            set_seeds(layer, random)
            # What a configuration of scikit-learn asks of outputs is not for those in between.
            layers.append(layer.set_output(transform="default"))
        return layers

    def _check_layer_params(self, n_layers: int) -> list[Mapping[str, Any]]:
        """A dict of parameters for each RBM; `ValueError` that says what is wrong."""
        if self.layer_params is None:
            return [{}] * n_layers
        found = [{} if own is None else own for own in self.layer_params]
        if len(found) != n_layers or not all(isinstance(own, Mapping) for own in found):
            raise ValueError(
                f"layer_params must hold {n_layers} dicts of parameters, one for each of "
                f"hidden_layer_sizes, got {self.layer_params!r}."
            )
        # Parameters of an RBM that say what the columns of X are, which only the first one takes.
        of_columns = ("visible", "categorical_features")
        for k, own in enumerate(found):
            for name in ("n_components", "warm_start", *(of_columns if k else ())):
                if name in own:
                    raise ValueError(
                        f"layer_params[{k}] cannot set {name}: "
                        + {
                            "n_components": "use hidden_layer_sizes.",
                            "warm_start": "each fit starts anew, so remove it.",
                        }.get(name, "it is for the columns of X, which only layer 0 takes.")
                    )
        return found

    def _without_effect(self, sizes: list[int]) -> dict[str, str]:
        """Parameters that layers of these sizes do not use, each with the reason."""
        reasons = {
            "n_components": "hidden_layer_sizes takes its place",
            "warm_start": "each fit starts anew",
        }
        asked = non_default_parameters(self._template())
        found = {f"rbm__{name}": why for name, why in reasons.items() if name in asked}
        unused = {"upper_input": "there is one layer"} if len(sizes) == 1 else {}
        if is_summed(sizes[:-1]):
            unused["n_draws"] = "the likelihood of layers as small, or of one alone, is exact"
        return found | {
            name: why for name, why in unused.items() if name in non_default_parameters(self)
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        first = get_tags(self._template())
        tags.input_tags = deepcopy(first.input_tags)
        tags.transformer_tags = deepcopy(first.transformer_tags)
        return tags

    # ---------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> DeepBeliefNetwork:
        """Fit the RBMs, one after the other.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows, in any form that :class:`RBMEstimator` takes.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the rows in the fit of each RBM, on any scale; rows of weight
        0 are ignored.

        Returns
        -------
        self : DeepBeliefNetwork
        """
        interrupted = self._fit(X, y, sample_weight)
        if interrupted is not None:
            raise interrupted
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=False)
    def _fit(self, X: Any, y: Any, sample_weight: Any) -> KeyboardInterrupt | None:
        """Fit and return what ended the training of an RBM, if anything did."""
        check_columns(self, X, reset=True)
        random = self._common_random()
        layers = self._layers(random)
        warn_without_effect(self._without_effect([layer.n_components for layer in layers]))
        tasks = parts_of_fit([f"fit-layer-{k}" for k in range(len(layers))])
        fitted: list[RBMEstimator] = []
        interrupted = None
        with _naming_layers(len(layers)) as noting:
            for k, layer in enumerate(layers):
                if k:
                    X = self._upper_rows(fitted[-1]._features_of(X), random)
                try:
                    with noting(k), fit_of(tasks[k], layer):
                        layer.fit(X, sample_weight=sample_weight)
                except KeyboardInterrupt as error:
                    if not layer.__sklearn_is_fitted__():
                        raise
                    interrupted = error
                fitted.append(layer)
                if interrupted is not None:
                    break
        self.rbms_, self._seed = fitted, draw_seed(random)
        return interrupted

    def _upper_rows(self, mean: np.ndarray, random: np.random.RandomState) -> np.ndarray:
        """What the next RBM is fitted to, given the probabilities of the hidden units below."""
        if self.upper_input == "probabilities":
            return mean
        found: np.ndarray = (random.uniform(size=mean.shape) < mean).astype(mean.dtype)
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return "rbms_" in vars(self)

    # ---------------------------------------------------------------- features

    @property
    def _n_features_out(self) -> int:
        return self.rbms_[-1].n_components_

    def transform(self, X: Any) -> np.ndarray:
        """Probabilities of the units of the top hidden layer, given those below.

        Those of the first hidden layer are :math:`p(h_1 \\mid x)`, and each further RBM takes the
        probabilities below as its visible units. For a row with missing entries, the second RBM
        takes what `transform` of the first one returns.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, hidden_layer_sizes[-1])
            In the precision of X.
        """
        return self.transform_layers(X)[-1]

    def transform_layers(self, X: Any) -> list[np.ndarray]:
        """Probabilities of the units of each hidden layer.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        list of ndarray of shape (n_samples, hidden_layer_sizes[l])
            From the first to the top, in the precision of X.
        """
        self._check(X)
        found = []
        for rbm in self.rbms_:
            X = rbm._features_of(X)
            found.append(X)
        return found

    def _check(self, X: Any) -> None:
        check_is_fitted(self)
        if getattr(X, "ndim", 2) == 2:  # of others the first RBM says what is wrong
            check_columns(self, X, reset=False)

    @as_given(means=True)
    def reconstruct(self, X: Any) -> Any:
        """Mean-field reconstruction: up to the top by means, and down again.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Missing entries are reconstructed with the others.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features)
            In the units of the data; the likeliest level of a category.
        """
        h = self.transform(X)
        for rbm in reversed(self.rbms_):
            h = self._down(rbm, h, lambda conditional: conditional.mean)
        return h

    def _down(
        self, rbm: RBMEstimator, h: np.ndarray, value: Callable[[Any], Tensor], beta: float = 1.0
    ) -> Any:
        """A value of the visible units given the hidden ones, in the units of the RBM's rows."""
        energy = rbm.energy_
        with torch.no_grad():
            hidden = torch.as_tensor(np.asarray(h)).to(energy.weight)
            return rbm._recipe.table.invert(value(energy.visible(hidden, beta)))

    # ---------------------------------------------------------------- samples

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        n_steps: int = 1000,
    ) -> Any:
        """Draw rows: from the top RBM, then down through the conditionals of the others.

        The rows are exact and independent if those of the top RBM are
        (:meth:`RBMEstimator.sample`); otherwise they are as good as its Gibbs chains.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energies of both layers of each RBM are divided: above 1 rows are
            more random, below 1 they are closer to the most probable ones. With several layers the
            result is not a power of p(x). Temperatures other than 1 raise `ValueError` if the base
            of the first RBM has latent classes, whose powers have no closed form.
        n_steps : int, default=1000
            Number of Gibbs steps in the top RBM, if they are needed.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features)
            In the units of the data.
        """
        check_is_fitted(self)
        check_temperature(temperature)
        whole_number("n_samples", n_samples, 1)
        check_memory(f"n_samples={n_samples}", n_samples * self.n_features_in_, torch.float64)
        base = self.rbms_[0].base_
        if temperature != 1 and not base.has_powers:
            raise ValueError(
                f"temperature={temperature} needs a power of the base {base!r}, which has no "
                "closed form: use temperature=1.0, or fit the model with another base."
            )
        random = check_random_state(random_state)
        kind: dict[str, Any] = {"temperature": temperature, "n_steps": n_steps}
        rows = self.rbms_[-1].sample(n_samples, random, **kind)
        for rbm in reversed(self.rbms_[:-1]):
            generator = rbm._generator(random)
            draw = functools.partial(_draw_of, generator=generator)
            rows = self._down(rbm, rows, draw, 1 / temperature)
        return rows

    # ---------------------------------------------------------------- likelihood

    @property
    def bound_kind_(self) -> str:
        """``"exact"`` or ``"lower"``: what `score_samples` is of log p(x), given log Z."""
        check_is_fitted(self)
        sizes = [rbm.n_components_ for rbm in self.rbms_[:-1]]
        return "exact" if is_summed(sizes) else "lower"

    def energy(self, X: Any) -> np.ndarray:
        """Energy of each row, -log p(x) - log Z, in nats: lower is more likely.

        Z is that of the top RBM, and is not needed to compute the energy. The values are exact, or
        an upper bound in expectation (see `bound_kind_`).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Without missing entries where there are several layers.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._energies(X, likely=False)

    def _energies(self, X: Any, likely: bool) -> np.ndarray:
        """Energies of validated rows; with `likely`, warn of those that have no likelihood."""
        self._check(X)
        first = self.rbms_[0]
        rows = first._rows(X)
        if len(self.rbms_) > 1 and rows.has_missing():
            raise ValueError(
                "X contains NaN, and the likelihood of several layers needs complete rows: fill "
                "them in first, as by rbms_[0].impute(X)."
            )
        found: np.ndarray = first._energies(rows, likely=likely)
        if len(self.rbms_) == 1:
            return found
        # Of a row so far that its energy is infinite the hidden units have no probabilities.
        return np.where(np.isposinf(found), found, found - self._gains(rows))

    def _gains(self, rows: Rows) -> np.ndarray:
        """What the RBMs above the first add to the log-likelihood of rows, less log Z, (n,)."""
        energies = [rbm._scoring_energy() for rbm in self.rbms_]
        if self.bound_kind_ == "exact":
            with torch.no_grad():
                plain = [rbm.energy_ for rbm in self.rbms_]
                states, table = all_states(plain[0]), log_state_gains(plain)
            gain = functools.partial(log_mean_gain, energies[0], states=states, log_gain=table)
        else:
            gain = functools.partial(
                log_mean_gain_of_draws, energies, n_draws=int(self.n_draws), seed=self._seed
            )
        return rows.map(gain, energies[0].domain.n_columns).numpy()

    def score_samples(self, X: Any) -> np.ndarray:
        """Log p(x) of each row in nats, or a lower bound of it, with the estimate of log Z.

        Given log Z, the values are exact, or a lower bound in expectation (see `bound_kind_`). If
        log Z is estimated, its error is the same for all rows (see `log_partition_bounds_`).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Without missing entries where there are several layers.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return -self._energies(X, likely=True) - self.log_partition_

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of log p(x), or of its lower bound, in nats, with the largest credible log Z.

        The score is exact if `bound_kind_` and log Z are; otherwise it is low in expectation, so
        that a search does not reward slowly mixing models.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
            It is nan, with a warning that gives the reason, if log Z has no credible upper end.
            With ``partition=None`` it is the score of the RBM for a single layer, and nan for
            several.
        """
        self._check(X)
        if len(self.rbms_) == 1:
            return self.rbms_[0].score(X)
        energies = self._energies(X, likely=True)
        reason = "partition=None asks for none"
        largest = math.nan
        if self.rbms_[-1].partition is not None:
            found = self.rbms_[-1]._log_partition()
            largest, reason = found.pessimistic, found.reason
        if math.isnan(largest):
            warn(
                f"score is nan, because log Z of the top RBM has no credible upper end: {reason}.",
                LikelihoodWarning,
                ('Use partition="auto", or score_samples.',),
            )
        return -float(energies.mean()) - largest

    @property
    def log_partition_(self) -> float:
        """log Z of the top RBM in nats, computed when first needed; 0 with ``partition=None``."""
        check_is_fitted(self)
        return self.rbms_[-1].log_partition_

    @property
    def log_partition_std_(self) -> float:
        """Standard error of `log_partition_`; 0 if exact."""
        check_is_fitted(self)
        return self.rbms_[-1].log_partition_std_

    @property
    def log_partition_bounds_(self) -> tuple[float, float]:
        """Lower and upper bounds on log Z, of the kind given by `log_partition_kind_`."""
        check_is_fitted(self)
        return self.rbms_[-1].log_partition_bounds_

    @property
    def log_partition_kind_(self) -> str:
        """Kind of the bounds: ``"exact"``, ``"certain"``, ``"probabilistic"``, ``"heuristic"``."""
        check_is_fitted(self)
        return self.rbms_[-1].log_partition_kind_

    # ---------------------------------------------------------------- networks

    def to_module(self, n_outputs: int | None = None) -> nn.Sequential:
        """A network with the weights of the RBMs, for training with labels.

        Its linear layers and sigmoids compute :meth:`transform`. It takes X as it is, in float32:
        scaling and standardisation are part of the first layer. (Values that the model would clip
        to the range of its training rows are not clipped.) Weights are copies on the CPU; training
        them does not change the RBMs.

        If it is the network of a :class:`JEMClassifier` for real columns, pass
        ``standardize=False`` there.

        Parameters
        ----------
        n_outputs : int or None, default=None
            Number of outputs of one more linear layer, such as a logit for each class. Its weights
            are zero, so that all classes are equally likely before training. None: no such layer.

        Returns
        -------
        torch.nn.Sequential
            From rows (n, n_features) to (n, n_outputs), or to the features.

        Raises
        ------
        ValueError
            If columns of X are categories.

        References
        ----------
        Hinton and Salakhutdinov (2006), "Reducing the dimensionality of data with neural networks",
        Science 313. Erhan, Bengio, Courville, Manzagol, Vincent and Bengio (2010), "Why does
        unsupervised pre-training help deep learning?", JMLR 11.
        """
        check_is_fitted(self)
        if n_outputs is not None:
            whole_number("n_outputs", n_outputs, 1)
        first, *others = (hidden_map(rbm) for rbm in self.rbms_)
        first = first.on_columns(self.rbms_[0]._recipe.table)
        return sigmoid_network([first, *others], n_outputs)


@contextlib.contextmanager
def _naming_layers(n_layers: int) -> Iterator[Callable[[int], Any]]:
    """Repeat what the fits of RBMs warn of after them, with their numbers, once for all alike.

    The block gets a context manager for the fit of RBM k.
    """
    noted: dict[Any, tuple[Notice, list[int]]] = {}

    @contextlib.contextmanager
    def noting(k: int) -> Iterator[None]:
        with collect_warnings() as caught:
            yield
        for one in caught:
            _, places = noted.setdefault(one.kind, (one, []))
            places += [k + 1] if k + 1 not in places else []

    yield noting
    for one, places in noted.values():
        which = f"RBM{'s' * (len(places) > 1)} {', '.join(map(str, places))} of {n_layers}: "
        repeat([one._replace(message=(which if n_layers > 1 else "") + one.message)])


def _draw_of(conditional: Any, generator: torch.Generator) -> Tensor:
    """A draw of a conditional."""
    found: Tensor = conditional.sample(generator)
    return found


def _check_units(layer: RBMEstimator) -> None:
    """Raise `ValueError` unless hidden units are bits, as columns of the next RBM are."""
    kind = layer._hidden.kind
    if kind is not BinaryUnits:
        raise ValueError(
            f"RBMs on top of each other need binary hidden units, and {layer!r} has {kind.name}: "
            'use RBMEstimator(hidden="binary").'
        )


def _without_columns(layer: RBMEstimator) -> dict[str, Any]:
    """Parameters of an RBM of hidden units where the template is made for columns of X."""
    found: dict[str, Any] = {
        "visible": "probabilities",
        "categorical_features": None,
    }
    base = layer.base
    # Bases that bits may have; others are for columns of X.
    bases_of_bits = ("auto", "independent", "chow-liu", "block-tree")
    if isinstance(base, Distribution) or base not in bases_of_bits:
        found["base"] = "auto"
    return found
