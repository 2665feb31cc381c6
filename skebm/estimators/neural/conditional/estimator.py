"""Conditional densities of real rows as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from skebm._validation import (
    Interval,
    StrOptions,
    check_is_fitted,
    draw_seed,
    is_frame,
)
from skebm.base import LogLikelihoods, sampling
from skebm.base.energy import check_temperature
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    CONDITIONAL_CONSTRAINTS,
    CONTAMINATION,
    BaseConditional,
    CategoriesMixin,
    assign_parameters,
    fraction_of_early_stopping,
    upper_quantile,
)
from skebm.estimators.neural.conditional.family import (
    BASES,
    N_HELD_OUT,
    OBJECTIVES,
    ConditionalFamily,
    ConditionalRecipe,
    fit_conditional_base,
    noise_of,
    rows_by_seed,
)
from skebm.estimators.neural.conditional.normalisers import (
    DRAWS_PER_CHAIN,
    Annealing,
    log_z_of_conditions,
    means_of_conditions,
)
from skebm.estimators.neural.conditional.table import (
    ResidualBlock,
    as_frame_of_targets,
    condition_columns,
    conditional_table,
    conditions_coding,
)
from skebm.estimators.neural.family import (
    CONFIGS,
    NEURAL_CONSTRAINTS,
    SIGMA,
    network_of,
    neural_plan,
)
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.table import Table, shown_names
from skebm.partition.given import (
    ConditionalAIS,
    LangevinSteps,
    LogZGiven,
    annealed_log_z,
    resample,
    uniforms_of,
)
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Numbers at least that a draw takes for each column: itself, its noise, gradient and proposal.
NUMBERS_OF_DRAW = 4
# Temperatures and chains of a draw, and conditions that are drawn for at once.
N_DRAW_BETAS, DRAW_CHAINS, BLOCK = 50, 8, 256


class ReferenceRows:
    """Training rows (c, u) with their weights, and the threshold once it is known.

    A fraction `share` of them is below the threshold.
    """

    def __init__(self, rows: np.ndarray, counts: np.ndarray, share: float):
        self.rows, self.counts, self.share = rows, counts, share
        self.threshold: float | None = None


@insert_shared_docs
class ConditionalDensity(CategoriesMixin, BaseConditional):
    r"""Neural density of some columns given the others, p(x | c), normalised for every c.

    .. math:: p(x \mid c) = \frac{1}{Z(c)}\, q(x \mid c)\, e^{-f(c, x)} , \qquad
        Z(c) = \mathbb E_{q(x \mid c)}\, e^{-f(c, x)}

    `given` lists the columns of X that are the conditions c; the other columns, which must be
    numbers, are x. A linear regression of x on c is fitted first, then a conditional base q of its
    residuals by EM, and a network f is trained to correct the base. If rows hold a frame of a
    sequence beside the frames before it (:func:`lagged`), the model is a density of the next frame;
    with classes as conditions, it is one density for each class.

    Parameters
    ----------
    given : int, str or array-like of such, default=0
        Columns of the conditions: numbers, names of a data frame, or a boolean mask. With an empty
        list the model is a density of all columns.
    objective : {"nce", "score_matching", "contrastive_divergence"}, default="nce"
        ``"nce"``: the network picks each row among draws of its own base (noise contrastive
        estimation in its ranking form [1]_), in which Z(c) cancels. ``"score_matching"``: denoising
        score matching in x [2]_, after which the base of clean rows replaces that of noisy ones.
        ``"contrastive_divergence"``: maximum likelihood with chains at clamped conditions.
    <<network>>
    base : {"auto", "linear", "residuals", "mixture"}, default="auto"
        Base q. ``"linear"``: the normal distribution of a linear regression. ``"residuals"``: the
        same with a Gaussian mixture in place of the normal distribution. ``"mixture"``: the
        conditional of a joint Gaussian mixture of c and x, whose regressions and variances depend
        on c. The number of components, and with ``"auto"`` the kind of base, are those under which
        a left-out fifth of the training rows is most likely; ``"auto"`` excludes mixtures of more
        than 100 columns.
    n_draws : int, default=8
        Number of draws of the base for each row of a step, with ``"nce"`` and
        ``"contrastive_divergence"``.
    n_steps : int, default=5
        Number of Langevin steps of a chain, with ``"contrastive_divergence"``.
    sigma : float, array-like, "auto" or "bandwidth", default="auto"
        Standard deviation of the noise added with ``"score_matching"``, relative to the residuals
        of the linear regression. ``"auto"``: as in :class:`ScoreMatchingDensity`.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories, which must be among the conditions: names, numbers or a boolean mask.
        ``"from_dtype"``: columns of frames that hold text or are of a categorical type, and columns
        of object arrays that hold other values than numbers. None: no column is categorical.
    <<learning_rate, batch_size, n_iter>>
    optimizer : AdamW or None, default=None
        Settings of the optimizer; None is :class:`skebm.training.AdamW` with its defaults.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows no longer improves, and keep the best weights.
    <<warm_start>>
    partition : "auto" or ConditionalAIS, default="auto"
        How log Z is annealed, which is done for each condition if x has more than two columns.
        ``"auto"`` is :class:`skebm.partition.ConditionalAIS` with its default settings, which can
        be searched over by ``partition__<name>``.
    <<contamination, compute>>

    Attributes
    ----------
    given_ : list of int
        Numbers of the columns that are conditions.
    base_ : RegressionMixture
        The fitted base, of residuals u of the linear regression, given encoded conditions.
    base_name_ : {"linear", "residuals", "mixture"}
    partition_ : ConditionalAIS
        How log Z is annealed.
    threshold_, offset_ : float
        Log-likelihood given the conditions below which a row is an outlier, computed when first
        needed.
    history_ : list of dict
        One entry per epoch. Twenty entries of a fit also have ``gain_over_base`` and
        ``gain_error``: the mean log-likelihood ratio of held-out rows to the base, and its standard
        error, in nats.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
        Number of epochs and of roll-backs.
    energy_, net_ : ConditionalEnergy, EnergyNet
        The energy of rows (c, u) as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    lagged : Frames of sequences beside the frames before them.
    TemporalRBM : Sequences by restricted Boltzmann machines.
    NCEDensity : Densities of whole rows.

    Notes
    -----
    **Held-out rows guard the training** without `early_stopping`: a tenth of the rows, at most 200;
    with fewer than 200 rows, up to a fifth. Neither the base nor the network is fitted to them.
    Twenty times during a fit, their likelihood is compared with that under the base. If the weights
    are clearly worse than earlier ones, training returns to those. The model is the base, f = 0,
    unless the held-out rows gain more than a base of all rows is expected to, by half a standard
    error. With fewer than 20 rows the model is the base. Where it is the base, that is fitted to
    all rows.

    References
    ----------
    .. [1] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP, section 3.
    .. [2] Vincent (2011), "A connection between score matching and denoising autoencoders", Neural
       Computation 23(7), equation 11.

    Examples
    --------
    Two branches whose distance grows with the condition:

    >>> import numpy as np
    >>> from skebm import ConditionalDensity
    >>> rng = np.random.default_rng(0)
    >>> c = rng.uniform(0, 2, 600)
    >>> x = c * rng.choice([-1, 1], 600) + 0.2 * rng.normal(size=600)
    >>> model = ConditionalDensity(given=0, random_state=0).fit(np.column_stack([c, x]))
    >>> near, far = model.score_samples([[1.5, 1.5], [1.5, 0.0]])
    >>> bool(near > -1 and far < -4)
    True
    >>> model.sample([[2.0], [2.0]], random_state=0).shape
    (2, 1)
    """

    _parameter_constraints: dict = CONDITIONAL_CONSTRAINTS | {
        "contamination": CONTAMINATION,
        "network": NEURAL_CONSTRAINTS["network"],
        "learning_rate": NEURAL_CONSTRAINTS["learning_rate"],
        "optimizer": NEURAL_CONSTRAINTS["optimizer"],
        "given": [Integral, str, "array-like"],
        "objective": [StrOptions(set(OBJECTIVES))],
        "base": [StrOptions({"auto", *BASES})],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "sigma": [kind for kind in SIGMA if kind is not None],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
    }
    _configs = {name: CONFIGS[name] for name in ("network", "optimizer", "early_stopping")} | {
        "partition": lambda value, names: ConditionalAIS(),
    }
    _recipe: ConditionalRecipe
    _judged: ReferenceRows

    def __init__(
        self,
        given=0,
        objective="nce",
        network=None,
        *,
        base="auto",
        n_draws=8,
        n_steps=5,
        sigma="auto",
        categorical_features="from_dtype",
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

    # ---------------------------------------------------------------- hooks of the base class

    def _set_threshold(self, rows: Rows) -> None:
        # Training rows whose likelihoods set the threshold of `predict`, at most.
        n_reference_rows = 500
        index = torch.linspace(0, len(rows) - 1, min(len(rows), n_reference_rows)).long()
        index = index.to(rows.device)
        self._judged = ReferenceRows(
            rows.take(index).cpu().numpy(),
            rows.counts[index].cpu().numpy(),
            self._share_of_kept(rows),
        )

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {}

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        known, d = getattr(self, "feature_names_in_", None), X.shape[1]
        self._given = condition_columns(self.given, known, d)
        return conditional_table(X, self._given, weight, self._coding, shown_names(known, d))

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> ConditionalRecipe:
        if before is None:
            seed = draw_seed(self.random_state_)
            guarded = not (streaming or fraction_of_early_stopping(self.early_stopping))
            kept = rows_by_seed(rows, seed)[0] if guarded else rows
            base, name = fit_conditional_base(self.base, kept, table, seed)
            denoises = self.objective == "score_matching"
            sigma = noise_of(self.sigma, rows, table) if denoises else None
        else:
            last = self._recipe
            assert last.guard_seed is not None
            base, name, seed = last.base, str(last.base_name), last.guard_seed
            rule, sigma = last.family.rule, last.family.sigma
            if self.objective != rule or self.base not in ("auto", name):
                raise ValueError(
                    f'The weights are those of objective="{rule}" and base="{name}": with '
                    "warm_start and partial_fit they must not change. Clone the estimator to "
                    "start anew."
                )
        plan = neural_plan(self, len(rows), streaming=streaming)
        if self.objective != "score_matching":
            n_rows = min(plan.batch_size, len(rows))
            n_numbers = NUMBERS_OF_DRAW * n_rows * self.n_draws * table.domain.n_columns
            what = f"n_draws={self.n_draws} with {n_rows} rows in a batch"
            check_memory(what, float(n_numbers), rows.dtype, rows.device)
        family = ConditionalFamily(
            rule=self.objective,
            network_config=network_of(self),
            sigma=sigma,
            n_draws=int(self.n_draws),
            n_steps=int(self.n_steps),
        )
        return Recipe(
            table, plan, base, family, base_name=name, n_guards=N_HELD_OUT, guard_seed=seed
        )

    # ---------------------------------------------------------------- likelihoods

    def _scores(self, rows: Rows, *, upper: bool) -> tuple[LogLikelihoods, float]:
        """Log-likelihoods of rows (c, u), and the standard error of their mean by that of log Z.

        Rows of one condition share its log Z, and the error of it.
        """
        energy, table = self._energies(rows), self._recipe.table
        c = rows.block(0, len(rows))[:, : table.n_conditions]
        if table.n_conditions:
            distinct, place, counts = c.unique(dim=0, return_inverse=True, return_counts=True)
        else:
            distinct, place = c[:1], torch.zeros(len(c), dtype=torch.long, device=c.device)
            counts = torch.tensor([len(c)], device=c.device)
        found = self._normalisers(distinct, upper=upper)
        log_z, error, high, exact = (
            part[place].cpu().numpy()
            for part in (found.value, found.std_error, found.upper, found.exact)
        )
        table.check_finite(log_z, rows, "log Z")
        lower = np.where(exact, log_z, np.maximum(log_z, high))
        value = -energy - log_z
        scores = LogLikelihoods(value, error, -energy - lower, value, exact)
        return scores, float((found.std_error * counts).norm()) / len(c)

    def _normalisers(self, c: Tensor, *, upper: bool) -> LogZGiven:
        """log Z of conditions c (n, dc), in double precision."""
        energy, verbose = self._scoring_energy(), int(self.verbose)
        return log_z_of_conditions(
            energy, c.double(), self._annealing(), upper=upper, verbose=verbose
        )

    def _annealing(self) -> Annealing:
        """Settings of annealing; `ValueError` if its chains do not fit in memory."""
        recipe, ais = self._recipe, self.partition_
        n_numbers = NUMBERS_OF_DRAW * ais.n_chains * DRAWS_PER_CHAIN * recipe.table.domain.n_columns
        check_memory(f"n_chains={ais.n_chains}", float(n_numbers), torch.float64)
        return Annealing(ais, recipe.family.step_size, self.net_.seed_)

    def log_conditional(self, X: Any) -> LogLikelihoods:
        r"""log p(x | c) of each row, with its standard error and a pessimistic estimate.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        LogLikelihoods
        """
        return self._scores(self._rows(X), upper=True)[0]

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x | c) of each row, in nats and in the units of x.

        The result is exact where the model is its base, and by quadrature if x has one or two
        columns, unless this needs too many nodes. Otherwise log Z of each condition is estimated by
        importance sampling or annealing, and the result is high on average, by about half of the
        squared standard error, which :meth:`log_conditional` returns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._scores(self._rows(X), upper=False)[0].log_prob

    def score(self, X: Any, y: Any = None) -> float:
        """Pessimistic estimate of the mean log p(x | c) of rows, in nats.

        It is exact if :meth:`score_samples` is. Otherwise it is the mean of ``lower`` of
        :meth:`log_conditional`, minus two standard errors of the mean of log Z.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
        """
        found, error = self._scores(self._rows(X), upper=True)
        return found.pessimistic_mean(error)

    def energy(self, X: Any) -> np.ndarray:
        """E(x | c) of each row, in nats: log p(x | c) = -E(x | c) - log Z(c).

        Energies of different conditions are on different scales: use :meth:`score_samples` to
        compare rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._of_rows(X, self._energies)

    # ---------------------------------------------------------------- what x is, given c

    def _conditions(self, C: Any) -> Tensor:
        """Rows c of conditions as users pass them, (n, dc)."""
        check_is_fitted(self)
        d, given = self.n_features_in_, self._given
        every = shown_names(getattr(self, "feature_names_in_", None), d)
        names = [every[j] for j in given]
        if is_frame(C) and hasattr(self, "feature_names_in_"):
            missing = [name for name in names if name not in list(C.columns)]
            if missing:
                raise ValueError(f"C lacks the columns {missing}, which are conditions.")
            C = C[names]
        else:
            C = np.asarray(C)
            if C.ndim != 2 or C.shape[1] not in (len(names), d):
                raise ValueError(
                    f"C must hold the {len(names)} columns {names} of the conditions in this "
                    f"order, or all {d} columns of X, got shape {C.shape}."
                )
            C = C if C.shape[1] == len(names) else C[:, given]
        like = next(self.energy_.parameters())
        if not given:
            return like.new_zeros(len(C), 0)
        coding = None if self._coding is None else conditions_coding(self._coding, given)
        if coding is not None:
            C = coding.encode(C, 1, type(self).__name__)
        rows = np.full((len(C), d), np.nan)
        rows[:, given] = check_array(C, dtype=np.float64, input_name="C", estimator=self)
        found = torch.from_numpy(self._recipe.table.conditions(rows))
        return found.to(like.device, like.dtype)

    @as_frame_of_targets
    def expected(
        self, C: Any, *, return_std_error: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of x given each condition, E(x | c).

        It is exact where the model is its base, whose mean has a closed form. With one or two
        columns it is computed by quadrature. With more, and in the rare case that quadrature needs
        too many nodes, it is sampled: the mean of the base plus what 4,000 weighted draws of the
        base differ from it, up to 64,000 until the standard error is at most 3 % of the standard
        deviation of x under the base. Where the weights are too uneven for that, it is a weighted
        mean of 200 annealing chains. The seed is fixed.

        Parameters
        ----------
        C : array-like of shape (n_samples, n_conditions) or (n_samples, n_features)
            The columns of the conditions in the order of `given`, or rows of all columns, of which
            only these are used.
        return_std_error : bool, default=False
            Whether to return the standard errors of the means as well. They are 0 where means are
            exact or by quadrature, whose relative error of Z is below 1e-4.

        Returns
        -------
        ndarray of shape (n_samples, n_features - n_conditions)
            In the units of x. With `return_std_error` a tuple of two such arrays.
        """
        c, table = self._conditions(C), self._recipe.table
        (residuals,) = table.targets
        assert isinstance(residuals, ResidualBlock)
        factor = torch.from_numpy(residuals.of_differences).to(c.device)
        energy, settings = self._scoring_energy(), self._annealing()
        found = means_of_conditions(energy, c.double(), settings, factor, verbose=int(self.verbose))
        assert found.mean is not None
        assert found.mean_error is not None
        mean = table.invert(torch.cat([c.to(found.mean), found.mean], 1))
        return (mean, found.mean_error.cpu().numpy()) if return_std_error else mean

    @as_frame_of_targets
    def sample(
        self,
        C: Any,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        n_steps: int = 20,
    ) -> np.ndarray:
        """Draw a row x for each condition, from p(x | c) to the power of 1 / T and normalised.

        Eight chains are annealed from the base. One of them is chosen by its weight, and then moved
        by `n_steps` of MALA. The draw is approximate, and exact in the limit of many steps.

        Parameters
        ----------
        C : array-like of shape (n_samples, n_conditions) or (n_samples, n_features)
            As in :meth:`expected`. Repeat a row for several draws.
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy of x given c is divided.
        n_steps : int, default=20
            Number of steps after annealing; more are needed if T is far from 1.

        Returns
        -------
        ndarray of shape (n_samples, n_features - n_conditions)
            In the units of x.
        """
        whole_number("n_steps", n_steps, 1)
        check_temperature(temperature)
        c, energy, power = self._conditions(C), self.energy_, 1 / temperature
        step = self._recipe.family.step_size * temperature
        generator, width = self._generator(random_state), energy.target_domain.n_columns + 1

        rows = []
        for some in c.split(BLOCK):
            many = uniforms_of(generator, (len(some) * DRAW_CHAINS, width), c)
            one = uniforms_of(generator, (len(some), width), c)
            with torch.no_grad(), sampling(energy):
                given = energy.given(some)
                values, x = annealed_log_z(LangevinSteps(given, many, step, power), N_DRAW_BETAS)
                x = resample(x, values, one()[:, 0], 1)
                rows.append(LangevinSteps(given, one, step, power).rows_after(x, n_steps))
        return self._recipe.table.invert(torch.cat([c, torch.cat(rows)], 1))

    # ---------------------------------------------------------------- fitted attributes

    @property
    def threshold_(self) -> float:
        """Log-likelihood given the conditions below which a row is an outlier, when first needed.

        It is a quantile over at most 500 training rows.
        """
        check_is_fitted(self)
        judged = self._judged
        if judged.threshold is None:
            like = next(self.energy_.parameters())
            weight = torch.tensor(judged.counts)
            rows = Rows(
                torch.tensor(judged.rows).to(like), weight, dtype=like.dtype, device=like.device
            )
            value, _ = self._scores(rows, upper=False)
            judged.threshold = -upper_quantile(-value.log_prob, judged.share, judged.counts)
        return judged.threshold

    @property
    def given_(self) -> list[int]:
        """Numbers of the columns that are conditions."""
        check_is_fitted(self)
        return list(self._given)

    @property
    def base_name_(self) -> str:
        """Kind of the base: "linear", "residuals" or "mixture"."""
        check_is_fitted(self)
        return str(self._recipe.base_name)
