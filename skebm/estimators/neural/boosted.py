"""Densities of table rows by boosted trees that correct a base."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if

from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.objectives.boosting import Boosting
from skebm.training.rows import Rows


def _has_no_stream(model: Any) -> bool:
    """Raise `AttributeError`, by which partial_fit is no method of the model."""
    raise AttributeError(
        f"{type(model).__name__} has no partial_fit, as trees are grown on all rows at once: call "
        "fit, on a sample of a larger table."
    )


@insert_shared_docs
class BoostedDensity(NeuralDensity):
    r"""Density of table rows by boosted trees that correct a base.

    .. math:: p(x) = \frac1Z q(x)\, e^{F(x)} , \qquad F(x) = \sum_t F_t(x)

    A base q is fitted to the rows, and trees :math:`F_t` are added one by one, each of which lowers
    the loss of a classifier of the rows against draws of q [1]_, whose logit is then the log
    density ratio. Their number is that for which rows held out from the trees, 15 % of all, are
    most likely, with log Z by draws that no tree has seen. Every hundred trees, a new round goes on
    against draws of the model so far. Where held-out rows gain too little, the model is the base,
    with a warning. Ctrl-C leaves a model of the trees so far.
    Trees are functions of the columns as tables have them: they need no scaling, follow steps and
    corners, and leave out columns that say nothing.

    Missing entries, nan, of the rows of `fit` are drawn once given the known ones, from q or, of
    real rows, from a mixture of normal distributions; trees take them as data. Of new rows they are
    integrated out.

    log Z is estimated when it is first needed, by draws of q.

    Parameters
    ----------
    base : str, MixtureBase, estimator or Distribution, default="auto"
        Base distribution q. Real columns: ``"stack"``, ``"mixture"``, ``"kernel"``, ``"gaussian"``
        and the flows, as in :class:`NCEDensity`; binary columns: ``"independent"``,
        ``"chow-liu"`` or ``"block-tree"``; one-hot columns: ``"independent"``. ``"auto"`` is the
        stack for real rows (the Gaussian if there are bounds), the Chow-Liu tree for binary ones.
        An estimator with ``fit``, ``score_samples`` in nats and ``sample``, such as
        scikit-learn's GaussianMixture, is cloned and fitted to numbers or bits, in the units of X;
        a ``FrozenEstimator``, and a distribution of :mod:`skebm.distributions`, is used as it is.
    learning_rate : float, default=0.1
        Factor on the values of each tree.
    n_iter : int or "auto", default="auto"
        Most trees; held-out rows choose how many of them the model has. ``"auto"`` is 1,500.
    max_leaf_nodes : int, default=16
        Most leaves of a tree, 2 to 63.
    min_samples_leaf : int, default=5
        Fewest rows of a leaf, among training rows and draws of the model.
    l2_regularization : float, default=1.0
        Penalty on the squares of the values of leaves.
    domain : {"auto", "real", "binary"} or Domain, default="auto"
        Type of the rows. ``"auto"``: binary if all entries in the first `fit` are 0 or 1, and real
        otherwise; frames with categories have columns of several kinds.
        ``skebm.base.Categorical(groups)`` stands for one-hot columns.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, as in :class:`ContrastiveDivergenceDensity`.
    <<bounds, contamination>>
    partition : "auto" or PartitionEstimator, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly where rows have few
        states; importance sampling from the base if the effective sample size is at least a
        twentieth of the draws; otherwise annealing. `log_partition_method_` gives the reason.
    random_state : int, RandomState instance or None, default=None
    verbose : int, default=0
        1 shows progress.
    <<device, dtype>>

    Attributes
    ----------
    history_ : list of dict
        One entry per tree that was tried: ``train_loss`` of the classifier; ``gain_over_base``,
        nats by which held-out rows are more likely than under the base, ``gain_error``; and
        ``effective_share``, the effective sample size of a draw of the base.
    n_trees_ : int
        Number of trees of the model; 0 where it is its base.
    resolution_ : ndarray of shape (n_features,) or None
        Median gap between the values of columns that have few distinct ones, and 0 for others. The
        density of such a column is spread over that gap, and no spike. None if columns are bits, or
        of several kinds, or bounded.
    <<log_partition, offset_, base_, units_, row_shape_, n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    TractableDensity : The base of real rows alone.
    NCEDensity : A network in place of the trees.

    References
    ----------
    .. [1] Gutmann and Hyvärinen (2012), "Noise-contrastive estimation of unnormalized statistical
       models", JMLR 13. Bravo (2025), "NRGBoost: energy-based generative boosted trees", ICLR, adds
       trees by the likelihood itself.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import BoostedDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = BoostedDensity(base="gaussian", random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    """

    _kind = Boosting
    # What nothing is trained by here.
    network = sampler = optimizer = sigma = net_params = None
    early_stopping = warm_start = deconvolve = False
    standardize, batch_size = True, "auto"

    def __init__(
        self,
        base="auto",
        *,
        learning_rate=0.1,
        n_iter="auto",
        max_leaf_nodes=16,
        min_samples_leaf=5,
        l2_regularization=1.0,
        domain="auto",
        categorical_features="from_dtype",
        bounds=None,
        contamination="auto",
        partition="auto",
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
    ):
        assign_parameters(self, locals())

    def _finalise(self, rows: Rows) -> None:
        super()._finalise(rows)
        rule: Any = self._recipe.family.rule
        self.history_ = [dict(row) for row in rule.history]
        self.n_iter_, self.n_trees_ = len(self.history_), len(rule.trees["value"])
        self.resolution_ = rule.resolution
        if rule.interrupted:
            self.net_.note_interruption(
                f"Boosting was interrupted after {self.n_iter_} trees; the model has "
                f"{self.n_trees_} of them and is usable."
            )

    @available_if(_has_no_stream)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Not available: trees are grown on all rows at once."""

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 10,
    ) -> np.ndarray:
        return self._draw_rows(n_samples, random_state, temperature, given, n_steps)
