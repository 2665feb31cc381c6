"""A temporal restricted Boltzmann machine that labels the frames of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from skebm._validation import Interval, StrOptions, check_is_fitted, fit_context
from skebm.base import sampling
from skebm.base.processes import progress_bar
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.energies import RowwiseRBM
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    CONDITIONAL_CONSTRAINTS,
    BaseEBM,
    CategoriesMixin,
    ConditionalPartitionMixin,
    assign_parameters,
    atomic,
    raises_interrupt,
)
from skebm.estimators.classifiers import class_indices
from skebm.estimators.rbm.class_family import weight_of_rows
from skebm.estimators.recipe import Recipe
from skebm.estimators.sequences.family import (
    frame_log_z,
    frames_recipe,
)
from skebm.estimators.sequences.label_chain import MOST_TERMS, LabelChain
from skebm.estimators.sequences.label_family import (
    LabelBlock,
    LabelFamily,
    LabelledWindows,
    base_with_labels,
    frame_base,
)
from skebm.estimators.sequences.table import (
    first_frames,
    first_without,
    in_sequences,
    join_labels,
    join_sequences,
    new_frames,
)
from skebm.estimators.tables.bases import COLUMN_BASES, check_base_stays
from skebm.estimators.tables.table import Table, learn_columns
from skebm.partition.given import ConditionalAIS
from skebm.samplers import ChainPolicy, FromData
from skebm.training import AdamW, EarlyStopping
from skebm.training.rows import Rows
from skebm.training.segments import Segments

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Numbers that frames with all their histories may take at once.
CHUNK = 4_000_000


def _has_density(classifier: TemporalRBMClassifier) -> bool:
    fitted = vars(classifier).get("_recipe")
    asked = classifier.objective == "generative"
    if not (asked if fitted is None else fitted.family.generative_weight == 1):
        raise AttributeError(
            'Frames have a likelihood with objective="generative" only: the others learn labels.'
        )
    return True


@insert_shared_docs
class TemporalRBMClassifier(ConditionalPartitionMixin, ClassifierMixin, CategoriesMixin, BaseEBM):
    r"""Labels of the frames of sequences by a temporal restricted Boltzmann machine.

    A conditional RBM of frames and their labels [1]_ [2]_: the label is one more categorical
    visible unit, and the biases of all units are linear in the last `order` frames and the last
    `label_order` labels,

    .. math::
        p(x_t, y_t \mid x_{<t}, y_{<t}) = \frac{1}{Z_t} e^{-F_t(x_t, y_t)} .

    By default it learns :math:`p(y_t \mid x_t, x_{<t}, y_{<t})`, which has a closed form and needs
    no log Z. The labels of a sequence are then a chain of order L = `label_order`, whose
    probability is the product of these factors. Preceding labels are summed out exactly, and later
    frames have no effect on earlier labels.

    With ``objective="generative"`` frames and labels are learned jointly, and the probabilities of
    a label are those given **all** frames of its sequence, later ones included. They are sums,
    forwards and backwards over the histories of labels, of

    .. math::
        p(y_{1..T} \mid x_{1..T}) \propto \prod_t \frac{1}{Z_t(y_{t-L..t-1})} e^{-F_t(x_t, y_t)} .

    The sums are exact. Each history has a log Z of its own, which is exact if there are few hidden
    units, and estimated by annealed importance sampling otherwise.

    Sequences are passed as in :class:`TemporalRBM`. X is one sequence unless there are `lengths` or
    a `sequence_column`, or X is a list.

    Parameters
    ----------
    n_components : int, default=100
        Number of hidden units, H.
    order : int, default=3
        Number of preceding frames on which the biases depend, at least 1.
    label_order : int, default=1
        Number L of preceding labels on which they depend, at most `order`. For K labels, the
        sums have K^L histories times K labels for each frame: at most 10,000 terms.
    objective : {"discriminative", "hybrid", "generative"}, default="discriminative"
        What is minimised: :math:`-\log p(y_t \mid x_t, \text{past}) - \lambda \log p(x_t \mid
        \text{past})` on average, with :math:`\lambda` = 0 for ``"discriminative"``, 1 for
        ``"generative"``, and `generative_weight` for ``"hybrid"``, where the second term
        regularises. The first term and its gradient are exact; the gradient of the second is
        estimated by contrastive divergence.
    generative_weight : float in (0, 1) or "auto", default="auto"
        :math:`\lambda` of a hybrid; ``"auto"`` is 0.03.
    learning_rate : float or "auto", default="auto"
        Learning rate of AdamW, as in :class:`TemporalRBM`.
    batch_size : int or "auto", default="auto"
        Number of frames per step; ``"auto"``: 100.
    n_iter : int or "auto", default="auto"
        Number of passes. ``"auto"``: 10,000 steps, at least 10 and at most 500 passes.
    verbose : int, default=0
        1 shows progress bars.
    random_state : int, RandomState instance or None, default=None
        Seed of the weights, the shuffling and the chains; global generators are not used.
    learning : {"auto", "cd", "pcd", "exact"}, default="auto"
        Learning rule of the likelihood, as in :class:`TemporalRBM`.
    chains : FromData, Persistent or None, default=None
        Chains of CD and PCD, of which only `n_steps` is used; None is ``FromData(n_steps=1)``.
    base : str or Distribution, default="independent"
        Distribution of a frame regardless of its past and label, as in :class:`TemporalRBM`; it is
        combined with the frequencies of the labels.
    optimizer : AdamW or None, default=None
        Weight decay, schedule, averaging and roll-backs; None is
        :class:`AdamW(weight_decay=0.1) <skebm.training.AdamW>`.
    visible : {"auto", "bernoulli", "probabilities"}, default="auto"
        Visible units of the columns that are not categorical, as in :class:`RBMEstimator`.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, as in :class:`RBMEstimator`.
    sequence_column : str, int or None, default=None
        Column of X that identifies the sequence of each frame; each run of equal values is one
        sequence. The column is not part of the frames.
    partition : "auto" or ConditionalAIS, default="auto"
        How log Z is annealed with ``"generative"``, which is done for each frame and history.
        ``"auto"`` is :class:`ConditionalAIS(n_betas=1600) <skebm.partition.ConditionalAIS>`.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out windows no longer improves, and keep the best weights.
    warm_start : bool, default=False
        Continue from the weights of the previous `fit`, with the same classes.
    device : str or int, default="auto"
        ``"auto"`` is a GPU if there is one; ``"gpu"`` is one, a number k the GPU ``"cuda:k"``.
    dtype : {"float32", "float64"} or type, default="float32"
        Precision of the computation.
    <<net_params>>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    generative_weight_ : float
        :math:`\lambda`.
    partition_ : ConditionalAIS
        How log Z is annealed.
    history_ : list of dict
        One entry per pass: cross-entropy and accuracy of training frames given their true past,
        gain of held-out frames over the base, seconds.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of passes and of roll-backs.
    base_ : Distribution
        The fitted base of a frame and its label.
    energy_, net_ : TemporalEnergy, EnergyNet
        The energy of frames and labels as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    TemporalRBM : Sequences without labels.
    RBMClassifier : Rows without an order.

    Notes
    -----
    **Held-out frames guard the training** as in :class:`TemporalRBM`, by the likelihood of frames
    and labels if `objective` is ``"generative"``, and otherwise by that of labels given the past:
    on these frames the model is no worse than the frequencies of the labels.

    In training, the preceding labels are the true ones; in prediction they are summed out.

    References
    ----------
    .. [1] Taylor, Hinton and Roweis (2007), "Modeling human motion using binary latent variables",
       NeurIPS, section 3.
    .. [2] Larochelle, Mandel, Pascanu and Bengio (2012), "Learning algorithms for the
       classification restricted Boltzmann machine", JMLR 13, sections 3 to 5.

    Examples
    --------
    The label says whether one bit has been 1 more recently than the other:

    >>> import numpy as np
    >>> from skebm import TemporalRBMClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = np.eye(3)[rng.choice(3, 400, p=[0.1, 0.1, 0.8])][:, :2]
    >>> y = np.zeros(400, dtype=int)
    >>> for t in range(1, 400):
    ...     y[t] = X[t].argmax() if X[t].any() else y[t - 1]
    >>> model = TemporalRBMClassifier(4, order=1, learning_rate=0.05, n_iter=60, random_state=0)
    >>> model = model.fit(X, y, lengths=[100] * 4)
    >>> bool(model.score(X, y, lengths=[100] * 4) > 0.95)  # 0.6 from frames alone
    True
    """

    _parameter_constraints: dict = CONDITIONAL_CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "order": [Interval(Integral, 1, None, closed="left")],
        "label_order": [Interval(Integral, 0, None, closed="left")],
        "objective": [StrOptions({"hybrid", "discriminative", "generative"})],
        "generative_weight": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "learning": [StrOptions({"auto", "cd", "pcd", "exact"})],
        "chains": [ChainPolicy, None],
        "base": [StrOptions(set(COLUMN_BASES)), Distribution],
        "optimizer": [AdamW, None],
        "visible": [StrOptions({"auto", "bernoulli", "probabilities"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        "sequence_column": [str, Integral, None],
    }
    _configs = {
        "chains": lambda value, names: FromData(n_steps=1),
        "optimizer": lambda value, names: AdamW(weight_decay=0.1),
        "early_stopping": lambda value, names: EarlyStopping(),
        "partition": lambda value, names: ConditionalAIS(n_betas=1600),
    }
    _recipe: Recipe[LabelFamily]
    _density_alone = "TemporalRBM"

    def __init__(
        self,
        n_components=100,
        order=3,
        label_order=1,
        *,
        objective="discriminative",
        generative_weight="auto",
        learning_rate="auto",
        batch_size="auto",
        n_iter="auto",
        verbose=0,
        random_state=None,
        learning="auto",
        chains=None,
        base="independent",
        optimizer=None,
        visible="auto",
        categorical_features="from_dtype",
        sequence_column=None,
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
    @in_sequences
    def fit(self, X: Any, y: Any, lengths: Any = None) -> Any:
        """Fit the model to sequences of frames and their labels.

        Ctrl-C during training raises `KeyboardInterrupt` once the model trained so far is usable.
        A call that fails in any other way leaves the estimator as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
            Frames in order of time, the sequences one below the other, or a list of sequences.
        y : array-like of shape (n_frames,), or list of arrays
            Label of each frame: one array, or a list of arrays if X is a list of sequences.
        lengths : array-like of int, default=None
            Number of frames of each sequence. None is one sequence, unless X is a list or there is
            a `sequence_column`.

        Returns
        -------
        self : object
        """
        self._fit_sequences(X, y, None, lengths, streaming=False)
        return self

    @atomic
    @fit_context(prefer_skip_nested_validation=True)
    @in_sequences
    def partial_fit(self, X: Any, y: Any, classes: Any = None, lengths: Any = None) -> Any:
        """Train for one pass on further sequences, from the current weights.

        A call that fails or is interrupted leaves the estimator as it was before it.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        y : array-like of shape (n_frames,), or list of arrays
        classes : array-like of shape (n_classes,), default=None
            All classes, in the first call; None is the classes of its `y`.
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        self : object
        """
        self._fit_sequences(X, y, classes, lengths, streaming=True)
        return self

    def _fit_sequences(
        self, X: Any, y: Any, classes: Any, lengths: Any, *, streaming: bool
    ) -> None:
        y = join_labels(X, y)
        X, lengths = join_sequences(X, lengths, self.sequence_column)

        def targets(validated: Any, goes_on: bool) -> np.ndarray:
            codes = class_indices(self, validated, y, goes_on, classes)
            return np.stack([first_frames(len(codes), lengths), codes], 1)

        self._fit(X, None, streaming=streaming, encode=targets)

    def _targets_without(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.stack([first_without(y[:, 0], rows), y[~rows, 1]], 1)

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {}

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        n_labels = len(self.classes_)
        if self.label_order > self.order:
            raise ValueError(
                f"label_order={self.label_order} is more than order={self.order}: a frame does not "
                "depend on labels of frames that are further back."
            )
        if n_labels ** (self.label_order + 1.0) > MOST_TERMS:
            raise ValueError(
                f"label_order={self.label_order} with {n_labels} labels sums over {n_labels}^"
                f"{self.label_order + 1} terms of each frame, more than {MOST_TERMS}: use a "
                "smaller one."
            )
        layout, label = LabelledWindows(n_labels, self.order), LabelBlock(n_labels)
        table = learn_columns(self, X, weight).in_layout(layout, [label])
        d, n_hidden = table.domain.n_columns, int(self.n_components)
        n_numbers = (self.order + 1.0) * (d + 1) * (d + n_hidden)
        check_memory(f"order={self.order} with {d} columns", 4 * n_numbers, torch.float32)
        return table

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> Recipe[LabelFamily]:
        assert isinstance(rows, Segments)
        if before is None:
            name = self.base if isinstance(self.base, str) else None
            base = base_with_labels(self.base, rows, table)
        else:
            last = self._recipe
            base, name = last.base, last.base_name
            check_base_stays(self.base, frame_base(last.base), name)
            frames = last.family.frames
            same = frames.n_hidden, frames.order, last.family.label_order
            if same != (self.n_components, self.order, self.label_order):
                raise ValueError(
                    "n_components, order and label_order are not those of the previous fit, "
                    f"{same}: with warm_start and partial_fit they must not change."
                )
        kind: dict[str, Any] = {"recurrent": False, "streaming": streaming}
        plain = frames_recipe(self, rows, table, base, name, **kind)
        weight = weight_of_rows(self.objective, self.generative_weight)
        n_labels, order = len(self.classes_), int(self.label_order)
        return plain.of_family(LabelFamily(plain.family, n_labels, order, weight))

    # ---------------------------------------------------------------- labels

    @in_sequences
    def predict_log_proba(self, X: Any, lengths: Any = None) -> np.ndarray:
        r"""log p(y_t given all frames of the sequence), in nats, in the order of `classes_`.

        Labels of other frames are summed out. The result is exact for the model, except for errors
        of log Z with ``objective="generative"`` if there are many hidden states. With other
        objectives the model is a product of :math:`p(y_t \mid x_t, x_{<t}, y_{<t})`, so that later
        frames have no effect.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames, n_classes)
        """
        return self._smoothing(X, lengths)[0]

    @in_sequences
    def predict_proba(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Probability of each label given all frames, in the order of `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames, n_classes)
        """
        share: np.ndarray = np.exp(self.predict_log_proba(X, lengths))
        total: np.ndarray = share.sum(1, keepdims=True)  # which the logarithms leave to rounding
        return share / total

    @in_sequences
    def predict(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Most likely label of each frame given all frames.

        This choice minimises the expected number of errors.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        place = self.predict_log_proba(X, lengths).argmax(1)  # checks that the model is fitted
        found: np.ndarray = self.classes_[place]
        return found

    @in_sequences
    def score(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None) -> float:
        """Accuracy of `predict`: the fraction of frames with the right label.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        y : array-like of shape (n_frames,), or list of arrays
        sample_weight : array-like of shape (n_frames,), default=None
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        float
        """
        found = self.predict(X, lengths)
        return float(accuracy_score(join_labels(X, y), found, sample_weight=sample_weight))

    @available_if(_has_density)
    @in_sequences
    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """log p(x_t given the frames before it) in nats, with all labels summed out.

        The result is exact if there are few hidden states. Otherwise it is based on estimates of
        log Z, and is high on average by about half of their squared standard errors.

        Parameters
        ----------
        X : array-like of shape (n_frames, n_features), or list of such
        lengths : array-like of int, default=None
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_frames,)
        """
        found = self._smoothing(X, lengths)[1]  # checks that the model is fitted
        return found - self._recipe.table.log_volume

    def _smoothing(self, X: Any, lengths: Any) -> tuple[np.ndarray, np.ndarray]:
        """log p(y_t given all frames), and log p(x_t given those before) but for the units."""
        rows, _ = new_frames(self, X, lengths)
        family = self._recipe.family
        chain = LabelChain(family.n_labels, family.label_order)
        n = len(rows.x)
        check_memory(f"n_frames={n}", n * chain.n_histories * chain.n_labels, torch.float64)
        found = list(self._terms(rows, chain))
        terms, alone = (torch.cat(part) for part in zip(*found, strict=True))
        bad = ~terms.isfinite().flatten(1).all(1)
        if bad.any():
            raise ValueError(
                f"Given the past, log p of frame {int(bad.nonzero()[0])} is not finite: it or a "
                "frame before it is too far from those of fit. Drop such frames."
            )
        log_proba, evidence = chain.smoothing(terms, *rows.sequences())
        return log_proba.cpu().numpy(), (evidence + alone).cpu().numpy()

    def _terms(self, rows: Segments, chain: LabelChain) -> Iterator[tuple[Tensor, Tensor]]:
        """Terms of all frames, a few at a time."""
        energy, with_z = self.energy_, self._recipe.family.generative_weight == 1
        settings = self.partition_
        generator = torch.Generator(energy.weight.device).manual_seed(self.net_.seed_)

        def log_z(given: RowwiseRBM) -> Tensor:
            return frame_log_z(given, settings, generator).value

        width = chain.n_histories * (energy.domain.n_columns + len(energy.weight))
        size = max(1, CHUNK // (width * (settings.n_chains if with_z else 1)))
        bar = progress_bar(total=len(rows.x), unit="frame", disable=not self.verbose, delay=2)
        with torch.no_grad(), sampling(energy):
            for frames in torch.arange(len(rows.x), device=rows.x.device).split(size):
                yield chain.terms(energy, rows, frames, log_z if with_z else None)
                bar.update(len(frames))
        bar.close()

    # ---------------------------------------------------------------- fitted attributes

    @property
    def generative_weight_(self) -> float:
        """Weight of -log p(frame given the past) in training."""
        check_is_fitted(self)
        return self._recipe.family.generative_weight
