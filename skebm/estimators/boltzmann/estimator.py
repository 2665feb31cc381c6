"""Fully visible Boltzmann machine as a scikit-learn estimator: the Ising model, the Potts model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import clone
from torch import Tensor

from skebm._validation import Interval, StrOptions, check_is_fitted, check_weight, draw_seed
from skebm.base import Clamp, Sampler
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import (
    DENSITY_CONSTRAINTS,
    BaseDensity,
    CategoriesMixin,
    assign_parameters,
    chain_rows,
    fraction_of_early_stopping,
    states_near,
)
from skebm.estimators.boltzmann.convex import CONVEX, line_search_plan, with_l1
from skebm.estimators.boltzmann.errors import CouplingErrors, as_errors, covariance
from skebm.estimators.boltzmann.family import (
    CHEAP_COST,
    BoltzmannFamily,
    BoltzmannRecipe,
    check_same_edges,
    choose_rule,
    columns_in_order,
    cost_of_sum,
    entry_edges,
    independent,
    nearest_start,
    unseen_states,
    warn_of_unseen,
)
from skebm.estimators.boltzmann.gauge import conditional_means, zero_sum
from skebm.estimators.boltzmann.penalties import choose_ridge
from skebm.estimators.boltzmann.structure import PathResult, SparsityPath, choose_graph
from skebm.estimators.queries.models import ModelQueriesMixin
from skebm.estimators.rbm.safety import N_HELD_OUT
from skebm.estimators.recipe import Recipe
from skebm.estimators.tables.blocks import NumberBlock, SpinBlock, holds_spins
from skebm.estimators.tables.table import Table, column_table, probability_table
from skebm.objectives.local import LOCAL_RULES
from skebm.partition.exact import exact_draws
from skebm.samplers import ChainPolicy, FromNoise, Gibbs, Persistent
from skebm.training import AdamW, EarlyStopping
from skebm.training.plan import TrainingPlan, asked_steps, plan_of
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

RULES = ("auto", "exact", *LOCAL_RULES, "pcd", "perturb_and_map")
# Rows of a batch and steps of the rules with chains; each perturbation is an optimisation problem.
BATCH, STEPS, MAP_BATCH, MAP_STEPS = 500, 500, 100, 300
# Chains start at a tree and the weights at the pseudo-likelihood's: chains must be able to follow.
RATE, PCD_RATE = 0.01, 0.003
# Rows from which on some guard stochastic steps, and how often these assess a model in a fit: a
# sweep of annealing takes as long as one of the chains.
FEWEST_ROWS, N_ASSESSMENTS = 200, 4
# Rows whose chains run together, and chains of the Fisher information.
BLOCK, N_DRAWS, N_DRAW_STEPS = 10_000, 10_000, 200
# Gibbs steps of imputations.
N_STEPS = 200


@insert_shared_docs
class BoltzmannMachineDensity(CategoriesMixin, ModelQueriesMixin, BaseDensity):
    r"""Fully visible Boltzmann machine: couplings, a graph and a density of discrete columns.

    .. math:: p(x) = \frac{1}{Z} \exp\Bigl(\sum_{i < j} J_{ij} x_i x_j + \sum_i b_i x_i\Bigr)

    For bits (0 and 1) or spins (-1 and 1) it is the Ising model with a coupling for each pair, the
    binary counterpart of :class:`sklearn.covariance.GraphicalLasso`; for categories it is the Potts
    model. If its likelihood or pseudo-likelihood is maximised, training is a convex problem and
    needs no chains. Each pair counts once; texts that omit the factor 1/2 of
    :math:`x^\top J x / 2`, such as Tomczak (2022), eq. 6.32, count it twice and have couplings of
    half the size (:class:`skebm.energies.BoltzmannMachine`).

    Parameters
    ----------
    learning : str, default="auto"
        Learning rule. ``"exact"``: maximum likelihood by a sum over all states, for up to about 25
        bits. ``"pseudo_likelihood"``, ``"ratio_matching"`` and ``"probability_flow"``: rules that
        compare each row with those that differ from it in one column
        (:class:`skebm.objectives.PseudoLikelihood` and so on). ``"pcd"``: maximum likelihood with
        persistent chains, starting from the optimum of the pseudo-likelihood.
        ``"perturb_and_map"``: for bits; the moments of the rows are matched by those of the most
        probable states under random fields (:class:`skebm.samplers.PerturbedMAP`). ``"auto"`` is
        exact up to 2e7 terms, which are 19 bits, and the pseudo-likelihood beyond;
        `learning_reason_` gives the reason.
    coding : {"auto", "binary", "spin"}, default="auto"
        Values of columns that are not categories, which determine the meaning of couplings.
        ``"spin"``: -1 and 1; other values raise an error. ``"auto"`` is ``"spin"`` if X holds only
        these two values.
    edges : array-like or sparse matrix of shape (n_features, n_features), or None, default=None
        Symmetric adjacency matrix of the columns that may be coupled; None couples all pairs. See
        :func:`skebm.energies.grid_edges`. A graph of networkx is
        ``networkx.to_numpy_array(graph) != 0``.
    l1 : float, SparsityPath, "ebic" or "cv", default=0
        Penalty :math:`\lambda_1 \sum_{i<j} |J_{ij}|`, added to the mean loss of a row. A
        :class:`~skebm.estimators.SparsityPath`, or the name of its criterion, chooses the graph
        and trains its couplings without the penalty; `path_` shows what was compared.
    l2 : float or "auto", default="auto"
        Penalty :math:`\lambda_2 / 2 \sum_{i<j} J_{ij}^2`. ``"auto"``: with 50 rows or more for each
        coupling of a column, one over the number of rows, which is a normal prior of variance 1;
        with fewer, held-out rows choose among six values, the largest of which leaves columns
        nearly independent. Penalties apply to couplings in their coding.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns of categories: names, numbers or a boolean mask. ``"from_dtype"``: columns of frames
        that hold text or are of a categorical type, and columns of object arrays that hold other
        values than numbers. None: no column is categorical.
    n_iter : int or "auto", default="auto"
        Number of iterations of the quasi-Newton method, by default at most 1,000, which end when
        the loss no longer falls; for rules with chains, number of epochs, by default as many as
        make 500 steps (300 for perturb-and-MAP).
    learning_rate, batch_size : float, int or "auto", default="auto"
        Settings of stochastic steps (Adam). ``"auto"`` is 0.01 (0.003 for PCD) and 500 rows (100
        for perturb-and-MAP). If either is a number, the convex rules take stochastic steps as well.
    optimizer : AdamW or None, default=None
        Optimizer of stochastic steps.
    chains : Persistent or None, default=None
        Chains of ``"pcd"``; None is ``Persistent(n_steps=1)`` with 500 chains.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the loss of held-out rows no longer falls, and keep the best weights.
    <<warm_start, contamination>>
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is estimated, when it is first needed. ``"auto"``: exactly, if the enumeration has
        at most 1e9 terms or the graph has no loops, otherwise by
        :class:`skebm.partition.AISBracket`. None: log Z is not estimated, and `score` is the mean
        pseudo-log-likelihood.
    sampler : Sampler or None, default=None
        Sampler of rows and of the chains; None is :class:`skebm.samplers.Gibbs`.
    <<random_state, verbose, device, dtype, net_params>>

    Attributes
    ----------
    couplings_ : ndarray of shape (n_entries, n_entries)
        Couplings J, in the coding; symmetric. Without categories, an entry is a column of X. A
        category has adjacent entries, one for each level, and couplings between entries of two
        categories sum to zero over the levels of either (the gauge of least norm).
    bias_ : ndarray of shape (n_entries,)
        Biases b, in the coding.
    entries_ : list of (str, object)
        Column and level of each entry; the level is None for bits and spins.
    graph_ : ndarray of bool of shape (n_features, n_features)
        Which columns are coupled.
    strengths_ : ndarray of shape (n_features, n_features)
        Frobenius norm of the couplings of two columns; for bits, the absolute value of the
        coupling.
    learning_, learning_reason_ : str
        The learning rule, and the reason for it.
    coding_ : {"binary", "spin"}
    l1_, l2_ : float
        Penalties of the last training.
    path_ : PathResult
        Penalties, criterion, numbers of edges and the choice, if `l1` asked for a path.
    <<log_partition, offset_>>
    history_ : list of dict
        One entry per epoch or iteration.
    converged_ : bool
        Whether the last fit ended without a :class:`~skebm.base.TrainingWarning`.
    n_iter_, n_restarts_ : int
    sampler_, energy_, net_ : Sampler, BoltzmannMachine, EnergyNet
        The sampler, the energy as a torch module (of bits and one-hot entries), the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    RBMEstimator : Hidden units, for dependences of more than two columns.
    sklearn.covariance.GraphicalLassoCV : The same questions for real columns.

    Notes
    -----
    The field of a column with only one state would be infinite. It is estimated from the rows and
    one more row, in which all states are equally likely, and the column is not coupled. Missing
    entries can be filled in by :meth:`impute`; no other method accepts them. A value between 0 and
    1 is the probability of the upper state of a bit, so that both states are weighted.

    References
    ----------
    Ackley, Hinton and Sejnowski (1985), "A learning algorithm for Boltzmann machines", Cognitive
    Science 9. Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
    Nguyen, Zecchina and Berg (2017), "Inverse statistical problems: from the inverse Ising problem
    to data science", Advances in Physics 66(3).

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import BoltzmannMachineDensity
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.integers(0, 2, (2, 500))
    >>> noisy = np.where(rng.random(500) < 0.1, 1 - a, a)
    >>> model = BoltzmannMachineDensity().fit(np.column_stack([a, noisy, b]))
    >>> # A bit and its noisy copy: 2 log(0.9 / 0.1) = 4.4
    >>> round(float(model.couplings_[0, 1]), 1)
    4.4
    >>> bool(
    ...     abs(model.couplings_[0, 2])
    ...     < 3 * model.standard_errors(np.column_stack([a, noisy, b])).couplings[0, 2]
    ... )  # a and b have nothing in common
    True
    >>> model.learning_
    'exact'
    """

    _parameter_constraints: dict = DENSITY_CONSTRAINTS | {
        "learning": [StrOptions(set(RULES))],
        "coding": [StrOptions({"auto", "binary", "spin"})],
        "edges": ["array-like", "sparse matrix", None],
        "l1": [Interval(Real, 0, None, closed="left"), SparsityPath, StrOptions({"ebic", "cv"})],
        "l2": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "optimizer": [AdamW, None],
        "chains": [Persistent, None],
    }
    _configs = {
        "l1": lambda value, names: SparsityPath(criterion=value if value == "cv" else "ebic"),
        "chains": lambda value, names: Persistent(n_steps=1),
        "sampler": lambda value, names: Gibbs(),
        "optimizer": lambda value, names: AdamW(),
        "early_stopping": lambda value, names: EarlyStopping(),
    }
    _recipe: BoltzmannRecipe
    path_: PathResult

    def __init__(
        self,
        learning="auto",
        *,
        coding="auto",
        edges=None,
        l1=0.0,
        l2="auto",
        categorical_features="from_dtype",
        n_iter="auto",
        learning_rate="auto",
        batch_size="auto",
        optimizer=None,
        chains=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- hooks of the base class

    def _validation_options(self, *, reset: bool) -> dict[str, Any]:
        return {"accept_sparse": "csr"}

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> Table:
        names = getattr(self, "feature_names_in_", None)
        if self._coding is not None:
            return self._learn_categories(X, weight, names)
        if self.coding == "spin" or self.coding == "auto" and holds_spins(X):
            return Table([SpinBlock(X.shape[1], names)])
        return probability_table(X, names=names)

    def _learn_categories(self, X: np.ndarray, weight: np.ndarray | None, names: Any) -> Table:
        """The table of bits and categories; `ValueError` for spins and numbers among them."""
        if self.coding == "spin":
            raise ValueError('coding="spin" is for tables without categories.')
        table = column_table(X, weight, self._coding, names)
        numbers = table.block(NumberBlock)
        if numbers is not None:
            raise ValueError(
                f"Column {numbers.name_of(0)} holds numbers other than 0 and 1. A "
                "Boltzmann machine has bits and categories: bin the column (KBinsDiscretizer), "
                "or list it in categorical_features."
            )
        return table

    def _design(
        self, rows: Rows, table: Any, before: EnergyNet | None, *, streaming: bool
    ) -> BoltzmannRecipe:
        learning, reason = choose_rule(self.learning, table.domain)
        plan = self._plan(learning, rows, streaming=streaming)
        l1, l2 = self._penalties(learning, table.block(SpinBlock) is not None)
        if before is not None:
            last, base = self._recipe.family, self._recipe.base
            unseen, start, edges = last.unseen, last.start, last.edges
            if not hasattr(self, "path_"):
                check_same_edges(edges, self._edge_mask(table, unseen))
        else:
            unseen, base = unseen_states(rows), independent(rows, table.domain)
            start = nearest_start(rows, base)
            warn_of_unseen(unseen, table.column_at)
            edges = self._edge_mask(table, unseen)
        family = BoltzmannFamily(
            learning=learning,
            reason=reason,
            edges=edges,
            unseen=unseen,
            start=start,
            l1=l1,
            l2=last.l2 if l2 is None and before is not None else l2 or 0.0,
            sampler=None if self.sampler is None else clone(self.sampler),
            chains=self._chains(learning),
        )
        guarded = self._is_guarded(learning, plan, rows, streaming=streaming)
        plan = with_l1(plan, l1) if plan.searches else plan
        n_guards = N_HELD_OUT if guarded else 0
        kind: dict[str, Any] = {"n_guards": n_guards, "n_assessments": N_ASSESSMENTS}
        found = Recipe(table, plan, base, family, **kind)
        return found if before is not None else self._with_graph_and_penalty(found, rows, l2)

    def _is_guarded(
        self, learning: str, plan: TrainingPlan, rows: Rows, *, streaming: bool
    ) -> bool:
        """Whether held-out rows guard the training: of stochastic steps for this density.

        Perturb-and-MAP matches the moments of another one.
        """
        if plan.searches or streaming or learning == "perturb_and_map" or plan.n_iter == 0:
            return False
        validated = fraction_of_early_stopping(self.early_stopping) is not None
        return len(rows) >= FEWEST_ROWS and not validated

    def _penalties(self, learning: str, spins: bool) -> tuple[float, float | None]:
        """Penalties of couplings of bits, which are four times those of spins; None for "auto"."""
        l1 = float(self.l1) / (4.0 if spins else 1.0) if isinstance(self.l1, Real) else 0.0
        if l1 and learning not in CONVEX:
            raise ValueError(
                f'l1={self.l1} is for rules without chains, and learning is "{learning}": use one '
                f"of {', '.join(CONVEX)}, or choose a graph first (edges=)."
            )
        if self.l2 == "auto":
            return l1, None
        return l1, float(self.l2) / (16.0 if spins else 1.0)

    def _with_graph_and_penalty(
        self, found: BoltzmannRecipe, rows: Rows, l2: float | None
    ) -> BoltzmannRecipe:
        """The recipe with the graph and the ridge penalty that the rows choose."""
        if hasattr(self, "path_"):
            del self.path_
        generator = torch.Generator(rows.device).manual_seed(draw_seed(self.random_state_))
        if not isinstance(self.l1, Real):
            asked = SparsityPath(criterion=self.l1) if isinstance(self.l1, str) else self.l1
            found, self.path_ = choose_graph(found, rows, asked, generator)
        return choose_ridge(found, rows, generator) if l2 is None else found

    def _edge_mask(self, table: Any, unseen: np.ndarray) -> np.ndarray:
        """Pairs of entries that may be coupled, (D, D)."""
        found = entry_edges(self._check_edges(), table)
        return found & ~unseen & ~unseen[:, None]

    def _check_edges(self) -> np.ndarray | None:
        """Pairs of columns that may be coupled, (d, d) of bool."""
        if self.edges is None:
            return None
        edges = self.edges.toarray() if sp.issparse(self.edges) else np.asarray(self.edges)
        d = self.n_features_in_
        if edges.shape != (d, d):
            raise ValueError(
                f"edges must have shape ({d}, {d}), a row and a column for each column of X, not "
                f"{edges.shape}."
            )
        try:
            known = np.isfinite(edges.astype(float)).all()
        except (TypeError, ValueError):
            known = False
        if not known:
            raise ValueError("edges must hold booleans or finite numbers, nonzero for an edge.")
        found = edges != 0
        if not np.array_equal(found, found.T):
            i, j = np.argwhere(found != found.T)[0]
            raise ValueError(
                f"edges must be symmetric, and of ({i}, {j}) and ({j}, {i}) only one is an edge: "
                "pass edges | edges.T."
            )
        return found

    def _plan(self, learning: str, rows: Rows, *, streaming: bool) -> TrainingPlan:
        """Steps that use all rows for the convex rules, unless stochastic ones are asked for."""
        rate, size, n_iter = asked_steps(self)
        given = any(name.startswith("optimizer") for name in self.net_params or {})
        maps = learning == "perturb_and_map"
        batch_size = min(MAP_BATCH if maps else BATCH, len(rows)) if size == "auto" else int(size)
        n_epochs = max(1, round((MAP_STEPS if maps else STEPS) * batch_size / len(rows)))
        usual = PCD_RATE if learning == "pcd" else RATE
        plan = plan_of(
            self,
            self.optimizer or AdamW(),
            n_iter=n_epochs if n_iter == "auto" else n_iter,
            batch_size=batch_size,
            learning_rate=usual if rate == "auto" else rate,
            streaming=streaming,
        )
        if given:
            plan = replace(plan, optimizer_settings={})
        stochastic = streaming or rate != "auto" or size != "auto" or given
        if learning not in CONVEX or stochastic:
            return plan
        found = line_search_plan(plan)
        return found if n_iter == "auto" else replace(found, n_iter=int(n_iter))

    def _chains(self, learning: str) -> ChainPolicy | None:
        if learning == "perturb_and_map":
            return FromNoise(n_steps=1)
        if learning != "pcd":
            return None
        chains = Persistent(n_steps=1) if self.chains is None else clone(self.chains)
        if chains.n_steps is None:
            chains.set_params(n_steps=1)
        return chains if chains.n_chains is not None else chains.set_params(n_chains=BATCH)

    # ---------------------------------------------------------------- methods

    def conditional_proba(self, X: Any) -> np.ndarray:
        """Probability of each state given the other columns of a row; exact, without log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_entries)
            Probability of the upper state of bits and spins, p(x_i = 1 given the others), and of
            each level of categories; in the order of `entries_`.
        """
        rows = self._rows(X)
        found: np.ndarray = self._map(rows, conditional_means).double().numpy()
        return found[:, self._entry_order()]

    def pseudo_likelihood(self, X: Any) -> np.ndarray:
        """Pseudo-log-likelihood of each row, the sum of log p(x_i given the others), in nats.

        It is neither a lower nor an upper bound of log p(x).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)

        References
        ----------
        Besag (1975), "Statistical analysis of non-lattice data", The Statistician 24(3).
        """
        return self._proper_scores(self._rows(X)).double().numpy()

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        temperature: float = 1.0,
        given: Any = None,
        n_steps: int = 1000,
    ) -> np.ndarray:
        r"""Draw rows from the model, :math:`p(x)^{1/T}` normalised.

        Draws are exact and independent if a sum over all states has at most 2e7 terms. Otherwise
        they are the last states of chains of `n_steps` steps, and approximate if the chains have
        not converged. The chains start at training rows, or with ``"pcd"`` at the persistent
        chains; for temperatures other than 1, at uniform rows.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        temperature : float, default=1.0
            T > 0, by which the energy is divided: above 1 rows are more random, below 1 they are
            closer to the most probable ones.
        given : array-like, data frame, dict or None, default=None
            A row whose known entries are fixed, and whose missing entries, NaN, are drawn; frames
            and dicts may leave columns out. Or `n_samples` such rows. Draws are then from chains of
            `n_steps` steps with these entries clamped.
        n_steps : int, default=1000
            Steps of the chains, if they are needed.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features)
        """
        return self._draw_rows(n_samples, random_state, temperature, given, n_steps)

    def _draw(
        self, n: int, generator: torch.Generator, n_steps: int, temperature: float = 1.0
    ) -> Tensor:
        energy, family = self.energy_ / temperature, self._recipe.family
        with torch.no_grad():
            if cost_of_sum(energy.domain) <= CHEAP_COST:
                return exact_draws(energy, n, generator)
            start = chain_rows(self.net_) if family.learning == "pcd" else None
            if temperature != 1:
                like = energy.bias
                start = energy.domain.uniform(n, generator, dtype=like.dtype).to(like.device)
            elif start is None:
                start = torch.as_tensor(self._reference).to(energy.bias)
                start = states_near(start, energy.domain)
            blocks = []
            for done in range(0, n, BLOCK):
                size = (min(BLOCK, n - done),)
                pick = torch.randint(len(start), size, generator=generator, device=start.device)
                state, _ = family.model_sampler.run(energy, start[pick], n_steps, generator)
                blocks.append(state.x)
            return torch.cat(blocks)

    def _fill(
        self, x: Tensor, how: str, n_draws: int, n_steps: int | None, generator: torch.Generator
    ) -> list[Tensor]:
        if how != "draw":
            return super()._fill(x, how, n_draws, n_steps, generator)
        energy, sampler = self.energy_, self._recipe.family.model_sampler
        steps, made = N_STEPS if n_steps is None else n_steps, []
        for _ in range(n_draws):
            blocks = []
            for part in x.split(BLOCK):
                guess = energy.domain.uniform(len(part), generator, dtype=x.dtype).to(x.device)
                clamp = Clamp(~part.isnan(), torch.nan_to_num(part))
                start = clamp.apply(guess)
                state, _ = sampler.run(energy, start, steps, generator, clamp=clamp)
                blocks.append(state.x.cpu())
            made.append(torch.cat(blocks))
        return made

    def standard_errors(self, X: Any, sample_weight: Any = None) -> CouplingErrors:
        r"""Asymptotic standard errors of couplings and fields, without regard to penalties.

        For maximum likelihood the covariance is the inverse Fisher information of the model
        (estimated from 10,000 draws for ``"pcd"``). For the local rules it is the sandwich
        :math:`H^{-1} V H^{-1}` of the mean Hessian H and the covariance V of the gradients, at the
        rows. If the graph was chosen by the same rows, the errors do not account for this choice.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The training rows.
        sample_weight : array-like of shape (n_samples,), default=None
            A row of weight 2 counts as two rows.

        Returns
        -------
        CouplingErrors
            ``couplings`` and ``bias``, of the shapes of `couplings_` and `bias_`.

        Raises
        ------
        ValueError
            For perturb-and-MAP, which has no such errors, and for more than 10,000 parameters.

        References
        ----------
        Varin, Reid and Firth (2011), "An overview of composite likelihood methods", Statistica
        Sinica 21, section 2.3. Hyvärinen (2006), "Consistency of pseudolikelihood estimation of
        fully visible Boltzmann machines", Neural Computation 18(10).
        """
        rows, learning = self._rows_with_weights(X, sample_weight), self.learning_
        if learning == "perturb_and_map":
            raise ValueError(
                "perturb-and-MAP matches the moments of another distribution, whose errors are not "
                'those of the model: use learning="pseudo_likelihood".'
            )
        energy = self.energy_
        with torch.no_grad():
            draws = () if learning in LOCAL_RULES else self._states_of_the_model()
            found = covariance(energy, learning, rows, draws)
            couplings, bias = as_errors(energy, found, self._has_spins)
        order = self._entry_order()
        return CouplingErrors(couplings.numpy()[order][:, order], bias.numpy()[order])

    def _rows_with_weights(self, X: Any, sample_weight: Any) -> Rows:
        check_is_fitted(self)
        X = self._validate(X)
        weight = check_weight(sample_weight, X)
        like = self.energy_.bias
        found: Rows = self._recipe.table.rows(
            X, device=like.device, dtype=like.dtype, weight=weight
        )
        return found

    def _states_of_the_model(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of states with their probabilities: all of them, or draws of the model."""
        energy = self.energy_
        if self.learning_ == "exact":
            log_z = self.log_partition_
            like = energy.bias
            for x in energy.domain.enumerate(65536, dtype=like.dtype, device=like.device):
                yield x, torch.exp(-energy(x).double() - log_z)
            return
        generator = torch.Generator(energy.bias.device).manual_seed(self.net_.seed_)
        x = self._draw(N_DRAWS, generator, N_DRAW_STEPS)
        yield x, torch.full((len(x),), 1 / len(x), dtype=torch.float64)

    # ---------------------------------------------------------------- fitted attributes

    def _entry_order(self) -> list[int]:
        """Entries of rows of the energy in the order of the columns of X."""
        table = self._recipe.table
        order, widths = columns_in_order(table), table.groups
        first = dict(zip(order, np.cumsum([0, *widths[:-1]]).tolist(), strict=True))
        width = dict(zip(order, widths, strict=True))
        return [first[j] + k for j in sorted(order) for k in range(width[j])]

    def _columns_of_entries(self) -> list[int]:
        """Column of X of each entry of `couplings_`."""
        levels = self._levels_of_entries()
        return [j for j in range(self.n_features_in_) for _ in levels.get(j, (None,))]

    def _levels_of_entries(self) -> dict[int, tuple[Any, ...]]:
        """Levels of the columns of categories that have entries; of two, which are a bit, one."""
        levels = {} if self._coding is None else self._coding.levels
        return {j: found[1:] if len(found) == 2 else found for j, found in levels.items()}

    @property
    def entries_(self) -> list[tuple[str, Any]]:
        """Column and level of each entry of `couplings_`."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{j}" for j in range(self.n_features_in_)] if names is None else list(names)
        levels = self._levels_of_entries()
        return [
            (str(name), level) for j, name in enumerate(names) for level in levels.get(j, (None,))
        ]

    def _parameters(self) -> tuple[np.ndarray, np.ndarray]:
        """Couplings and fields in the coding, in the order of `entries_`."""
        check_is_fitted(self)
        energy = self.energy_
        if self._has_spins:
            J, b, _ = energy.to_spins()
        else:
            J, b = zero_sum(energy)
        order = self._entry_order()
        return J.detach().cpu().numpy()[order][:, order], b.detach().cpu().numpy()[order]

    @property
    def couplings_(self) -> np.ndarray:
        """J in the coding, (n_entries, n_entries)."""
        return self._parameters()[0]

    @property
    def bias_(self) -> np.ndarray:
        """b in the coding, (n_entries,)."""
        return self._parameters()[1]

    @property
    def strengths_(self) -> np.ndarray:
        """Frobenius norms of the couplings of two columns, (n_features, n_features)."""
        squares, column = self.couplings_.astype(float) ** 2, self._columns_of_entries()
        found = np.zeros((self.n_features_in_, self.n_features_in_))
        np.add.at(found, (np.array(column)[:, None], np.array(column)), squares)
        return np.sqrt(found)

    @property
    def graph_(self) -> np.ndarray:
        """Which columns are coupled, (n_features, n_features) of bool."""
        check_is_fitted(self)
        coupled = (self.energy_.coupling.detach() != 0).cpu().numpy()
        order, column = self._entry_order(), np.array(self._columns_of_entries())
        found = np.zeros((self.n_features_in_, self.n_features_in_), dtype=bool)
        np.logical_or.at(found, (column[:, None], column), coupled[order][:, order])
        return found

    @property
    def learning_(self) -> str:
        """Learning rule in use."""
        return self._recipe.family.learning

    @property
    def learning_reason_(self) -> str:
        """Why it is the rule."""
        return self._recipe.family.reason

    @property
    def _has_spins(self) -> bool:
        return self._recipe.table.block(SpinBlock) is not None

    @property
    def coding_(self) -> str:
        """Coding of the couplings."""
        return "spin" if self._has_spins else "binary"

    @property
    def l1_(self) -> float:
        """Penalty of absolute couplings in the last training."""
        check_is_fitted(self)
        return self._recipe.family.l1 * (4.0 if self._has_spins else 1.0)

    @property
    def l2_(self) -> float:
        """Penalty of squared couplings in the last training."""
        check_is_fitted(self)
        return self._recipe.family.l2 * (16.0 if self._has_spins else 1.0)

    @property
    def sampler_(self) -> Sampler:
        """Sampler of rows."""
        return self._recipe.family.model_sampler
