"""Neural densities trained by contrastive divergence."""

from __future__ import annotations

from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.objectives import ContrastiveDivergenceLearning


@insert_shared_docs
class ContrastiveDivergenceDensity(NeuralDensity):
    r"""Neural density by maximum likelihood, with contrastive divergence.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \nabla_\theta \log p(x) = -\nabla_\theta f(x) + \mathbb E_p \nabla_\theta f

    A base q is fitted first. A network f that corrects it is then trained by the gradient of the
    log-likelihood, whose second term is estimated from Markov chains; by default they start from
    the base and continue from batch to batch. Rows may be real, binary or one-hot, with any network
    and any sampler for such rows. If there are 50 rows or more, a tenth, at most 100, are held out
    from the network to monitor training. If training diverges, it is rolled back to an earlier
    state and continues with smaller steps.

    Parameters
    ----------
    <<network, sampler>>
    objective : str, Likelihood or Discrepancy, default="likelihood"
        ``"likelihood"``: maximum likelihood; its settings, including penalties, are those of
        :class:`Likelihood`. ``"discrepancy"``: energy discrepancy, without chains, which contrasts
        each row with perturbations of a noisy copy of it [7]_; settings in :class:`Discrepancy`. It
        is suited to tables with few columns, as perturbations carry little information in many.
        ``"pseudo_likelihood"``, ``"ratio_matching"``, ``"probability_flow"``: for bits and
        categories only, without chains. Each row is compared with all rows that differ from it in
        one column (:class:`skebm.objectives.PseudoLikelihood`,
        :class:`~skebm.objectives.RatioMatching`, :class:`~skebm.objectives.ProbabilityFlow`), and
        the network is evaluated at all of these.
    <<chains, domain, categorical_features, base, sigma, deconvolve, bounds, standardize>>
    <<learning_rate, batch_size, n_iter, optimizer, early_stopping, warm_start>>
    <<contamination, partition, compute>>

    Attributes
    ----------
    <<sigma_, base_, units_, row_shape_, log_partition, offset_>>
    history_ : list of dict
        One entry per epoch: ``train_loss`` and ``energy_gap``, both mean E(data) - mean E(chains);
        ``gain_over_base``, the estimated mean log-likelihood ratio to the base, in nats;
        ``acceptance``; learning rate, seconds.
    <<converged_, n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    ScoreMatchingDensity : Faster, without sampling in training; for real columns.
    RBMEstimator : Binary rows, with hidden units as features.

    References
    ----------
    .. [1] Hinton (2002), "Training products of experts by minimizing contrastive divergence",
       Neural Computation 14(8).
    .. [2] Du and Mordatch (2019), "Implicit generation and modeling with energy based models",
       NeurIPS.
    .. [3] Du, Li, Tenenbaum and Mordatch (2021), "Improved contrastive divergence training of
       energy-based models", ICML.
    .. [4] Grathwohl, Swersky, Hashemi, Duvenaud and Maddison (2021), "Oops I took a gradient:
       scalable sampling for discrete distributions", ICML.
    .. [5] Carbone, Hua, Coste and Vanden-Eijnden (2023), "Efficient training of energy-based models
       using Jarzynski equality", NeurIPS.
    .. [6] Gabrie, Rotskoff and Vanden-Eijnden (2022), "Adaptive Monte Carlo augmented with
       normalizing flows", PNAS 119(10).
    .. [7] Schröder, Ou, Lim, Li, Vollmer and Duncan (2023), "Energy discrepancies: a
       score-independent loss for energy-based models", NeurIPS.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_moons
    >>> from skebm import ContrastiveDivergenceDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = ContrastiveDivergenceDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> model.sample(3, random_state=0).shape
    (3, 2)
    >>> model.predict([[0.0, 1.0], [10.0, 10.0]])
    array([ 1, -1])
    """

    _kind = ContrastiveDivergenceLearning
    _names = {"form": "objective"}

    def __init__(
        self,
        network=None,
        *,
        sampler=None,
        objective="likelihood",
        chains="persistent",
        domain="auto",
        categorical_features="from_dtype",
        base="auto",
        sigma="auto",
        deconvolve=True,
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        batch_size="auto",
        n_iter="auto",
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())
