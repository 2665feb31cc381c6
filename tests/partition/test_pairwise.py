"""Bethe, tree-reweighted and perturb-and-MAP estimates of log Z: exact where they should be exact,
bounds where they promise bounds."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize_scalar
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

import skebm.partition.pairwise.tree_reweighted as trw_module
from skebm.base import Binary, Energy
from skebm.base.graph import PairwiseGraph
from skebm.distributions import BlockTree, ChowLiuTree, IndependentBernoulli
from skebm.energies import BernoulliRBM, BoltzmannMachine, TemperedCorrection, Tilted, ising_grid
from skebm.partition import Exact
from skebm.partition.pairwise.bethe import Bethe
from skebm.partition.pairwise.graph import free_energy, negative_hessian, pairwise_graph
from skebm.partition.pairwise.perturb_and_map import PerturbAndMAP
from skebm.partition.pairwise.tree_reweighted import TreeReweighted
from skebm.samplers.perturbed_map import by_enumeration, by_min_cut, by_relaxation
from tests.support.oracle import (
    DOUBLE,
    bits,
    finite_difference,
    joint_energy,
    make_rbm,
    make_tree_rbm,
    seeded,
)
from tests.support.tiers import full, leading

ALL = [Bethe, TreeReweighted, PerturbAndMAP]
N = 12
ROWS = bits(N)
# A machine for each seed: a few in the first tier, a hundred in both.
each_batch = pytest.mark.parametrize("seeds", leading(1, [range(5), range(5, 50)]), ids=str)
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def by_name(cls):
    return cls.__name__


def truth(energy):
    """log Z by summing over all rows."""
    rows = ROWS if energy.domain.n_columns == N else bits(energy.domain.n_columns)
    with torch.no_grad():
        return (-energy(rows)).logsumexp(0).item()


def boltzmann_machine(seed, n=N, kind="any"):
    """A Boltzmann machine of random density, with couplings from weak to several tens."""
    rng = np.random.default_rng(seed)
    density, strength = rng.choice([0.2, 0.5, 1.0]), rng.choice([0.1, 0.5, 2.0, 8.0, 30.0])
    J = np.triu(strength * rng.normal(size=(n, n)) * (rng.random((n, n)) < density), 1)
    b = rng.choice([0.1, 1.0, strength]) * rng.normal(size=n)
    if kind != "any":
        J = np.abs(J)
        b -= (J + J.T).sum(1) / 2  # so that ones are as probable as zeros
    J += J.T
    offset = rng.normal()
    if kind == "flipped":  # x_i -> 1 - x_i for some units, substituted in the polynomial E
        s = (rng.random(n) < 0.5).astype(float)
        t = 1 - 2 * s
        offset -= s @ J @ s / 2 + b @ s
        J, b = t[:, None] * J * t, t * (b + J @ s)
    return BoltzmannMachine(torch.tensor(J), torch.tensor(b), offset=float(offset))


def forest(seed):
    rng = np.random.default_rng(seed)
    n, strength = int(rng.integers(1, 11)), rng.choice([0.3, 3.0, 40.0])
    J = np.zeros((n, n))
    for i in range(1, n):
        if rng.random() < 0.8:
            J[i, rng.integers(i)] = strength * rng.normal()
    return BoltzmannMachine(torch.tensor(J + J.T), torch.tensor(strength * rng.normal(size=n)))


def independent(n=5):
    b = torch.randn(n, generator=seeded(), dtype=DOUBLE)
    return BoltzmannMachine(torch.zeros(n, n, dtype=DOUBLE), b, offset=0.7)


# ------------------------------------------------------------------------------
# Graphs
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "energy",
    [
        make_rbm(4, 3),
        make_tree_rbm(4, 3),
        Tilted(make_tree_rbm(4, 3), torch.tensor([1.0, -2.0, 0.3, 0.0], dtype=DOUBLE), 0.3),
        TemperedCorrection(make_tree_rbm(4, 3), 0.4),
        make_tree_rbm(4, 3).annealed(0.0),
        make_rbm(4, 3, scale=0.0),
    ],
    ids=["rbm", "tree", "tilted", "tempered", "base", "no weights"],
)
def test_the_graph_of_an_rbm_has_its_joint_energy(energy):
    graph = pairwise_graph(energy)
    expected = -joint_energy(energy, bits(4), bits(3)).flatten().detach().numpy()
    np.testing.assert_allclose(graph.log_weight(bits(7).numpy()), expected, atol=1e-12)
    assert (graph.edges[0] < graph.edges[1]).all()
    assert (graph.couplings != 0).all()


def test_a_base_of_independent_columns_is_in_the_biases():
    base = IndependentBernoulli(torch.ones(4, dtype=DOUBLE))
    energy = BernoulliRBM(4, 3, generator=seeded(), scale=1.0, dtype=DOUBLE, base=base)
    expected = -joint_energy(energy, bits(4), bits(3)).flatten().detach().numpy()
    np.testing.assert_allclose(pairwise_graph(energy).log_weight(bits(7).numpy()), expected)


@pytest.mark.parametrize("kind", ["any", "flipped"])
def test_the_graph_of_a_boltzmann_machine_has_its_energy(kind):
    energy = boltzmann_machine(3, kind=kind)
    expected = -energy(ROWS).detach().numpy()
    np.testing.assert_allclose(pairwise_graph(energy).log_weight(ROWS.numpy()), expected)


@pytest.mark.parametrize("seed", leading(3, range(10)))
def test_renaming_units_makes_balanced_couplings_positive(seed):
    graph = pairwise_graph(boltzmann_machine(seed, kind="flipped"))
    flipped = graph.with_flips(graph.flips)
    assert (flipped.couplings > 0).all()
    x = ROWS.numpy()
    states = np.where(graph.flips, 1 - x, x)
    np.testing.assert_allclose(flipped.log_weight(states), graph.log_weight(x), atol=1e-9)


@pytest.mark.parametrize(("n_negative", "frustrated"), [(0, False), (1, True), (2, False)])
def test_an_odd_loop_is_frustrated(n_negative, frustrated):
    couplings = np.ones(5)
    couplings[:n_negative] = -1
    edges = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 4, 4]])
    graph = PairwiseGraph(0.0, np.zeros(7), edges, couplings)  # and two isolated units
    assert (graph.flips is None) == frustrated
    assert graph.n_components == 3
    assert not graph.is_forest


# ------------------------------------------------------------------------------
# The free energy
# ------------------------------------------------------------------------------


def brute_force(graph, q, rho, smoothing):
    """F at q from the tables of pairs, each optimal in its one free parameter."""

    def entropy(p):
        return -(p * np.log(p)).sum()

    units = [np.array([v, 1 - v]) for v in q]
    value = graph.offset + graph.fields @ q + sum(map(entropy, units))
    for i, j, J, r, s in zip(*graph.edges, graph.couplings, rho, smoothing, strict=True):

        def loss(xi, i=i, j=j, J=J, r=r, s=s):
            table = entropy(np.array([xi, q[i] - xi, q[j] - xi, 1 - q[i] - q[j] + xi]))
            return -J * xi + r * (entropy(units[i]) + entropy(units[j]) - table) - s * table

        ends = max(0, q[i] + q[j] - 1), min(q[i], q[j])
        value -= minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-12}).fun
    return value


def some_graph(seed, n=5, strength=2.0):
    rng = np.random.default_rng(seed)
    edges = np.array(np.triu_indices(n, 1))
    graph = PairwiseGraph(
        0.3, rng.normal(size=n), edges, strength * rng.normal(size=edges.shape[1])
    )
    rho = rng.uniform(0.3, 1, graph.n_edges)
    return graph, 2 * rng.normal(size=n), rho, rng.uniform(0, 0.3, graph.n_edges)


@pytest.mark.parametrize("seed", leading(2, range(5)))
def test_the_free_energy_is_optimal_over_pair_tables(seed):
    graph, u, rho, smoothing = some_graph(seed)
    found = free_energy(graph, u, rho, smoothing).value
    assert found == pytest.approx(brute_force(graph, expit(u), rho, smoothing), abs=1e-7)


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
def test_gradient_and_hessian_are_finite_differences(strength):
    graph, u, rho, smoothing = some_graph(7, strength=strength)
    q = torch.tensor(expit(u))

    def at(v):
        return free_energy(graph, torch.logit(v).numpy(), rho, smoothing)

    beliefs = at(q)
    gradient = finite_difference(lambda v: np.float64(at(v).value), q)
    np.testing.assert_allclose(beliefs.gradient, gradient, rtol=1e-5, atol=1e-5)
    rows = [finite_difference(lambda v, i=i: at(v).gradient[i], q).numpy() for i in range(5)]
    root = np.sqrt(beliefs.q * beliefs.p)
    hessian = -negative_hessian(graph, beliefs) / np.outer(root, root)
    np.testing.assert_allclose(hessian, rows, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("J", [-700.0, -60.0, -1e-9, 1e-9, 60.0, 700.0])
@pytest.mark.parametrize("u", [(0.0, 0.0), (40.0, -40.0), (40.0, 40.0), (-40.0, 3.0), (1.0, -1.0)])
def test_strong_couplings_and_certain_units_do_not_overflow(J, u):
    """The limit is J times the largest or smallest probability of both units being one."""
    edges = np.array([[0], [1]])
    graph = PairwiseGraph(0.0, np.zeros(2), edges, np.array([J]))
    found = free_energy(graph, np.array(u), np.ones(1))
    q = expit(np.array(u))
    both = min(q) if J > 1 else max(0, q.sum() - 1) if J < -1 else q.prod()
    units = sum(math.log1p(math.exp(-abs(v))) + abs(v) * expit(-abs(v)) for v in u)
    assert np.isfinite(found.gradient).all()
    assert np.isfinite(negative_hessian(graph, found)).all()
    assert J * both - 1e-9 <= found.value <= J * both + units + 1e-9


# ------------------------------------------------------------------------------
# Exact cases
# ------------------------------------------------------------------------------


@each_batch
@pytest.mark.parametrize("cls", [Bethe, TreeReweighted], ids=by_name)
def test_forests_are_exact(cls, seeds):
    for seed in seeds:
        energy = forest(seed)
        found = cls().estimate(energy)
        assert found.value == pytest.approx(truth(energy), abs=1e-6)
        assert found.lower == found.upper == found.value
        assert (found.std_error, found.bound_kind, found.ess) == (0.0, "exact", math.inf)


def test_a_long_chain_is_exact():
    """Compared with the product of transfer matrices."""
    n, K = 300, 0.8
    energy = ising_grid(1, n, K, periodic=False, dtype=DOUBLE)
    expected = n * math.log(2) + (n - 1) * math.log(math.cosh(K))
    for cls in (Bethe, TreeReweighted):
        assert cls().estimate(energy).value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [1, 5])
def test_independent_units_are_exact(n):
    energy = independent(n)
    for cls in (Bethe, TreeReweighted):
        assert cls().estimate(energy).upper == pytest.approx(truth(energy), abs=1e-10)
    found = PerturbAndMAP(4000).estimate(energy)
    assert abs(found.value - truth(energy)) < 4 * found.std_error
    assert found.std_error < 0.06


def test_an_rbm_without_weights_is_exact():
    energy = make_rbm(4, 3, scale=0.0)
    for cls in (Bethe, TreeReweighted):
        assert cls().estimate(energy).value == pytest.approx(Exact().estimate(energy).value)


@pytest.mark.parametrize("K", [-0.8, -0.3, 0.4])
def test_a_triangle_has_closed_forms(K):
    """Probabilities of 1/2 by symmetry, and correlations tanh(K / weight) of pairs."""
    triangle = torch.ones(3, 3, dtype=DOUBLE).fill_diagonal_(0) * K
    energy = BoltzmannMachine.from_spins(triangle)
    assert truth(energy) == pytest.approx(math.log(2 * math.exp(3 * K) + 6 * math.exp(-K)))
    free, bethe = 3 * math.log(2), Bethe().estimate(energy)
    upper = TreeReweighted().estimate(energy).upper
    assert bethe.value == pytest.approx(free + 3 * math.log(math.cosh(K)), abs=1e-6)
    assert upper == pytest.approx(free + 2 * math.log(math.cosh(1.5 * K)), abs=1e-3)
    assert math.isnan(bethe.lower) == (K < 0)
    assert ("frustrated" in bethe.reason) == (K < 0)


# ------------------------------------------------------------------------------
# Bounds
# ------------------------------------------------------------------------------


@quiet
@each_batch
@pytest.mark.parametrize("kind", ["attractive", "flipped"])
def test_bethe_is_a_lower_bound_where_couplings_are_attractive(kind, seeds):
    gaps = []
    for seed in seeds:
        energy = boltzmann_machine(seed, kind=kind)
        found = Bethe(max_iter=1 if seed % 4 == 0 else 200).estimate(energy)
        gaps.append(truth(energy) - found.lower)
        assert found.bound_kind == ("exact" if found.std_error == 0 else "certain")
        assert found.std_error == 0 or (math.isnan(found.upper) and found.reason)
    assert min(gaps) > -1e-9
    assert np.median(gaps) < 0.2


@full
@quiet
@each_batch
def test_the_tree_reweighted_bound_is_an_upper_bound(seeds):
    for seed in seeds:
        energy = boltzmann_machine(seed)
        found = TreeReweighted().estimate(energy)
        assert found.upper > truth(energy) - 1e-9
        assert found.value <= found.upper
        assert found.bound_kind == ("exact" if found.std_error == 0 else "certain")
        assert found.std_error == 0 or (math.isnan(found.lower) and found.reason)


@quiet
@pytest.mark.parametrize("newton", [True, False])
@pytest.mark.parametrize("max_iter", [0, 1])
@each_batch
def test_the_tree_reweighted_bound_holds_before_the_search_ends(
    max_iter, newton, seeds, monkeypatch
):
    if not newton:
        monkeypatch.setattr(trw_module, "MAX_NEWTON", 0)
    for seed in seeds:
        energy = boltzmann_machine(seed)
        found = TreeReweighted(max_iter=max_iter, n_reweightings=2).estimate(energy)
        assert found.upper > truth(energy) - 1e-9


def test_newton_and_lbfgs_find_the_same_bound(monkeypatch):
    energy = ising_grid(4, 4, 0.5, 0.2, dtype=DOUBLE)
    newton = TreeReweighted(n_reweightings=0).estimate(energy)
    monkeypatch.setattr(trw_module, "MAX_NEWTON", 0)
    lbfgs = TreeReweighted(n_reweightings=0).estimate(energy)
    assert newton.upper == pytest.approx(lbfgs.upper, abs=1e-3)
    assert newton.upper - newton.value < 1e-3


@quiet
@pytest.mark.parametrize("seeds", leading(1, [range(3), range(3, 12)]), ids=str)
def test_reweighting_tightens_the_bound(seeds):
    gains = []
    for seed in seeds:
        energy = boltzmann_machine(seed)
        plain, better = (TreeReweighted(n_reweightings=k).estimate(energy).upper for k in (0, 10))
        assert better <= plain
        gains.append((plain - better) / max(plain - truth(energy), 1e-9))
    assert np.mean(gains) > 0.1


def test_searches_without_convergence_give_a_warning():
    energy = ising_grid(4, 4, 0.4, 1.0, dtype=DOUBLE)
    with pytest.warns(ConvergenceWarning, match="The bound holds"):
        found = TreeReweighted(max_iter=0).estimate(energy)
    assert found.upper > Exact().estimate(energy).value
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        Bethe(max_iter=1, tol=1e-12).estimate(energy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Bethe().estimate(energy)
        TreeReweighted().estimate(energy)


@pytest.mark.parametrize("seeds", leading(1, [range(20), range(100, 200)]), ids=str)
def test_perturb_and_map_bounds_hold_with_their_nominal_probability(seeds):
    failures, above = 0, 0
    for seed in seeds:
        energy = boltzmann_machine(seed)
        found = PerturbAndMAP(solver="relaxation" if seed % 5 == 0 else "auto").estimate(
            energy, generator=seeded(seed)
        )
        failures += found.upper < truth(energy)
        above += found.value > truth(energy)
        assert found.bound_kind == "probabilistic"
        assert math.isnan(found.lower)
        assert found.reason
    assert failures <= 0.05 * len(seeds)
    assert above >= 0.6 * len(seeds)


@pytest.mark.parametrize("delta", leading(1, [0.3, 0.05]))
def test_the_interval_of_one_unit_fails_with_probability_delta(delta):
    """For one unit the bound is tight; 0.08 is three standard errors of 300 runs."""
    energy, estimator = independent(1), PerturbAndMAP(40, delta=delta)
    expected = truth(energy)
    runs = [estimator.estimate(energy, generator=seeded(seed)) for seed in range(300)]
    assert abs(np.mean([run.upper < expected for run in runs]) - delta) < 0.08


def test_the_value_is_the_expected_maximum():
    """Compared with Gumbel variables of numpy and a maximum over all states."""
    energy = ising_grid(2, 3, 0.5, dtype=DOUBLE)
    rng, x = np.random.default_rng(1), bits(6).numpy()
    score = -energy(bits(6)).detach().numpy()
    g = rng.gumbel(size=(2, 20000, 6)) - np.euler_gamma
    maxima = (score + g[0] @ (1 - x).T + g[1] @ x.T).max(1)
    found = PerturbAndMAP(20000).estimate(energy)
    error = math.hypot(found.std_error, maxima.std() / 20000**0.5)
    assert abs(found.value - maxima.mean()) < 4 * error
    assert maxima.mean() > truth(energy) + 10 * error  # so that the two are distinguishable


# ------------------------------------------------------------------------------
# Most probable states
# ------------------------------------------------------------------------------


def perturbations(seed, n=N):
    return np.random.default_rng(seed).normal(size=(4, n)) * 2


@pytest.mark.parametrize("seed", leading(3, range(10)))
def test_cuts_find_the_maximum_of_attractive_models(seed):
    graph, fields = pairwise_graph(boltzmann_machine(seed, kind="flipped")), perturbations(seed)
    expected = [(graph.log_weight(ROWS.numpy()) + ROWS.numpy() @ row).max() for row in fields]
    found = by_min_cut(graph, fields).values
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * graph.scale)
    assert (found >= np.array(expected) - 1e-11 * graph.scale).all()  # rounded upwards
    np.testing.assert_allclose(by_enumeration(graph, fields).values, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", leading(3, range(10)))
def test_the_relaxation_is_the_linear_program(seed):
    graph, fields = pairwise_graph(boltzmann_machine(seed, n=7)), perturbations(seed, 7)
    n, m = graph.n_nodes, graph.n_edges
    eye = np.eye(m)
    i, j = np.eye(n)[graph.edges]
    rows = np.block([[-i, eye], [-j, eye], [i + j, -eye]])
    right = np.r_[np.zeros(2 * m), np.ones(m)]
    exact = by_enumeration(graph, fields).values
    for row, found, best in zip(fields, by_relaxation(graph, fields).values, exact, strict=True):
        objective = -np.r_[graph.fields + row, graph.couplings]
        program = linprog(objective, rows, right, bounds=(0, 1))
        assert found == pytest.approx(graph.offset - program.fun, abs=1e-7 * graph.scale)
        assert found >= best - 1e-11 * graph.scale


def test_solvers_agree_on_the_value():
    """With the same perturbations, from the same seed."""
    energy = ising_grid(3, 4, 0.5, 0.1, dtype=DOUBLE)
    values = [
        PerturbAndMAP(20, solver=solver).estimate(energy).value
        for solver in ("auto", "enumeration", "min-cut", "relaxation")
    ]
    assert values == pytest.approx([values[0]] * 4, abs=1e-5)


def test_bounds_of_large_grids_are_consistent():
    """A square lattice without frustration, too large to enumerate: solved by minimum cuts."""
    energy = ising_grid(8, 8, 0.3, dtype=DOUBLE)
    lower, above = Bethe().estimate(energy).lower, PerturbAndMAP().estimate(energy)
    upper = TreeReweighted().estimate(energy).upper
    frustrated = ising_grid(8, 8, 0.3, dtype=DOUBLE)
    with torch.no_grad():
        frustrated.weight[0].neg_()
    assert lower < upper
    assert lower < above.upper
    assert PerturbAndMAP().estimate(frustrated).upper > Bethe().estimate(frustrated).value


# ------------------------------------------------------------------------------
# RBMs
# ------------------------------------------------------------------------------


@quiet
@pytest.mark.parametrize("make", [make_rbm, make_tree_rbm])
@pytest.mark.parametrize("scale", [0.1, 1.5])
def test_rbms_are_bounded_by_their_joint_model(make, scale):
    energy = make(7, 5, scale=scale)
    expected = Exact().estimate(energy).value
    upper, above = (cls().estimate(energy).upper for cls in (TreeReweighted, PerturbAndMAP))
    assert expected < upper < expected + 40 * scale
    assert expected < above < expected + 10
    assert Bethe().estimate(energy).value == pytest.approx(expected, abs=scale**2)


def test_positive_weights_are_bounded_from_below():
    energy = make_rbm(7, 5)
    with torch.no_grad():
        energy.weight.abs_()
    found = Bethe().estimate(energy)
    assert found.bound_kind == "certain"
    assert 0 < Exact().estimate(energy).value - found.lower < 0.5


def test_a_tilted_rbm_is_bounded():
    energy = Tilted(make_tree_rbm(6, 4), torch.linspace(-2, 2, 6, dtype=DOUBLE), 0.5)
    expected = Exact().estimate(energy).value
    assert 0 < TreeReweighted().estimate(energy).upper - expected < 3
    assert Bethe().estimate(energy).value == pytest.approx(expected, abs=0.05)


# ------------------------------------------------------------------------------
# Edge probabilities
# ------------------------------------------------------------------------------


def loop(n=4):
    return ising_grid(1, n, 0.5, 0.2, dtype=DOUBLE)


def test_uniform_trees_of_loops_and_complete_graphs_have_known_probabilities():
    complete = boltzmann_machine(2, n=6)
    with torch.no_grad():
        complete = BoltzmannMachine(torch.ones(6, 6, dtype=DOUBLE), complete.bias)
    for energy, probability in ((loop(), 3 / 4), (complete, 2 / 6)):
        m = len(energy.weight)
        found, given = (
            TreeReweighted(p, n_reweightings=0).estimate(energy)
            for p in ("uniform", np.full(m, probability))
        )
        assert found.upper == pytest.approx(given.upper, abs=1e-4)


def test_edge_probabilities_may_be_a_matrix_or_a_vector():
    energy, by_edge = loop(), np.array([0.9, 0.6, 0.8, 0.7])
    matrix = np.zeros((4, 4))
    rows, columns = energy.coupling.triu().nonzero(as_tuple=True)
    matrix[rows, columns] = matrix[columns, rows] = by_edge
    first, second = (
        TreeReweighted(p, n_reweightings=0).estimate(energy) for p in (by_edge, matrix)
    )
    assert first.upper == second.upper
    assert first.upper != TreeReweighted(n_reweightings=0).estimate(energy).upper
    assert first.upper > truth(energy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("best", "uniform"),
        (np.ones(3), "shape"),
        (np.ones((4, 3)), "shape"),
        (np.triu(np.ones((4, 4))), "symmetric"),
        ([0.5, 0.5, 0.5, 0.0], r"\(0, 1\]"),
        ([0.5, 0.5, 0.5, 1.1], r"\(0, 1\]"),
        ([0.5, 0.5, 0.5, math.nan], r"\(0, 1\]"),
        ([1.0, 1.0, 1.0, 0.1], r"\[0, 1, 2, 3\] sum to 3.1"),
    ],
)
def test_invalid_edge_probabilities_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        TreeReweighted(given).estimate(loop())


def test_edge_probabilities_outside_the_forest_polytope_are_refused():
    """A triangle and a pendant edge: the sum of 3 is that of trees, but 2.1 are in the triangle."""
    J = torch.zeros(4, 4, dtype=DOUBLE)
    J[[0, 0, 1, 2], [1, 2, 2, 3]] = 2.0
    energy = BoltzmannMachine(J)
    with pytest.raises(ValueError, match=r"\[0, 1, 2\] sum to 2.1"):
        TreeReweighted([0.7, 0.7, 0.7, 0.9]).estimate(energy)
    found = TreeReweighted([0.7, 0.7, 0.6, 0.9]).estimate(energy)
    assert found.upper > truth(energy)


def test_unchecked_edge_probabilities_give_no_bound(monkeypatch):
    monkeypatch.setattr(trw_module, "MAX_CHECK_COST", 0)
    found = TreeReweighted(np.full(4, 0.75)).estimate(loop())
    assert math.isnan(found.upper)
    assert "too long" in found.reason
    assert found.bound_kind == "heuristic"


# ------------------------------------------------------------------------------
# All of them
# ------------------------------------------------------------------------------


class Linear(Energy):
    def __init__(self):
        super().__init__()
        self.domain = Binary((3,))

    def forward(self, x, cond=None):
        return x.sum(1)


@pytest.mark.parametrize("cls", ALL, ids=by_name)
def test_energies_that_are_not_pairwise_are_refused(cls):
    rows = torch.eye(4, dtype=DOUBLE).repeat(5, 1)
    blocks = BlockTree.fit(rows, block_size=3)
    on_blocks = BernoulliRBM(4, 2, generator=seeded(), dtype=DOUBLE, base=blocks)
    for energy, message in (
        (Linear(), "AIS"),
        (on_blocks, "AIS"),
        (on_blocks.annealed(0.5), "BlockTree"),
        ("no energy", "Energy"),
    ):
        with pytest.raises(TypeError, match=message):
            cls().check(energy)
        with pytest.raises(TypeError, match=message):
            cls().estimate(energy)
    by_row = Tilted(make_rbm(4, 2), torch.zeros(5, 4, dtype=DOUBLE))
    with pytest.raises(ValueError, match="field"):
        cls().check(by_row)


@pytest.mark.parametrize("cls", ALL, ids=by_name)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_refused(cls, bad):
    for name in ("weight", "hidden_bias"):
        energy = make_rbm(4, 2)
        with torch.no_grad():
            getattr(energy, name)[0] = bad
        with pytest.raises(FloatingPointError, match="learning rate"):
            cls().estimate(energy)
    tree = ChowLiuTree(torch.tensor([-1, 0]), torch.tensor([[0.0, 0.0], [bad, 1.0]]))
    with pytest.raises(FloatingPointError, match="finite"):
        cls().estimate(BernoulliRBM(2, 2, generator=seeded(), base=tree))
    energy = loop()
    with torch.no_grad():
        energy.weight[1] = bad
    with pytest.raises(FloatingPointError, match="finite"):
        cls().estimate(energy)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (PerturbAndMAP(n_samples=1), "n_samples"),
        (PerturbAndMAP(n_samples=2.5), "n_samples must be an integer"),
        (PerturbAndMAP(delta=0.0), "delta"),
        (PerturbAndMAP(solver="best"), "solver"),
        (PerturbAndMAP(solver="min-cut"), "relaxation"),
        (PerturbAndMAP(solver="enumeration"), r"30 units.*auto"),
        (Bethe(damping=1.0), "damping"),
        (Bethe(n_starts=0), "n_starts"),
        (Bethe(max_iter=-1), "max_iter"),
        (TreeReweighted(max_iter=0.5), "max_iter"),
        (TreeReweighted(n_reweightings=-1), "n_reweightings"),
    ],
)
def test_invalid_parameters_are_refused(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.estimate(boltzmann_machine(2, n=30))


@quiet
@pytest.mark.parametrize("cls", ALL, ids=by_name)
def test_the_generator_is_the_only_randomness(cls):
    energy, before = loop(6), torch.get_rng_state()
    kept = [p.detach().clone() for p in energy.parameters()]
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = cls().estimate(energy, generator=seeded(1))
    torch.manual_seed(5)
    second = cls().estimate(energy, generator=seeded(1))
    assert first[:4] == pytest.approx(second[:4], abs=0, nan_ok=True)
    torch.set_rng_state(before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    repeated = [cls().estimate(energy).value for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert repeated[0] == repeated[1]
    other = cls().estimate(energy, generator=seeded(2))
    assert (other.value != first.value) or cls is not PerturbAndMAP
    for p, value in zip(energy.parameters(), kept, strict=True):
        assert torch.equal(p, value)
        assert p.grad is None


@pytest.mark.parametrize("cls", ALL, ids=by_name)
def test_single_precision_energies_are_computed_in_double(cls):
    energy = make_rbm(5, 4)
    double, single = cls().estimate(energy), cls().estimate(energy.float())
    assert single.value == pytest.approx(double.value, abs=1e-4)


def test_two_perturbations_have_a_standard_error():
    found = PerturbAndMAP(2).estimate(boltzmann_machine(0), generator=seeded())
    assert 0 < found.std_error < math.inf
