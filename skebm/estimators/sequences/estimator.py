"""Temporal restricted Boltzmann machines as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import Interval, StrOptions, check_is_fitted, fit_context
from skebm.base import LogLikelihoods, sampling
from skebm.base import Real as Numbers
from skebm.base.domains import parts_of
from skebm.base.energy import check_temperature
from skebm.base.processes import progress_bar
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.energies import Biases, RowwiseRBM
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    CONDITIONAL_CONSTRAINTS,
    CONTAMINATION,
    BaseConditional,
    CategoriesMixin,
    FeaturesMixin,
    assign_parameters,
    atomic,
    raises_interrupt,
    upper_quantile,
)
from skebm.estimators.queries.mixin import check_how
from skebm.estimators.recipe import Recipe
from skebm.estimators.sequences.context import evidence_of_next
from skebm.estimators.sequences.family import (
    RECURRENT_CONTEXT,
    RECURRENT_TARGETS,
    TemporalFamily,
    frame_log_z,
    frames_recipe,
    with_residual_correlations,
)
from skebm.estimators.sequences.imputation import impute_frames
from skebm.estimators.sequences.stream import FrameStream
from skebm.estimators.sequences.table import (
    FrameWindows,
    check_complete,
    check_numbers,
    first_frames,
    first_without,
    in_sequences,
    join_sequences,
    new_frames,
    walk,
)
from skebm.estimators.tables.bases import COLUMN_BASES, check_base_stays, check_power
from skebm.estimators.tables.frames import frame_like
from skebm.estimators.tables.table import Table, fit_table_base, learn_columns
from skebm.partition.given import ConditionalAIS, rowwise_log_z_from
from skebm.samplers import ChainPolicy, FromData
from skebm.training import AdamW, EarlyStopping
from skebm.training.rows import Rows
from skebm.training.segments import Segments

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Frames of a sequence that are computed at once, and numbers that all of them may take.
N_AT_ONCE, CHUNK = 256, 4_000_000
# Gibbs steps from which reverse annealing starts, after a draw of annealing.
N_BURN_IN = 20


@insert_shared_docs
class TemporalRBM(FeaturesMixin, CategoriesMixin, BaseConditional):
    r"""Restricted Boltzmann machine of sequences: its biases depend on the frames before.

    .. math::
        p(x_t \mid x_{<t}) = \frac{1}{Z_t} \sum_h e^{-E_t(x_t, h)}, \qquad
        E_t(x, h) = -b_t^\top x - c_t^\top h - h^\top W x .

    By default it is the conditional RBM [1]_: b_t and c_t are linear in the last `order` frames.
    With `recurrent` they also depend on the hidden units of the frame before, which are represented
    by their means given all frames so far. With ``order=0`` this is the recurrent temporal RBM
    [2]_. Frames may have columns of all kinds, like rows of :class:`RBMEstimator`.

    Sequences are passed one below the other with `lengths`, as a list of arrays, or as a table with
    a `sequence_column`. Without any of these X is one sequence. The frames before the first one are
    missing. Learned biases take their place, so that every frame has a likelihood.

    Parameters
    ----------
    n_components : int, default=200
        Number of hidden units, H.
    order : int, default=3
        Number of preceding frames on which the biases depend; at least 1 unless `recurrent`.
    recurrent : bool, default=False
        Whether the biases depend on the hidden units of the frame before as well. Gradients are
        propagated back through up to 32 frames. A pass takes about three times as long.
    learning_rate : float or "auto", default="auto"
        Learning rate of AdamW. ``"auto"``: 0.01; with real columns, 0.0005 times the geometric
        mean of the fractions of their standard deviations that a linear autoregression leaves
        unexplained.
    batch_size : int or "auto", default="auto"
        Number of frames per step; ``"auto"``: 100.
    n_iter : int or "auto", default="auto"
        Number of passes. ``"auto"``: 10,000 steps, at least 10 and at most 500 passes, and up to
        eight times as many while held-out frames gain and steps take 2e11 multiplications at most.
    verbose : int, default=0
        1 shows progress bars.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    learning : {"auto", "cd", "pcd", "exact"}, default="auto"
        Learning rule for each frame given its past. ``"cd"`` and ``"pcd"``: contrastive divergence
        with chains that start at the frame, or where they ended when the frame was last trained on.
        ``"exact"``: the exact gradient, a sum over the hidden states, if these are few. ``"auto"``
        is the rule of `chains` if these are given, else ``"cd"``.
    chains : FromData, Persistent or None, default=None
        Chains of CD and PCD, of which only `n_steps` is used; None is ``FromData(n_steps=5)``.
    base : str or Distribution, default="auto"
        Distribution of a frame regardless of its past, which the model corrects. ``"auto"`` is
        ``"gaussian"`` if there are real columns, else ``"independent"``. ``"independent"``,
        ``"chow-liu"``, ``"block-tree"``, ``"gaussian"`` and ``"latent-classes"`` are as in
        :class:`RBMEstimator`, except that ``"gaussian"`` has the correlations of the residuals of a
        linear autoregression of the real columns.
    optimizer : AdamW or None, default=None
        Weight decay, schedule, averaging and roll-backs; None is
        :class:`AdamW(weight_decay=0.1) <skebm.training.AdamW>`: without decay, models that are
        fitted to a few thousand frames overfit.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        Visible units of the columns that are not categorical, as in :class:`RBMEstimator`.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, as in :class:`RBMEstimator`.
    sequence_column : str, int or None, default=None
        Column of X that identifies the sequence of each frame. The frames of a sequence are in
        their order in time, and may stand between those of others, as in a panel that is sorted by
        time. The column is not part of the frames.
    partition : "auto" or ConditionalAIS, default="auto"
        How log Z is annealed, which is done for each frame. ``"auto"`` is
        :class:`ConditionalAIS(n_betas=1600) <skebm.partition.ConditionalAIS>`, whose parameters can
        be searched over by ``partition__<name>``.
    early_stopping : bool or EarlyStopping, default=False
        Stop when held-out windows no longer become more likely, and keep the best weights.
    warm_start : bool, default=False
        Continue from the weights of the previous `fit`.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Fraction of the training frames that `predict` classifies as anomalous; ``"auto"`` is 0.1.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation.
    <<net_params>>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_visible)
        Weights W, a read-only view.
    lag_components_ : list of ndarray of shape (n_components, n_visible)
        B_k, by which the frame k steps before changes the biases of the hidden units; k = 1 first.
    autoregression_ : list of ndarray of shape (n_visible, n_visible)
        A_k, by which the frame k steps before changes the biases of the visible units.
    partition_ : ConditionalAIS
        How log Z is annealed.
    threshold_, offset_ : float
        Log-likelihood given the past below which a frame is anomalous.
    history_ : list of dict
        One entry per pass: energy gap, gain of held-out frames over the base, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of passes and of roll-backs.
    learning_ : str
        The learning rule.
    base_ : Distribution
        The fitted base of a frame.
    energy_, net_ : TemporalEnergy, EnergyNet
        The energy as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : Rows without an order.

    Notes
    -----
    **Held-out frames guard the training** of `fit` if there are at least 200 frames, whatever the
    parameters are; `early_stopping` with a `validation_fraction` holds out frames of its own
    instead. A tenth of the sequences is held out, or the last tenth of each sequence if there are
    fewer than ten. Twenty times during a fit, the likelihood of these frames is compared with that
    under the base. The weights that `fit` keeps are not clearly worse than earlier ones, or than
    the base.

    Results for a frame depend on the frames before it in the same sequence. Unlike for the rows of
    a table, they change if frames are reordered or left out.

    References
    ----------
    .. [1] Taylor, Hinton and Roweis (2007), "Modeling human motion using binary latent variables",
       NeurIPS.
    .. [2] Sutskever, Hinton and Taylor (2009), "The recurrent temporal restricted Boltzmann
       machine", NeurIPS.

    Examples
    --------
    A pattern of period three, in which each frame determines the next:

    >>> import numpy as np
    >>> from skebm import TemporalRBM
    >>> X = np.tile(np.eye(3), (40, 1))
    >>> model = TemporalRBM(4, order=1, random_state=0).fit(X)
    >>> model.predict_next(X[:4]).round()
    array([[0., 1., 0.]])
    >>> bool(model.score(X) > -0.5)  # nats a frame; log 3 = 1.10 without the past
    True
    """

    _parameter_constraints: dict = CONDITIONAL_CONSTRAINTS | {
        "contamination": CONTAMINATION,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "order": [Interval(Integral, 0, None, closed="left")],
        "recurrent": ["boolean"],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "learning": [StrOptions({"auto", "cd", "pcd", "exact"})],
        "chains": [ChainPolicy, None],
        "base": [StrOptions({"auto", *COLUMN_BASES}), Distribution],
        "optimizer": [AdamW, None],
        "visible": [StrOptions({"auto", "bernoulli", "probabilities"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        "sequence_column": [str, Integral, None],
    }
    _configs = {
        "chains": lambda value, names: FromData(n_steps=5),
        "optimizer": lambda value, names: AdamW(weight_decay=0.1),
        "early_stopping": lambda value, names: EarlyStopping(),
        "partition": lambda value, names: ConditionalAIS(n_betas=1600),
    }
    _recipe: Recipe[TemporalFamily]

    def __init__(
        self,
        n_components=200,
        order=3,
        *,
        recurrent=False,
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        chains=None,
        base="auto",
        optimizer=None,
        visible="auto",
        categorical_features="from_dtype",
        sequence_column=None,
        partition="auto",
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- fitting

    @raises_interrupt
    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    @in_sequences
    def fit(self, X: Any, y: Any = None, lengths: Any = None) -> Any:
        """Fit the model to sequences.

        Ctrl-C during training raises `KeyboardInterrupt` once the model trained so far is usable.
        A call that fails in any other way leaves the estimator as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
            Frames in order of time, the sequences one below the other, or a list of sequences.
        y : None
            Not used; present by convention.
        lengths : array-like of int, default=None
            Number of frames of each sequence. None is one sequence, unless X is a list or there is
            a `sequence_column`.

        Returns
        -------
        self : object
        """
        return self._fit_sequences(X, lengths, streaming=False)

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    @in_sequences
    def partial_fit(self, X: Any, y: Any = None, lengths: Any = None) -> Any:
        """Train for one pass on further sequences, from the current weights.

        A call that fails or is interrupted leaves the estimator as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        y : None
            Not used; present by convention.
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        self : object
        """
        return self._fit_sequences(X, lengths, streaming=True)

    def _fit_sequences(self, X: Any, lengths: Any, *, streaming: bool) -> Any:
        X, lengths = join_sequences(X, lengths, self.sequence_column)

        def first(validated: Any, goes_on: bool) -> np.ndarray:
            return first_frames(validated.shape[0], lengths)

        self._fit(X, None, streaming=streaming, encode=first)
        return self

    def _set_threshold(self, rows: Rows) -> None:
        assert isinstance(rows, Segments)
        # Frames whose likelihoods set the threshold of `predict`, and temperatures of their log Z,
        # at most: a tenth of a nat matters less than the time that it takes.
        n_reference_frames, reference_temperatures = 300, 400
        some = rows if len(rows.x) <= n_reference_frames else rows.beginning(n_reference_frames)
        settings = self.partition_
        settings.set_params(n_betas=min(settings.n_betas, reference_temperatures))
        value = self._scores(some, lower=False, settings=settings).log_prob
        self.threshold_ = -upper_quantile(-value, self._share_of_kept(rows), np.ones(len(value)))

    def _targets_without(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return first_without(y, rows)

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {}

    def _validate(
        self,
        X: Any,
        *,
        reset: bool = False,
        min_samples: int = 1,
        complete: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Validated frames, categories as codes; `ValueError` for missing entries if `complete`."""
        kwargs |= {"min_samples": min_samples, "ensure_all_finite": "allow-nan"}
        X = super()._validate(X, reset=reset, **kwargs)
        if complete:
            names = getattr(self, "feature_names_in_", None)
            coded = vars(self).get("_coding") is not None
            check_complete(X, names, fitted=not reset, coded=coded)
        return X

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        visible = learn_columns(self, X, weight)
        d, n_hidden = visible.domain.n_columns, int(self.n_components)
        n_numbers = (self.order + 1.0) * (d + 1) * (d + n_hidden) + float(n_hidden) ** 2
        check_memory(f"order={self.order} with {d} columns", 4 * n_numbers, torch.float32)
        if not self.order and not self.recurrent:
            raise ValueError(
                "order=0 without recurrent units leaves no past: use a positive order, or "
                "RBMEstimator for rows without an order."
            )
        context, targets = self.order, 1
        if self.recurrent:
            context, targets = self.order + RECURRENT_CONTEXT, RECURRENT_TARGETS
        return visible.in_layout(FrameWindows(context, targets))

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> Recipe[TemporalFamily]:
        assert isinstance(rows, Segments)
        if before is None:
            name = self.base if isinstance(self.base, str) else None
            if name == "auto":
                numbers = any(isinstance(part, Numbers) for part in parts_of(table.domain))
                name = "gaussian" if numbers else "independent"
            base = fit_table_base(name or self.base, rows.frames(), table)
            if name == "gaussian":
                base = with_residual_correlations(base, rows, self.order)
        else:
            last = self._recipe
            check_base_stays(self.base, last.base, last.base_name)
            base, name = last.base, last.base_name
            same = last.family.n_hidden, last.family.order, last.family.recurrent
            if same != (self.n_components, self.order, self.recurrent):
                raise ValueError(
                    "n_components, order and recurrent are not those of the previous fit, "
                    f"{same}: with warm_start and partial_fit they must not change."
                )
        kind: dict[str, Any] = {"recurrent": bool(self.recurrent), "streaming": streaming}
        return frames_recipe(self, rows, table, base, name, **kind)

    # ---------------------------------------------------------------- frames and their past

    def _frames(self, X: Any, lengths: Any) -> Segments:
        """Frames of new sequences, validated."""
        return new_frames(self, X, lengths)[0]

    def _walk(self, rows: Segments, size: float = 1.0) -> Iterator[tuple[Tensor, Biases, Tensor]]:
        """All frames with what their past adds to the biases, and their numbers."""
        energy = self.energy_
        width = size * (energy.domain.n_columns + len(energy.weight)) * (1 + energy.order)
        n_targets = max(1, min(N_AT_ONCE, int(CHUNK / width)))
        n_windows = max(1, int(CHUNK / (width * n_targets)))
        with torch.no_grad(), sampling(energy):
            yield from walk(energy, rows, n_targets, n_windows)

    def _scores(
        self, rows: Segments, *, lower: bool, settings: ConditionalAIS | None = None
    ) -> LogLikelihoods:
        energy, n = self.energy_, len(rows.x)
        settings = self.partition_ if settings is None else settings
        value, error, low = np.empty(n), np.zeros(n), np.empty(n)
        exact, volume = np.zeros(n, dtype=bool), self._recipe.table.log_volume
        generator = torch.Generator(energy.weight.device).manual_seed(self.net_.seed_)
        bar = progress_bar(total=n, unit="frame", desc="log Z", disable=not self.verbose, delay=2)
        for x, biases, number in self._walk(rows, settings.n_chains):
            given, place = RowwiseRBM(energy.rbm, biases), number.cpu().numpy()
            free = self._recipe.table.row_energy(given, x).double()
            log_z = frame_log_z(given, settings, generator)
            exact[place] = log_z.exact.cpu().numpy()
            value[place] = (-free - log_z.value - volume).cpu().numpy()
            error[place] = log_z.std_error.cpu().numpy()
            low[place] = value[place]
            if lower and log_z.draws is not None and not log_z.exact.all():
                upper = self._upper(given, log_z.draws, settings.n_betas, generator)
                low[place] = (-free - upper - volume).cpu()
            bar.update(len(place))
        bar.close()
        return LogLikelihoods(check_numbers(value), error, low, value, exact)

    def _upper(
        self, given: RowwiseRBM, x: Tensor, n_betas: int, generator: torch.Generator
    ) -> Tensor:
        """log Z of frames by annealing from draws back to the base; high on average."""
        for _ in range(N_BURN_IN):
            x = given.step(x, generator)
        return rowwise_log_z_from(given, x, n_betas, generator)

    # ---------------------------------------------------------------- likelihoods

    @in_sequences
    def log_conditional(self, X: Any, lengths: Any = None) -> LogLikelihoods:
        r"""log p(x_t given the past) of each frame, with its standard error and a low estimate.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        LogLikelihoods
        """
        return self._scores(self._frames(X, lengths), lower=True)

    @in_sequences
    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """log p(x_t given the past) of each frame, in nats.

        The result is exact if there are few hidden states. Otherwise log Z of each frame is
        estimated by annealed importance sampling, and the result is high on average, by about half
        of the squared standard error, which :meth:`log_conditional` returns.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        return self._scores(self._frames(X, lengths), lower=False).log_prob

    @in_sequences
    def score_in_context(self, X: Any, lengths: Any = None) -> np.ndarray:
        r"""How likely each frame is given the frames before it and the next one, in nats.

        .. math:: \log p(x_t \mid x_{<t}) + \log p(x_{t+1} \mid x_t, x_{<t})
            - \log p(x_{t+1} \mid \hat x_t, x_{<t}) , \qquad
            \hat x_t = \mathbb E(x_t \mid x_{<t})

        A frame that does not belong where it is makes the next one less likely, too. If the last
        term had the mean of p(x_{t+1} | x_t, x_{<t}) over x_t in place of its value at the mean
        frame, the result would be log p(x_t | x_{<t}, x_{t+1}); the approximation may be too high
        or too low. For the last frame of a sequence the result is log p(x_t | x_{<t}). The method
        takes a little more than twice as long as :meth:`score_samples`, and cannot judge a frame
        before the next one is there.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        rows = self._frames(X, lengths)
        found = self._scores(rows, lower=False).log_prob
        return check_numbers(found + evidence_of_next(self, rows, found))

    @in_sequences
    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """Pessimistic estimate of the mean log-likelihood of a frame given its past, in nats.

        It is exact if there are few hidden states. Otherwise it is the mean of ``lower`` of
        :meth:`log_conditional`, or that of ``log_prob`` if this is smaller, minus two standard
        errors of the mean of log Z.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        y : None
            Not used; present by convention.
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        float
        """
        found = self._scores(self._frames(X, lengths), lower=True)
        error = float(np.sqrt(np.square(found.std_error).sum())) / len(found.log_prob)
        return found.pessimistic_mean(error)

    @in_sequences
    def energy(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Free energy of each frame given its past, in nats.

        Each frame has a log Z of its own, so that energies of different frames cannot be compared:
        use :meth:`score_samples`.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        rows, energy, table = self._frames(X, lengths), self.energy_, self._recipe.table
        found = np.empty(len(rows.x))
        for x, biases, number in self._walk(rows):
            value = table.row_energy(RowwiseRBM(energy.rbm, biases), x)
            found[number.cpu().numpy()] = value.double().cpu().numpy() + table.log_volume
        return check_numbers(found)

    @in_sequences
    def decision_function(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Log-likelihood given the past minus the threshold: negative for anomalous frames.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        return self.score_samples(X, lengths) - self.threshold_

    @in_sequences
    def predict(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Classify frames as normal (+1) or anomalous given their past (-1).

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        return np.where(self.decision_function(X, lengths) >= 0, 1, -1)

    @in_sequences
    def transform(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Probability that each hidden unit is on given a frame and its past.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames, n_components)
            In the precision of X.
        """
        (rows, X), energy = new_frames(self, X, lengths), self.energy_
        found = np.empty((len(rows.x), self._n_features_out), dtype=X.dtype)
        for x, biases, number in self._walk(rows):
            mean = RowwiseRBM(energy.rbm, biases).hidden(x).mean
            found[number.cpu().numpy()] = mean.cpu().numpy()
        return check_numbers(found)

    # ---------------------------------------------------------------- what comes next

    def _after(self, rows: Segments) -> tuple[Tensor, Tensor | None]:
        """Lags (n, K (d + 1)) and state of the frame after each sequence."""
        energy = self.energy_
        _, ends = rows.sequences()
        lags = rows.ending_at(ends, energy.order)
        if not energy.recurrent:
            return lags, None
        state = energy.start_state(len(rows.x)).clone()
        for x, biases, number in self._walk(rows):
            state[number] = energy.advance(x, biases)
        return lags, state[ends]

    @in_sequences
    def predict_next(
        self, X: Any, lengths: Any = None, *, n_draws: int = 100, n_steps: int = 50
    ) -> np.ndarray:
        """Mean of the frame that follows each sequence, estimated by draws with a fixed seed.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.
        n_draws : int, default=100
            Number of chains for each sequence.
        n_steps : int, default=50
            Number of Gibbs steps of each chain; the conditional means at their ends are averaged.

        Returns
        -------
        ndarray of shape (n_sequences, n_features)
            Probabilities of bits, codes of the likeliest levels of categories, means of numbers.
        """
        whole_number("n_draws", n_draws, 1)
        whole_number("n_steps", n_steps, 1)
        rows, energy = self._frames(X, lengths), self.energy_
        with torch.no_grad(), sampling(energy):
            lags, state = self._after(rows)
            generator = torch.Generator(lags.device).manual_seed(self.net_.seed_)
            mean = self._means(energy.biases(lags, state), n_draws, n_steps, generator)
        found: np.ndarray = self._recipe.table.invert(mean)
        return found

    @in_sequences
    def expected(self, X: Any, lengths: Any = None, *, n_draws: int = 20, n_steps: int = 50) -> Any:
        """Mean of each frame given the frames before it, estimated by draws with a fixed seed.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.
        n_draws, n_steps : int, default=20, 50
            As in :meth:`predict_next`.

        Returns
        -------
        ndarray of shape (n_frames, n_features)
            As in :meth:`predict_next`.
        """
        whole_number("n_draws", n_draws, 1)
        whole_number("n_steps", n_steps, 1)
        rows = self._frames(X, lengths)
        found = torch.empty_like(rows.x, device=self.energy_.weight.device)
        generator = torch.Generator(found.device).manual_seed(self.net_.seed_)
        for _, biases, number in self._walk(rows, n_draws):
            found[number] = self._means(biases, n_draws, n_steps, generator)
        given = join_sequences(X, lengths, self.sequence_column)[0]
        return frame_like(given, self._recipe.table.invert(found), means=True)

    def _means(
        self, biases: Biases, n_draws: int, n_steps: int, generator: torch.Generator
    ) -> Tensor:
        """Means (n, d) of frames given their past."""
        n = len(biases.hidden)
        index = torch.arange(n, device=biases.hidden.device).repeat_interleave(n_draws)
        given = RowwiseRBM(self.energy_.rbm, biases.take(index))
        h = self._hidden_draws(given, n_steps, generator)
        mean: Tensor = given.visible(h).mean
        return mean.view(n, n_draws, -1).mean(1)

    def _hidden_draws(
        self, given: RowwiseRBM, n_steps: int, generator: torch.Generator, beta: float = 1.0
    ) -> Tensor:
        """Hidden layers of frames after Gibbs steps from their biases."""
        x = given.weak(torch.zeros_like(given.biases.hidden), 0.0).sample(generator)
        for _ in range(n_steps - 1):
            x = given.step(x, generator, beta)
        return given.hidden(x, beta).sample(generator)

    def sample(
        self,
        n_frames: int = 1,
        start: Any = None,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        n_steps: int = 50,
    ) -> Any:
        """Draw a sequence, frame by frame.

        Parameters
        ----------
        n_frames : int, default=1
            Number of frames that are drawn.
        start : array-like of shape (n_start, n_features) or None, default=None
            Frames before the first one that is drawn; None begins a new sequence.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of each frame given its past is divided.
        n_steps : int, default=50
            Number of Gibbs steps for each frame; a draw is approximate if its chain has not
            converged.

        Returns
        -------
        ndarray of shape (n_frames, n_features)
            In the units of the data.
        """
        check_is_fitted(self)
        whole_number("n_frames", n_frames, 1)
        whole_number("n_steps", n_steps, 1)
        check_temperature(temperature)
        energy, d = self.energy_, self._recipe.table.domain.n_columns
        check_power(energy.base, temperature)
        check_memory(f"n_frames={n_frames}", float(n_frames) * d, torch.float64)
        generator, found = self._generator(random_state), []
        with torch.no_grad(), sampling(energy):
            if start is None:
                lags, state = energy.no_frames(1), energy.start_state(1)
            else:
                lags, state = self._after(self._frames(start, None))
            for _ in range(n_frames):
                biases = energy.biases(lags, state)
                given = RowwiseRBM(energy.rbm, biases)
                layer = self._hidden_draws(given, n_steps, generator, 1 / temperature)
                x = given.visible(layer, 1 / temperature).sample(generator)
                found.append(x)
                state = energy.advance(x, biases)
                lags = torch.cat([lags[:, d + 1 :], x, x.new_zeros(1, 1)], 1)[:, -lags.shape[1] :]
                lags = lags if energy.order else lags[:, :0]
        return self._recipe.table.invert(torch.cat(found))

    # ---------------------------------------------------------------- missing entries, streams

    @in_sequences
    def impute(
        self,
        X: Any,
        lengths: Any = None,
        random_state: Any = None,
        *,
        how: str = "draw",
        n_draws: int | None = None,
        n_steps: int = 100,
    ) -> Any:
        """Replace missing entries by draws, or by means, given all known ones, past and future.

        Each sequence has ten Markov chains over all of its missing entries. They start from draws
        given the past alone, and are exact in the limit of many steps; see
        :class:`~skebm.estimators.sequences.clamped.ClampedChains`. If log Z of a frame cannot be
        computed as a sum, its ratios are estimated by draws of the frame, whose ten Gibbs steps
        must converge as well. With recurrent units, the effect of a frame is followed over the 16
        frames after it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
            NaN marks missing entries; whole frames may be missing. Levels of categories that `fit`
            did not see are missing, too.
        lengths : array-like of int, default=None
            As in :meth:`fit`.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        how : {"draw", "mean", "mode"}, default="draw"
            ``"draw"``: a joint draw of all missing entries of a sequence. ``"mean"``: the mean of
            a number and the probability of a bit, which have the least squared error, and the most
            probable level of a category. ``"mode"``: the same with the more probable value of a
            bit.
        n_draws : int >= 1 or None, default=None
            Number of completions, for ``how="draw"`` only; they are returned as a list. None
            returns one completion, not in a list.
        n_steps : int, default=100
            Number of steps of the chains; means are taken over the second half.

        Returns
        -------
        ndarray or data frame of shape (n_frames, n_features), or a list of `n_draws` of these
            All sequences one below the other, without the `sequence_column`. Known entries are
            unchanged. Columns of integers and booleans are rounded.
        """
        how = check_how(how, n_draws, n_steps)
        given = join_sequences(X, lengths, self.sequence_column)[0]
        rows, X = new_frames(self, X, lengths, complete=False)
        generator, energy = self._generator(random_state), self.energy_
        with sampling(energy):
            made = impute_frames(energy, rows, how, n_draws or 1, n_steps, generator)
        table = self._recipe.table
        found = [frame_like(given, table.with_imputations(X, x)) for x in made]
        return found[0] if n_draws is None else found

    def stream(self, start: Any = None) -> FrameStream:
        """A sequence to which frames are added one at a time, and scored.

        Parameters
        ----------
        start : array-like of shape (n_start, n_features) or None, default=None
            The first frames of the sequence; None begins a new one.

        Returns
        -------
        FrameStream
        """
        check_is_fitted(self)
        energy, n_frames = self.energy_, 0
        with torch.no_grad(), sampling(energy):
            if start is None:
                lags, state = energy.no_frames(1), energy.start_state(1)
            else:
                rows = self._frames(start, None)
                (lags, state), n_frames = self._after(rows), len(rows.x)
        now = None if state is None else state.cpu().numpy()
        return FrameStream(self, lags.cpu().numpy(), now, n_frames)

    # ---------------------------------------------------------------- fitted attributes

    @property
    def learning_(self) -> str:
        """The learning rule."""
        check_is_fitted(self)
        return self._recipe.family.rule

    @property
    def components_(self) -> np.ndarray:
        """Weights W, (H, n_visible)."""
        return self._parameter_array("weight")

    @property
    def lag_components_(self) -> list[np.ndarray]:
        """B_k of lags k = 1, 2, ..., each (H, n_visible)."""
        return self._lags("lag_hidden")

    @property
    def autoregression_(self) -> list[np.ndarray]:
        """A_k of lags k = 1, 2, ..., each (n_visible, n_visible)."""
        return self._lags("lag_visible")

    def _lags(self, name: str) -> list[np.ndarray]:
        found = self._parameter_array(name)
        order, d = self._recipe.family.order, self._recipe.table.domain.n_columns
        parts = [found[:, k * (d + 1) : k * (d + 1) + d] for k in range(order)]
        return parts[::-1]
