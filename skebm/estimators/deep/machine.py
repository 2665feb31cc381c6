"""Deep Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

import functools
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from torch import Tensor, nn

from skebm._validation import Interval, StrOptions, check_is_fitted, torch_dtype_of
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.energies.deep import Layers
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    DENSITY_CONSTRAINTS,
    BaseDensity,
    assign_parameters,
    draw_seed,
)
from skebm.estimators.deep.family import (
    FIRST_LAYER,
    DeepRecipe,
    design_deep,
    hidden_entries,
    plain_base,
    warn_unless_converged,
)
from skebm.estimators.deep.first_layer import fit_first_layer
from skebm.estimators.deep.meanfield import (
    MeanField,
    PosteriorMeans,
    enumerates_hidden,
    recognition_maps,
)
from skebm.estimators.deep.module import sigmoid_network
from skebm.estimators.deep.rows import HiddenEntries
from skebm.estimators.rbm.choice import BaseChoice, ValidationFits
from skebm.estimators.rbm.drawing import LayersDensityMixin
from skebm.estimators.rbm.estimator import RBMEstimator
from skebm.estimators.rbm.family import FEWEST_ROWS, GIVEN
from skebm.estimators.rbm.missing import hidden_means
from skebm.estimators.tables.bases import (
    COLUMN_BASES,
    check_base_stays,
    fit_completed,
)
from skebm.estimators.tables.table import Table, fit_table_base, learn_columns
from skebm.objectives import Centering, Penalty
from skebm.samplers import FromData, Gibbs, Persistent
from skebm.training import SGD, EarlyStopping
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Gibbs steps for the features of rows with missing entries.
N_MEAN_STEPS = 100


@insert_shared_docs
class DeepBoltzmannMachine(LayersDensityMixin, BaseDensity):
    r"""Deep Boltzmann machine: several layers of hidden units, all coupled to their neighbours.

    .. math::
        p(x) = \frac{1}{Z} \sum_{h_1, \dots, h_L} e^{-E(x, h_1, \dots, h_L)}, \qquad
        E = -b_0^\top x - \sum_{l=1}^L \bigl(b_l^\top h_l + h_l^\top W_l h_{l-1}\bigr),
        \quad h_0 = x .

    Given x the hidden layers depend on each other. Their posterior is approximated by independent
    units (mean field), whose means persist from one pass over the rows to the next, and training
    follows the gradient of the variational bound of log p(x), with persistent chains for the
    expectation under the model [1]_. The gradient is centred [2]_. Training starts at the RBM of
    the first layer, below which the model never ends. `score_samples` returns a **lower bound** of
    log p(x), by importance sampling from mean field (see :class:`~skebm.estimators.MeanField`), or
    the exact value if the hidden layers are small enough to be summed out (`bound_kind_`).

    Columns of X may be bits, categories and numbers, with missing entries, as in
    :class:`RBMEstimator`. With a single hidden layer the model is the same as there.

    Parameters
    ----------
    hidden_layer_sizes : int or array-like of int, default=(128, 64)
        Numbers of units of the hidden layers, from below. One layer is a restricted Boltzmann
        machine.
    learning_rate : float or "auto", default="auto"
        Learning rate. ``"auto"``: 0.1 (0.3 on a tree), decaying linearly to a hundredth of that.
        Joint training that starts at a first layer takes three tenths of it.
    batch_size : int or "auto", default="auto"
        Maximum number of rows per step. ``"auto"``: 100, or fewer if there would otherwise be fewer
        than 10,000 steps in `n_iter` epochs.
    n_iter : int or "auto", default="auto"
        Number of epochs. ``"auto"``: 10,000 steps, and up to eight times as many while held-out
        rows gain, or fewer if they would take more than 2e11 multiplications, but at least 10
        epochs. With fewer than 200 rows, models of the two halves
        of the rows determine how many, possibly 0 (see Notes).
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    pretraining : str, RBMEstimator, FrozenEstimator or None, default="auto"
        Start of the joint training. ``"first-layer"``: the RBM of the first layer, trained as
        :class:`RBMEstimator` is by the settings of the machine, below which the machine never ends
        (see Notes). An :class:`RBMEstimator` is that RBM by settings of its own, which can be
        searched over by ``pretraining__<name>``; a :class:`sklearn.frozen.FrozenEstimator` of one
        that was fitted to such rows is used as it is. ``"auto"``: ``"first-layer"`` with 200 rows
        or more, and None with fewer. None: random weights. ``"layerwise"``: RBMs of neighbouring
        layers are trained first, from below, each for a fifth of the epochs. Meanwhile the upward
        weights of the first and the downward weights of the last are doubled; the weights of those
        in between are halved afterwards [1]_. Upper layers then depend more on x, but with the
        default layers likelihood bounds were no higher on four data sets.
    mean_field : MeanField or None, default=None
        Tolerance and steps of mean field and the number of importance weights; None is
        ``MeanField()``. Its parameters can be searched over by ``mean_field__<name>``.
    chains : Persistent, FromData or None, default=None
        Chains of the expectation under the model; None is ``Persistent(n_steps=1)``. ``FromData``
        starts them at the rows and the means of their hidden units.
    base : str or Distribution, default="auto"
        Base q of the columns that the model corrects: ``"independent"``, ``"chow-liu"``,
        ``"block-tree"``, ``"gaussian"``, ``"latent-classes"``, or a distribution with exact
        conditionals; as in :class:`RBMEstimator`. ``"auto"``: the one of the first layer, chosen by
        held-out rows, and ``"independent"`` without a trained first layer.
    centering : Centering, "auto" or None, default="auto"
        Centre the units of all layers in the gradient [2]_. ``"auto"`` also divides it by powers of
        the units' variances, unless `learning_rate` is set.
    penalty : Penalty or None, default=None
        Penalties on all weights, and on the mean activation of h1, h3, ...
    optimizer : SGD or None, default=None
        Momentum, schedule, averaging and roll-backs; None is :class:`skebm.training.SGD` with its
        default settings, and after a first layer ``SGD(averaging=0.9)``.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        Visible units of the columns that are not categorical. ``"auto"``: Bernoulli units if all
        values are in [0, 1]; otherwise columns that hold values other than zeros and ones are
        Gaussian units. ``"bernoulli"``: all of them are Bernoulli units, min-max scaled with a
        warning where values are outside [0, 1]; ``"probabilities"``: such values raise an error.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, which are softmax units: names, numbers or a boolean mask.
        ``"from_dtype"``: columns of frames of text or categories. None: no column is categorical.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the bound on held-out rows, relative to the base, no longer improves, and keep the
        best weights. Its log Z is annealed after each epoch.
    warm_start : bool, default=False
        Continue from the weights and chains of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training rows that `predict` classifies as outliers; ``"auto"`` is 0.1.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly, if either all even or
        all odd layers can be enumerated with at most 1e9 terms, otherwise by
        :class:`skebm.partition.AISBracket`. None: log Z is not estimated; `score_samples` is then
        minus the energy, and `score` a pseudo-likelihood of bits and categories, computed from the
        bounds.
    sampler : Sampler or None, default=None
        Sampler of the rows (x, h2, h4, ...); None is :class:`skebm.samplers.Gibbs`, which draws all
        even and all odd layers in turn.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation.
    <<net_params>>

    Attributes
    ----------
    weights_ : list of ndarray of shape (n_units, n_units_below)
        W_l of the layers from below, read-only views. With categorical or Gaussian units the first
        has a column for each bit, level of a category and number.
    intercepts_ : list of ndarray of shape (n_units,)
        Biases of all layers, that of x first; in addition to those of the base if not all columns
        are bits.
    layer_sizes_ : tuple of int
        Entries of x and numbers of units of the hidden layers.
    bound_kind_ : {"exact", "lower"}
        Whether `score_samples` is exact, up to log Z, or a lower bound in expectation.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: energy gap, learning rate, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, and number of roll-backs.
    learning_rate_, batch_size_, n_chains_ : float, int, int
        Values used for ``"auto"``.
    base_ : Distribution
        The fitted base of x.
    sampler_, energy_, net_ : Sampler, BernoulliDBM or MixedDBM, EnergyNet
        The sampler, the energy of (x, h2, h4, ...) as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : One layer of hidden units.

    Notes
    -----
    **Training starts at the RBM of the first layer** by default. It is the one that
    ``RBMEstimator(hidden_layer_sizes[0])`` of the same settings and seed becomes. Upper layers then
    have weights so small that p(x) stays the same, and joint training continues with a moving
    average of the weights. log Z is annealed from the base through the RBM, or from the RBM where
    its states can be summed.

    **Held-out rows guard the training** as in :class:`RBMEstimator`, if there are 200 rows or more,
    whatever else is set. A tenth of the rows, at most 500, is then not trained on. Twenty times
    during a fit, their bound, with log Z estimated by annealing, is compared with the first layer
    (``gain_over_base`` in `history_`), or with the base where there is none. `fit` does not keep
    weights that are clearly worse than earlier ones, and the model is its first layer, or its base,
    unless it gains half a standard error. With fewer rows, models of the two halves determine the
    number of epochs if `n_iter` is ``"auto"``.

    In training, missing entries are drawn by Gibbs steps given the known ones. For new rows, the
    likelihood of the known entries is estimated by annealing; it is low on average.

    References
    ----------
    .. [1] Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, algorithm 1 and
       section 3.1.
    .. [2] Melchior, Fischer and Wiskott (2016), "How to center deep Boltzmann machines", JMLR
       17(99), section 5. Montavon and Müller (2012), "Deep Boltzmann machines and the centering
       trick".

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import DeepBoltzmannMachine
    >>> rng = np.random.default_rng(0)
    >>> X = np.repeat(rng.integers(0, 2, (300, 2)), 3, axis=1)  # two switches, three copies each
    >>> model = DeepBoltzmannMachine((4, 2), n_iter=50, random_state=0).fit(X)
    >>> model.transform(X).shape
    (300, 6)
    >>> model.bound_kind_, bool(-6 * np.log(2) < model.score(X) < -2 * np.log(2) + 0.1)
    ('exact', True)
    """

    _parameter_constraints: dict = DENSITY_CONSTRAINTS | {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "pretraining": [
            StrOptions({"auto", FIRST_LAYER, "layerwise"}),
            RBMEstimator,
            FrozenEstimator,
            None,
        ],
        "mean_field": [MeanField, None],
        "chains": [Persistent, FromData, None],
        "base": [StrOptions({"auto", *COLUMN_BASES}), Distribution],
        "centering": [Centering, StrOptions({"auto"}), None],
        "penalty": [Penalty, None],
        "optimizer": [SGD, None],
        "visible": [StrOptions({"auto", "bernoulli", "probabilities"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
    }
    _configs = {
        "chains": lambda value, names: Persistent(n_steps=1),
        "mean_field": lambda value, names: MeanField(),
        "sampler": lambda value, names: Gibbs(),
        "centering": lambda value, names: Centering(),
        "penalty": lambda value, names: Penalty(),
        "optimizer": lambda value, names: SGD(),
        "early_stopping": lambda value, names: EarlyStopping(),
    }
    _recipe: DeepRecipe

    def __init__(
        self,
        hidden_layer_sizes=(128, 64),
        *,
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        pretraining="auto",
        mean_field=None,
        chains=None,
        base="auto",
        centering="auto",
        penalty=None,
        optimizer=None,
        visible="auto",
        categorical_features="from_dtype",
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        sizes = hidden_sizes(self.hidden_layer_sizes)
        visible = learn_columns(self, X, weight)
        layers = Layers((visible.domain.n_columns, *sizes))
        n_numbers = 3.0 * layers.n_between * layers.n_row + float(X.shape[0]) * layers.n_row
        what = f"hidden_layer_sizes={self.hidden_layer_sizes} with {layers.n_visible} columns"
        check_memory(what, n_numbers, torch_dtype_of(self.dtype))
        return visible.in_layout(HiddenEntries(layers.n_visible, layers.n_beside))

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> DeepRecipe:
        layers = Layers((table.domain.n_columns, *hidden_sizes(self.hidden_layer_sizes)))
        if before is not None:
            last = self._recipe
            check_base_stays(self.base, last.base, last.base_name)
            sizes = last.family.layers.sizes[1:]
            if layers.sizes[1:] != sizes:
                raise ValueError(
                    f"hidden_layer_sizes={self.hidden_layer_sizes} are not those of the previous "
                    f"fit, {sizes}: with warm_start and partial_fit they must not "
                    "change. Clone the estimator to start from new weights."
                )
            seed = last.family.seed
            before_now = BaseChoice(last.base_name, layers.n_between, last.base_reason)
            new = design_deep(
                *(self, table, layers, last.base, before_now, rows, seed),
                streaming=streaming,
                pretraining=last.family.pretraining,
                guard_seed=last.guard_seed,
            )
            both = new.family.rbm.by_halves and last.family.rbm.by_halves
            return new.with_epochs(last.plan.n_iter) if both else new

        start = self._start_of_training(layers, rows, streaming=streaming)
        if start == FIRST_LAYER:
            return self._after_first_layer(rows, table, layers, streaming=streaming)
        return self._from_base(rows, table, layers, start, streaming=streaming)

    def _after_first_layer(
        self, rows: Rows, table: Table, layers: Layers, *, streaming: bool
    ) -> DeepRecipe:
        """The recipe of a training that starts at an RBM, which is trained here."""
        seed, columns = draw_seed(self.random_state_), hidden_entries(table).without(rows)
        first = fit_first_layer(self, layers.sizes[1], table.in_layout(None), columns)
        own = first.recipe
        chosen = BaseChoice(own.base_name, layers.n_between, own.base_reason)
        found = design_deep(
            *(self, table, layers, own.base, chosen, rows, seed),
            streaming=streaming,
            pretraining=FIRST_LAYER,
            guard_seed=first.guard_seed,
        )
        found = replace(found, trial=first)
        return found.with_epochs(0) if first.interrupted else found

    def _from_base(
        self, rows: Rows, table: Table, layers: Layers, start: str | None, *, streaming: bool
    ) -> DeepRecipe:
        """The recipe of a training that starts near the base, whose epochs halves may choose."""
        seed, hidden = draw_seed(self.random_state_), hidden_entries(table)
        asked = plain_base(self.base)

        def base_of(name: str | None, some: Rows) -> Distribution:
            fit = functools.partial(fit_table_base, asked, table=table)
            return fit_completed(fit, hidden.without(some), asked)

        def plan(base: Distribution, chosen: BaseChoice, some: Rows) -> DeepRecipe:
            how: dict[str, Any] = {"streaming": streaming, "pretraining": start}
            return design_deep(self, table, layers, base, chosen, some, seed, **how)

        name = asked if isinstance(asked, str) else None
        chosen = BaseChoice(name, layers.n_between, GIVEN)
        found = plan(base_of(None, rows), chosen, rows)
        if not found.family.rbm.by_halves:
            return found
        generator = torch.Generator(rows.device).manual_seed(draw_seed(self.random_state_))
        trials = ValidationFits(base_of, plan, generator, self.net_params)
        return trials.by_halves(found, chosen, rows)

    def _start_of_training(self, layers: Layers, rows: Rows, *, streaming: bool) -> str | None:
        """How joint training starts.

        A machine of few rows, of which none can judge it, starts at random weights by default, and
        one of a single layer is trained as an RBM.
        """
        if streaming or layers.depth == 1 and self.pretraining != "layerwise":
            return None
        if self.pretraining == "auto":
            return FIRST_LAYER if len(rows) >= FEWEST_ROWS else None
        start: Any = self.pretraining
        return start if start is None or isinstance(start, str) else FIRST_LAYER

    @property
    def _n_features_out(self) -> int:
        return sum(self.layer_sizes_[1:])

    # ---------------------------------------------------------------- rows and their hidden layers

    def _energies(self, rows: Rows, *, likely: bool = False) -> np.ndarray:
        """Energies of rows of X, with or without hidden entries; of known entries where missing."""
        return super()._energies(hidden_entries(self._recipe.table).without(rows), likely=likely)

    def _with_all_entries(self, x: Tensor) -> Tensor:
        n_beside = self._recipe.family.layers.n_row - x.shape[1]
        return nn.functional.pad(x, (0, n_beside), value=torch.nan)

    def energy(self, X: Any) -> np.ndarray:
        """Upper bound of the free energy of each row, in nats: lower is more likely.

        It is minus the lower bound of log sum_h exp(-E(x, h)) that :meth:`score_samples` uses, and
        exact if `bound_kind_` is ``"exact"``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().energy(X)

    def score_samples(self, X: Any) -> np.ndarray:
        r"""Lower bound of the log-likelihood of each row, in nats, or its value (`bound_kind_`).

        The log of the mean of K importance weights from mean field, minus log Z. In expectation it
        is at most log p(x), and at least the variational bound (``mean_field__n_draws=0``). Hidden
        units are drawn with fixed random numbers, so that a row always has the same value. If log Z
        is estimated, its error is the same for all rows (see `log_partition_bounds_`). For rows
        with missing entries, the log-likelihood of the known entries is estimated by annealing; it
        is low on average.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", ICLR.
        """
        return super().score_samples(X)

    def posterior_means(self, X: Any) -> PosteriorMeans:
        """Means of all hidden layers given rows, by mean field, and whether it converged.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Without missing entries.

        Returns
        -------
        PosteriorMeans
            ``layers``, a list of arrays (n_samples, n_units) from below, the variational ``bound``
            in nats, and ``residual``, ``n_steps`` and ``converged`` of each row. If rows have not
            converged, a warning gives the largest residual.
        """
        rows = self._complete_rows(X, "posterior_means")
        found = self._map(rows, lambda energy, x: energy.means(x)).numpy()
        settings, sizes = self._recipe.family.mean_field, self.layer_sizes_[1:]
        residual, ends = found[:, -2], np.cumsum(sizes)
        warn_unless_converged(torch.as_tensor(residual), settings)
        return PosteriorMeans(
            np.split(found[:, : ends[-1]], ends[:-1], axis=1),
            found[:, -3] - self._recipe.table.log_volume,
            residual,
            found[:, -1].astype(int),
            residual <= settings.tol,
        )

    def transform(self, X: Any) -> np.ndarray:
        """Means of the units of all hidden layers given x, by mean field, from below.

        For a row with missing entries they are the means given the known entries, over Gibbs chains
        with a fixed seed.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_units)
            In the precision of X.
        """
        check_is_fitted(self)
        X = self._validate(X)
        rows, n = self._rows_of(X), self._n_features_out
        found: np.ndarray = self._map(rows, lambda energy, x: energy.means(x)[:, :n]).numpy()
        if rows.has_missing():
            x = rows.block(0, len(rows))
            known = ~x.isnan()
            index = (~known.all(1)).nonzero().ravel()
            means = self._means_of_known(x[index], known[index])
            found[index.cpu().numpy()] = means.cpu().numpy()
        return found.astype(X.dtype, copy=False)

    def _means_of_known(self, x: Tensor, known: Tensor) -> Tensor:
        """Means of all hidden layers given the known entries of rows, side by side."""
        energy, layers = self.energy_, self._recipe.family.layers
        generator = torch.Generator(x.device).manual_seed(self.net_.seed_)
        row = self._with_all_entries(torch.where(known, x, torch.nan))
        known = ~row.isnan()
        between, whole = hidden_means(energy, energy.base, row, known, N_MEAN_STEPS, generator)
        return torch.cat(layers.hidden_layers(whole[:, layers.n_visible :], between), 1)

    def to_module(self, n_outputs: int | None = None) -> nn.Sequential:
        r"""Copy of the model as a feed-forward network, for fine-tuning.

        The network, on the CPU, has ``Linear, Sigmoid`` for each hidden layer. It is one upward
        pass of inference, in which the weights of all layers but the last are doubled, because each
        of these is expected to get as much input from above [1]_. It takes X as it is, in float32:
        scaling and standardisation are part of the first layer.

        Parameters
        ----------
        n_outputs : int or None, default=None
            Number of outputs of one more linear layer, such as a logit for each class. Its weights
            are zero, so that all classes are equally likely before training. None: no such layer.

        Returns
        -------
        torch.nn.Sequential
            From rows (n, n_features) to (n, n_outputs), or to the units of the last layer.

        Raises
        ------
        ValueError
            If columns of X are categories.

        References
        ----------
        .. [1] Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, section 3.1.

        Examples
        --------
        >>> import numpy as np
        >>> from skebm import DeepBoltzmannMachine
        >>> X = np.eye(4)
        >>> model = DeepBoltzmannMachine((3, 2), n_iter=1, random_state=0).fit(X)
        >>> model.to_module()
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): Sigmoid()
          (2): Linear(in_features=3, out_features=2, bias=True)
          (3): Sigmoid()
        )
        """
        check_is_fitted(self)
        if n_outputs is not None:
            whole_number("n_outputs", n_outputs, 1)
        first, *others = recognition_maps(self.energy_, self._recipe.family.layers)
        return sigmoid_network([first.on_columns(self._recipe.table), *others], n_outputs)

    # ---------------------------------------------------------------- fitted attributes

    def _arrays(self, tensors: Any) -> list[np.ndarray]:
        found = [tensor.detach().cpu().numpy() for tensor in tensors]
        for array in found:
            array.flags.writeable = False
        return found

    @property
    def weights_(self) -> list[np.ndarray]:
        """W_l of the layers from below, (n_units, n_units_below)."""
        check_is_fitted(self)
        return self._arrays(self._recipe.family.layers.weights(self.energy_))

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """Biases of all layers, that of x first."""
        check_is_fitted(self)
        return self._arrays(self._recipe.family.layers.biases(self.energy_))

    @property
    def layer_sizes_(self) -> tuple[int, ...]:
        """Entries of x and numbers of units of the hidden layers."""
        check_is_fitted(self)
        return self._recipe.family.layers.sizes

    @property
    def bound_kind_(self) -> str:
        """``"exact"`` where hidden layers are summed out, else ``"lower"``."""
        check_is_fitted(self)
        return "exact" if enumerates_hidden(self._recipe.family.layers) else "lower"


def hidden_sizes(asked: Any) -> tuple[int, ...]:
    """Numbers of units of the hidden layers; `ValueError` unless all are whole and positive."""
    array = np.asarray(asked)
    given, sizes = [asked] if array.ndim == 0 else list(asked), array.ravel().tolist()
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in given)
    if not sizes or array.ndim > 1 or not whole or min(sizes) < 1:
        raise ValueError(
            f"hidden_layer_sizes={asked!r} must be one or more whole numbers of units, each at "
            "least 1, such as (128, 64)."
        )
    return tuple(sizes)
