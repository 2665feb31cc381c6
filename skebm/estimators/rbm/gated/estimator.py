"""Gated restricted Boltzmann machine as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skebm._validation import (
    Interval,
    StrOptions,
    as_numbers,
    check_container,
    check_is_fitted,
    check_target,
    fit_context,
)
from skebm.base import LogLikelihoods
from skebm.base.energy import check_temperature
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.energies import GatedEnergy
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    CONDITIONAL_CONSTRAINTS,
    BaseEBM,
    ConditionalPartitionMixin,
    FeaturesMixin,
    assign_parameters,
    atomic,
    raises_interrupt,
)
from skebm.estimators.rbm.gated.family import (
    N_HELD_OUT,
    GatedFamily,
    GatedRecipe,
    fit_target_base,
    gated_plan,
)
from skebm.estimators.rbm.gated.given import (
    draws,
    enumerates_layer,
    log_z_of_pairs,
    means,
)
from skebm.estimators.rbm.gated.table import Pairs, pair_table, with_any_y
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.table import Table
from skebm.partition.given import ConditionalAIS
from skebm.training import AdamW, EarlyStopping
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Rows for which chains run together.
BLOCK = 256


@insert_shared_docs
class GatedRBM(ConditionalPartitionMixin, FeaturesMixin, BaseEBM):
    r"""Gated restricted Boltzmann machine: how rows y are made from rows x, and p(y | x).

    .. math::
        E(y, h \mid x) = -\sum_f U_f (x - m)\; V_f (y - n)\; W_f h - b^\top y - c^\top h
        \;\Bigl( + \tfrac12 \textstyle\sum_i e^{s_i} y_i^2 \Bigr), \qquad
        p(y \mid x) = \frac{1}{Z(x)} \sum_h e^{-E(y, h \mid x)}

    This is a model of pairs of rows with factored three-way weights [1]_: x gates the weights
    between y and the mapping units h. Mapping units therefore represent the relation between the
    two rows and not their content. Inferred from a pair of images that are shifts of each other,
    they represent the shift; applied to another image, they shift it. Given x the model is a
    restricted Boltzmann machine, so that p(h | x, y) and p(y | x, h) are exact and the mapping
    units are summed out of p(y | x) in closed form; x itself is not modelled. Training is
    contrastive divergence with x clamped, by Adam.

    If all values of x are in [0, 1], they are probabilities of bits; otherwise the columns of x are
    standardised. The same holds for y, independently of x; standardised columns of y are Gaussian
    units, whose precisions are learned. For patches of images, training works best if the contrast
    of each patch has been normalised, which is not done here.

    With 20 pairs or more, a tenth of them (up to a fifth of fewer than 200) is held out to guard
    the training. Their p(y | x) is estimated by short annealing. If it is highest before the end of
    training, the best weights are kept; if the pairs gain less over independent columns of y than
    half of the standard error of that gain, p(y | x) is the base alone.

    Parameters
    ----------
    n_components : int, default=50
        Number of mapping units, H.
    n_factors : int, default=100
        Number of factors, F: filters of x, of y and of h.
    learning_rate : float, default=0.01
        Learning rate of Adam.
    batch_size : int or "auto", default="auto"
        Maximum number of pairs per step; ``"auto"`` is a twentieth of the pairs, between 100 and
        500. The gradients of smaller batches are noisy, and relations may not be learned.
    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` amounts to 2,000 steps, and at most 200 epochs, and to up to
        eight times as many while held-out pairs gain. 0 leaves the base: independent columns of y.
    n_gibbs : int, default=1
        Gibbs steps of contrastive divergence.
    verbose : int, default=0
        1 shows a progress bar.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    optimizer : AdamW or None, default=None
        Weight decay, learning rate schedule, weight averaging and roll-backs; None is
        :class:`skebm.training.AdamW` with its default settings.
    visible : {"auto", "bernoulli", "gaussian"}, default="auto"
        Kind of the columns. ``"auto"``: bits where all values of x, or of y, are in [0, 1];
        ``"bernoulli"``: probabilities of bits, min-max scaled with a warning where values are
        outside [0, 1]; ``"gaussian"``: standardised numbers.
    partition : "auto" or ConditionalAIS, default="auto"
        How log Z(x) is annealed, in both directions, unless it is exact. ``"auto"`` is
        :class:`ConditionalAIS(n_chains=4, n_betas=100) <skebm.partition.ConditionalAIS>`; more
        temperatures give a narrower bracket.
    early_stopping : bool or EarlyStopping, default=False
        Stop when log p(y | x) of held-out pairs, by annealing, no longer improves, and keep the
        best weights; settings in :class:`skebm.training.EarlyStopping`.
    warm_start : bool, default=False
        Continue from the weights of the previous `fit`, with the same base and units.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of training. Results for pairs are computed in double precision.
    <<net_params>>

    Attributes
    ----------
    density_ : {"model", "base"}
        What p(y | x) is: the model, or the base alone. It is the base without training, with fewer
        than 20 pairs, and if held-out pairs gain too little by the model.
    base_ : Distribution
        Independent columns of y, in the units of the energy.
    given_components_, components_ : ndarray of shape (F, dx) and (F, dy)
        Filters U of x and V of y, in the units of the energy, read-only.
    mapping_components_ : ndarray of shape (F, H)
        W, read-only.
    partition_ : ConditionalAIS
        How log Z(x) is annealed.
    n_outputs_ : int
        Number of columns of y, dy.
    history_ : list of dict
        One entry per epoch: energy gap, reconstruction error of y; learning rate, seconds; a few
        times per fit also ``gain_over_base`` and ``gain_error`` of held-out pairs, in nats.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs, and number of roll-backs.
    energy_, net_ : GatedEnergy, EnergyNet
        The energy of p(y | x) as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)
        Of x.

    See Also
    --------
    RBMEstimator : A restricted Boltzmann machine of rows alone.
    RBMClassifier : A restricted Boltzmann machine of rows and classes.

    References
    ----------
    .. [1] Memisevic and Hinton (2010), "Learning to represent spatial transformations with factored
       higher-order Boltzmann machines", Neural Computation 22(6). Memisevic and Hinton (2007),
       "Unsupervised learning of image transformations", CVPR.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import GatedRBM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(0, 2, (2000, 6)).astype(float)
    >>> shift = rng.integers(0, 2, 2000)  # by one place, or by none
    >>> Y = np.where(shift[:, None], np.roll(X, 1, axis=1), X)
    >>> model = GatedRBM(4, 24, n_iter=100, random_state=0).fit(X, Y)
    >>> bool(model.score(X, Y) > -2)  # log 2 is 0.7 and six fair coins have 4.2
    True
    >>> mapping = model.transform(X[:1], np.roll(X[:1], 1))
    >>> model.predict([[1, 1, 0, 0, 0, 0]], mapping).round()
    array([[0., 1., 1., 0., 0., 0.]])
    """

    _parameter_constraints: dict = CONDITIONAL_CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "n_gibbs": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "optimizer": [AdamW, None],
        "visible": [StrOptions({"auto", "bernoulli", "gaussian"})],
    }
    _configs = {
        "optimizer": lambda value, names: AdamW(),
        "early_stopping": lambda value, names: EarlyStopping(),
        "partition": lambda value, names: ConditionalAIS(n_chains=4, n_betas=100),
    }
    _recipe: GatedRecipe

    def __init__(
        self,
        n_components=50,
        n_factors=100,
        *,
        learning_rate=0.01,
        batch_size="auto",
        n_iter="auto",
        n_gibbs=1,
        verbose=0,
        random_state=None,
        optimizer=None,
        visible="auto",
        partition="auto",
        early_stopping=False,
        warm_start=False,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- fitting

    @raises_interrupt
    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GatedRBM:
        """Fit the model to pairs of rows.

        Ctrl-C during training raises `KeyboardInterrupt` once the model trained so far is usable. A
        call that fails in any other way leaves the estimator unchanged.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows x.
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)
            The row y of each pair.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative importance of the pairs, on any scale; pairs of weight 0 are ignored.

        Returns
        -------
        self : object
        """
        self._fit(Pairs(X, y), sample_weight, streaming=False)
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> GatedRBM:
        """Train for one epoch on pairs, in mini-batches, from the current state.

        A call that fails or is interrupted leaves the estimator unchanged, bit for bit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : object
        """
        self._fit(Pairs(X, y), sample_weight, streaming=True)
        return self

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {}

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        """Validated rows x, or pairs side by side."""
        kwargs |= {"reset": reset, "min_samples": min_samples}
        if not isinstance(X, Pairs):
            return super()._validate(X, **kwargs)
        check_container(X.X)
        check_target(X.y, of_numbers=True)
        y = X.y.toarray() if sp.issparse(X.y) else X.y
        x, y = super()._validate(X.X, y=y, multi_output=True, y_numeric=True, **kwargs)
        target = as_numbers("y", y)
        if target.ndim not in (1, 2) or target.size == 0:
            raise ValueError(f"y must hold a row of at least one number a pair, got {y.shape}.")
        if reset:
            self._one_column = target.ndim == 1
        target = target.reshape(len(x), -1)
        if reset:
            self.n_outputs_ = target.shape[1]
        elif target.shape[1] != self.n_outputs_:
            raise ValueError(
                f"y has {target.shape[1]} columns, but {type(self).__name__} was fitted with "
                f"{self.n_outputs_}: pass rows y of as many."
            )
        return np.hstack([x, target.astype(x.dtype)])

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        names = getattr(self, "feature_names_in_", None)
        return pair_table(X, self.n_features_in_, weight, self.visible, names)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> GatedRecipe:
        base = fit_target_base(rows, table) if before is None else self._recipe.base
        plan = gated_plan(self, rows, streaming=streaming)
        check_memory(
            f"n_factors={self.n_factors} and n_components={self.n_components} with "
            f"{rows.n_columns} columns",
            4.0 * self.n_factors * (rows.n_columns + self.n_components + 2 * plan.batch_size),
            rows.dtype,
            rows.device,
        )
        family = GatedFamily(int(self.n_factors), int(self.n_components), int(self.n_gibbs))
        return Recipe(table, plan, base, family, n_guards=N_HELD_OUT)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    # ---------------------------------------------------------------- likelihood of y given x

    def energy(self, X: Any, y: Any) -> np.ndarray:
        """Free energy F(y | x) of each pair, in nats and in the units of y.

        Energies of different x are not comparable: log p(y | x) is minus the energy minus log Z(x).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._energies(self._rows(Pairs(X, y)))

    def log_conditional(self, X: Any, y: Any) -> LogLikelihoods:
        """log p(y | x) of each pair with its bracket, in nats and in the units of y.

        The values are exact with at most 12 mapping units, or at most 12 bits in y. Otherwise
        log Z(x) of each row is estimated by annealing from the base, which gives the upper end of
        log p. The lower end is the smallest of this value and those of annealing back to the base,
        from where the chains ended and from y. The ends are bounds on average, the lower one only
        if the chains have found the modes of p(y | x).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)

        Returns
        -------
        LogLikelihoods
            ``log_prob`` is the middle of the ends ``lower`` and ``upper``, and ``std_error`` that
            of the upper end.
        """
        rows = self._rows(Pairs(X, y))
        value = self._energies(rows, likely=True)
        seed, settings = self.net_.seed_, self.partition_

        def ends(energy: GatedEnergy, x: Tensor) -> Tensor:
            found = log_z_of_pairs(energy, x, seed, settings)
            return torch.stack([found.value, found.upper, found.std_error], 1)

        low, high, error = self._map_rows(rows, ends, "log Z").T
        middle, exact = (low + high) / 2, np.full(len(value), enumerates_layer(self.energy_))
        return LogLikelihoods(-value - middle, error, -value - high, -value - low, exact)

    def score_samples(self, X: Any, y: Any = None) -> np.ndarray:
        """log p(y | x) of each pair, in nats and in the units of y.

        The values are exact with at most 12 mapping units, or at most 12 bits in y; otherwise they
        are the middle of the bracket of :meth:`log_conditional`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)
            Required; a call without it raises `ValueError`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.log_conditional(X, y).log_prob

    def score(self, X: Any, y: Any) -> float:
        """Mean log p(y | x) of pairs, by the lower end of the bracket if it is not exact.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,)

        Returns
        -------
        float
            In nats.
        """
        return self.log_conditional(X, y).pessimistic_mean()

    def _map_rows(
        self,
        rows: Rows,
        function: Callable[[GatedEnergy, Tensor], Tensor],
        what: str,
        of: Any = None,
    ) -> np.ndarray:
        """A function of rows in double precision, (n, ...); `of` another energy than that of p."""
        energy = self._scoring_energy(of)
        blocks = [rows.block(k, min(k + BLOCK, len(rows))) for k in range(0, len(rows), BLOCK)]
        with torch.no_grad():
            found = torch.cat([function(energy, x.double()) for x in blocks]).cpu().numpy()
        return self._recipe.table.check_finite(found, rows, what)

    def _alone(self, X: Any) -> tuple[Rows, np.dtype]:
        """Rows x without their y, and their precision."""
        check_is_fitted(self)
        found = self._validate(X)
        return self._rows_of(with_any_y(found, self._recipe.table)), found.dtype

    # ---------------------------------------------------------------- mapping units

    def transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Means of the mapping units given each pair, p(h_j = 1 | x, y), or given x alone.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_outputs) or (n_samples,), default=None
            None: y is unknown and summed out, exactly with at most 12 mapping units or bits of y,
            otherwise by Gibbs chains. `fit_transform` returns these means, although it takes `y`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            In the precision of X.
        """
        if y is None:
            rows, dtype = self._alone(X)
            return self._of_x(rows)[0].astype(dtype, copy=False)
        check_is_fitted(self)
        pairs = self._validate(Pairs(X, y))

        def means(energy: GatedEnergy, rows: Tensor) -> Tensor:
            x, target = energy.split(rows)
            return energy.given(x).hidden(target).mean

        found = self._map_rows(self._rows_of(pairs), means, "mapping units", self._energy_of_net)
        return found.astype(pairs.dtype, copy=False)

    def predict(self, X: Any, mapping: Any = None) -> np.ndarray:
        """Mean of y given rows x and mapping units h, E(y | x, h), or given x alone, E(y | x).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        mapping : array-like of shape (n_samples, n_components) or (1, n_components), default=None
            Mapping units h in [0, 1], as :meth:`transform` infers from other pairs; one row for all
            rows x, or one for each. None: the mean over p(h | x), exact with at most 12 mapping
            units or bits of y, otherwise by Gibbs chains.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs), or (n_samples,) where y was one-dimensional
            In the units of y and the precision of X; probabilities of bits.
        """
        rows, dtype = self._alone(X)
        if mapping is None:
            found = self._of_x(rows)[1]
        else:
            h = torch.from_numpy(self._check_mapping(mapping, len(rows)))
            energy = self._scoring_energy(self._energy_of_net)
            x = rows.block(0, len(rows))[:, : energy.n_given].double()
            with torch.no_grad():
                target = energy.given(x).visible(h.to(x.device)).mean.cpu().numpy()
            found = self._recipe.table.check_finite(target, rows, "y")
        return self._outwards(torch.from_numpy(found), dtype)

    def _of_x(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Means of the mapping units and of y given x alone."""
        seed, n_hidden = self.net_.seed_, self._n_features_out

        def both(energy: GatedEnergy, x: Tensor) -> Tensor:
            return torch.cat(means(energy, x[:, : energy.n_given], seed), 1)

        found = self._map_rows(rows, both, "means given x")
        return found[:, :n_hidden], found[:, n_hidden:]

    def _check_mapping(self, mapping: Any, n: int) -> np.ndarray:
        found = np.atleast_2d(as_numbers("mapping", mapping))
        n_hidden = self._n_features_out
        if found.ndim != 2 or found.shape[1] != n_hidden or len(found) not in (1, n):
            raise ValueError(
                f"mapping has shape {found.shape}, but there are {n_hidden} mapping units and {n} "
                "rows of X: pass one row for all of these, or one for each."
            )
        if not ((found >= 0) & (found <= 1)).all():
            raise ValueError("mapping must hold values in [0, 1], as transform(X, y) returns them.")
        return np.broadcast_to(found, (n, n_hidden)).copy()

    def _outwards(self, y: Tensor, dtype: Any) -> np.ndarray:
        """Rows y of the energy in the units of the data."""
        (target,) = self._recipe.table.targets
        found = target.to_units(y.detach().cpu().double().numpy()).astype(dtype, copy=False)
        return found[:, 0] if self._one_column else found

    def sample(
        self,
        X: Any,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        n_steps: int = 1000,
    ) -> np.ndarray:
        """Draw a row y for each row x, from p(y | x) to the power of 1 / T and normalised.

        The draws are exact with at most 12 mapping units, or at most 12 bits in y. Otherwise they
        are the final states of Gibbs chains, started by annealing from the base, and approximate if
        the chains have not converged.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Repeat a row for several draws.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of y and h is divided.
        n_steps : int, default=1000
            Number of steps of the chains, if they are needed.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs), or (n_samples,) where y was one-dimensional
            In the units of y.
        """
        whole_number("n_steps", n_steps, 1)
        check_temperature(temperature)
        rows, dtype = self._alone(X)
        generator = self._generator(random_state)

        def draws_given(energy: GatedEnergy, x: Tensor) -> Tensor:
            return draws(energy, x[:, : energy.n_given], generator, n_steps, 1 / temperature)

        return self._outwards(torch.from_numpy(self._map_rows(rows, draws_given, "draws")), dtype)

    # ---------------------------------------------------------------- fitted attributes

    @property
    def density_(self) -> str:
        """What p(y | x) is, the model or the base."""
        check_is_fitted(self)
        return "base" if self._recipe.family.without_filters else "model"

    @property
    def given_components_(self) -> np.ndarray:
        """Filters U of x, (F, dx)."""
        return self._parameter_array("given_filters")

    @property
    def components_(self) -> np.ndarray:
        """Filters V of y, (F, dy)."""
        return self._parameter_array("filters")

    @property
    def mapping_components_(self) -> np.ndarray:
        """Weights W of the mapping units, (F, H)."""
        return self._parameter_array("mapping")
