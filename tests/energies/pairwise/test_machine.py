"""Boltzmann machines against sums spelled out term by term, and the Ising model on a grid."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from skebm.base import Binary, Energy
from skebm.energies import BoltzmannMachine, ising_grid
from tests.support.oracle import DOUBLE, bits, seeded
from tests.support.tiers import leading


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def sparse_matrix(d, n_pairs, seed=0, dtype=DOUBLE):
    """Symmetric, hollow, with at most `n_pairs` pairs of columns coupled."""
    generator = seeded(seed)
    ends = torch.randint(d, (n_pairs, 2), generator=generator)
    ends = ends[ends[:, 0] != ends[:, 1]]
    W = torch.zeros(d, d, dtype=dtype)
    W[ends[:, 0], ends[:, 1]] = torch.randn(len(ends), generator=generator, dtype=dtype)
    return W + W.t()


def quadratic(W, b, x):
    """x'Wx / 2 + b'x of one row, all given as Python's numbers."""
    pairs = itertools.product(range(len(b)), repeat=2)
    value = sum(x[i] * W[i][j] * x[j] for i, j in pairs) / 2
    return value + sum(b[i] * x[i] for i in range(len(b)))


def energies(W, b, rows):
    W, b, rows = W.tolist(), b.tolist(), rows.tolist()
    return torch.tensor([-quadratic(W, b, x) for x in rows], dtype=DOUBLE)


# A graph with few enough neighbours that they are gathered, one that is a dense product, no edge.
MATRICES = {
    "gathered": lambda: sparse_matrix(120, 90),
    "dense": lambda: normal(9, 9),
    "sparse but small": lambda: sparse_matrix(9, 8),
    "no edges": lambda: torch.zeros(9, 9, dtype=DOUBLE),
    "one column": lambda: torch.ones(1, 1, dtype=DOUBLE),
}


@pytest.fixture(params=MATRICES)
def matrix(request):
    return MATRICES[request.param]()


def machine(matrix, **kwargs):
    return BoltzmannMachine(matrix, normal(len(matrix), seed=1), **kwargs)


def some_rows(d, n=4):
    return Binary((d,)).uniform(n, seeded(2), dtype=DOUBLE)


# ------------------------------------------------------------------------------
# Energies, conditionals, gradients
# ------------------------------------------------------------------------------


def test_the_cases_cover_matrices_and_gathered_neighbours():
    gathered = {name: machine(make()).neighbours is not None for name, make in MATRICES.items()}
    assert [name for name, is_so in gathered.items() if is_so] == ["gathered"]


@pytest.mark.parametrize("recording", [True, False])
def test_energy_is_the_sum_of_its_terms(matrix, recording):
    b, x = normal(len(matrix), seed=1), some_rows(len(matrix))
    with torch.set_grad_enabled(recording):
        found = BoltzmannMachine(matrix, b, offset=0.25)(x)
    assert found.requires_grad == recording
    torch.testing.assert_close(found.detach(), 0.25 + energies(matrix, b, x))


def test_any_square_matrix_has_its_energy():
    """The symmetric part couples, and a diagonal is a bias as x_i squared is x_i."""
    W, b = normal(6, 6), normal(6, seed=1)
    energy, x = BoltzmannMachine(W, b), bits(6)
    torch.testing.assert_close(energy(x).detach(), energies(W, b, x))
    J = energy.coupling
    assert torch.equal(J, J.t())
    assert not J.diagonal().any()
    expected = [float(b[i] + W[i, i] / 2) for i in range(6)]
    assert energy.bias.tolist() == pytest.approx(expected, rel=1e-15)


def test_energy_and_gradient_are_the_polynomial_between_the_states(matrix):
    x = normal(3, len(matrix), seed=3)
    energy = machine(matrix)
    b, J = energy.bias.detach(), energy.coupling.detach()
    torch.testing.assert_close(energy(x).detach(), energies(J, b, x))
    value, grad = energy.value_and_grad(x)
    by_autograd = Energy.value_and_grad(energy, x)
    torch.testing.assert_close((value, grad), by_autograd)
    assert not grad.requires_grad
    assert not value.requires_grad


def test_second_derivatives_are_the_coupling(matrix):
    energy = machine(matrix)
    x = some_rows(len(matrix), 1).requires_grad_()
    (grad,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
    if grad.requires_grad and len(energy.weight):
        (row,) = torch.autograd.grad(grad[0, -1], x)
        torch.testing.assert_close(row[0], -energy.coupling[-1])


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("columns", [None, [0], [-1, 0, 2]])
def test_logits_are_the_conditionals_of_enumeration(columns, recording):
    """Of the middle of a long row in the gathered case: the energy of the two ends of each flip."""
    for make in (MATRICES["gathered"], MATRICES["dense"]):
        matrix = make()
        d, b = len(matrix), normal(len(matrix), seed=1)
        x, energy = some_rows(d, 2), machine(matrix)
        chosen = None if columns is None else torch.tensor(columns) % d
        with torch.set_grad_enabled(recording):
            found = energy.logits(x, chosen).detach()
        which = range(0, d, 7) if columns is None else range(len(columns))
        for place in which:
            i = place if chosen is None else int(chosen[place])
            on, off = x.clone(), x.clone()
            on[:, i], off[:, i] = 1, 0
            expected = energies(matrix, b, off) - energies(matrix, b, on)
            torch.testing.assert_close(found[:, place], expected)
        assert found.shape == (2, d if columns is None else len(columns))


def test_logits_of_all_states_equal_enumeration():
    matrix, states = normal(5, 5), bits(5)
    p = (-energies(matrix, normal(5, seed=1), states)).softmax(0).view([2] * 5)
    logits = machine(matrix).logits(states).detach()
    for i in range(5):
        given_rest = (p / p.sum(i, keepdim=True)).select(i, 1).unsqueeze(i).expand_as(p)
        torch.testing.assert_close(logits[:, i].sigmoid(), given_rest.flatten())


def test_flip_difference_equals_flipping(matrix):
    energy = machine(matrix)
    x = torch.cat([some_rows(len(matrix)), normal(2, len(matrix), seed=4)])
    torch.testing.assert_close(energy.flip_difference(x), Energy.flip_difference(energy, x))


def test_no_rows(matrix):
    energy, x = machine(matrix), torch.zeros(0, len(matrix), dtype=DOUBLE)
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            assert energy(x).shape == (0,)
            assert energy.logits(x).shape == x.shape


# ------------------------------------------------------------------------------
# Colours
# ------------------------------------------------------------------------------


def check_colours(energy, allowed):
    """Every column in one group, no two of a group an edge."""
    groups = energy.colours
    assert all(group.dtype == torch.int64 and len(group) for group in groups)
    d = energy.domain.n_columns
    assert sorted(torch.cat(groups).tolist()) == list(range(d))
    for group in groups:
        for i, j in itertools.combinations(group.tolist(), 2):
            assert not allowed[i][j]


@pytest.mark.parametrize("seed", leading(2, range(8)))
def test_colours_are_a_partition_of_the_columns(seed):
    W = sparse_matrix(40, (10, 40, 80, 200)[seed % 4], seed=seed)
    energy = BoltzmannMachine(W)
    check_colours(energy, (W != 0).tolist())
    assert len(energy.colours) <= int((W != 0).sum(1).max()) + 1  # what any greedy order needs


@pytest.mark.parametrize("seed", leading(2, range(6)))
def test_bipartite_graphs_have_two_colours(seed):
    """Trees, grids, and restricted machines whose columns come in any order."""
    generator = seeded(seed)
    side = torch.rand(30, generator=generator) < 0.5
    W = sparse_matrix(30, (20, 60, 200)[seed % 3], seed=seed)
    W = W * (side[:, None] != side)
    energy = BoltzmannMachine(W)
    check_colours(energy, (W != 0).tolist())
    assert len(energy.colours) == 2


@pytest.mark.parametrize("shape", [(4, 4), (2, 6), (20, 20), (1, 8), (2, 2)])
@pytest.mark.parametrize("periodic", [True, False])
def test_grids_of_even_sides_are_chessboards(shape, periodic):
    groups = ising_grid(*shape, periodic=periodic).colours
    parity = [{(int(i) // shape[1] + int(i) % shape[1]) % 2 for i in group} for group in groups]
    assert sorted(map(list, parity)) == [[0], [1]]
    assert {len(group) for group in groups} == {math.prod(shape) // 2}


def test_complete_and_empty_graphs():
    complete = BoltzmannMachine(normal(7, 7)).colours
    assert [len(group) for group in complete] == [1] * 7
    assert [group.tolist() for group in BoltzmannMachine(torch.zeros(5, 5)).colours] == [
        [0, 1, 2, 3, 4]
    ]


def test_edges_may_be_marked_on_either_side():
    marked = torch.zeros(4, 4, dtype=torch.bool)
    marked[0, 1] = marked[3, 2] = marked[2, 2] = True
    energy = BoltzmannMachine(torch.zeros(4, 4), edges=marked)
    assert len(energy.weight) == 2
    check_colours(energy, (marked | marked.t()).tolist())
    with torch.no_grad():
        energy.weight.copy_(torch.tensor([2.0, 3.0]))
    expected = torch.zeros(4, 4)
    expected[0, 1] = expected[1, 0] = 2
    expected[2, 3] = expected[3, 2] = 3
    assert torch.equal(energy.coupling, expected)


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gathered", "dense", "sparse but small"])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_steps_keep_symmetry_diagonal_and_mask(kind, optimiser):
    W = MATRICES[kind]()
    energy = machine(W)
    before, colours = energy.coupling.detach(), energy.colours
    edges = (W + W.t()) != 0
    edges.fill_diagonal_(False)
    x = some_rows(len(W), 8)
    steps = optimiser(energy.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):  # pseudo-likelihood: an asymmetric gradient in J
        steps.zero_grad()
        logits = energy.logits(x)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, x).backward()
        steps.step()
    J = energy.coupling.detach()
    assert torch.equal(J, J.t())
    assert torch.equal(J != 0, edges)
    assert (J[edges] != before[edges]).all()
    assert all(map(torch.equal, energy.colours, colours))


@pytest.mark.parametrize("kind", ["gathered", "dense"])
def test_gradients_of_parameters(kind):
    """dE/dJ_ij = -x_i x_j for an edge and dE/db_i = -x_i, whichever way the sums are taken."""
    W = MATRICES[kind]()
    energy, x = machine(W), some_rows(len(W), 5)
    energy(x).sum().backward()
    edges = [(i, j) for i, j in itertools.combinations(range(len(W)), 2) if W[i, j] + W[j, i] != 0]
    expected = torch.stack([-(x[:, i] * x[:, j]).sum() for i, j in edges])
    torch.testing.assert_close(energy.weight.grad, expected)
    torch.testing.assert_close(energy.bias.grad, -x.sum(0))
    (through_coupling,) = torch.autograd.grad((energy.coupling * W).sum(), energy.weight)
    torch.testing.assert_close(through_coupling, torch.stack([W[i, j] + W[j, i] for i, j in edges]))


@pytest.mark.parametrize("kind", ["gathered", "dense"])
def test_precision_copies_and_state(kind):
    W = MATRICES[kind]()
    energy = machine(W, offset=1 / 3)
    x, value = some_rows(len(W)), energy(some_rows(len(W)))
    single = copy.deepcopy(energy).float()
    assert single(x.float()).dtype == torch.float32
    assert single.value_and_grad(x.float())[0].dtype == torch.float32
    torch.testing.assert_close(single(x.float()).double(), value, rtol=1e-5, atol=1e-4)
    assert {p.dtype for p in single.parameters()} == {torch.float32}
    assert next(energy.parameters()).dtype == DOUBLE
    born_single = BoltzmannMachine(W.float(), normal(len(W), seed=1).float(), offset=1 / 3)
    assert born_single(x.float()).dtype == torch.float32
    again = BoltzmannMachine(torch.zeros_like(W), edges=energy.coupling != 0)
    again.load_state_dict(energy.state_dict())
    assert torch.equal(again(x), value)
    assert set(energy.state_dict()) == {"weight", "bias", "offset"}


def test_lists_and_arrays_are_accepted():
    W = [[0, 1, 0], [1, 0, 2], [0, 2, 0]]
    x = torch.ones(1, 3)
    assert BoltzmannMachine(W)(x).item() == -3
    assert BoltzmannMachine(np.array(W, dtype=float), [1, 1, 1])(x.double()).item() == -6


# ------------------------------------------------------------------------------
# Spins
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 4, 6])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_spins_have_the_same_energies_and_log_z(d, dtype):
    W, h = normal(d, d, seed=d, dtype=dtype), normal(d, seed=5, dtype=dtype)
    energy, x = BoltzmannMachine.from_spins(W, h, 0.4), bits(d)
    expected = 0.4 + energies(W, h, 2 * x - 1)
    found = energy(x.to(dtype)).detach().to(DOUBLE)
    tolerance = 1e-12 if dtype == DOUBLE else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    log_z = (-found).logsumexp(0)
    assert float(log_z) == pytest.approx(float((-expected).logsumexp(0)), abs=4 * tolerance)
    torch.testing.assert_close(
        (-found).softmax(0), (-expected).softmax(0), rtol=4 * tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_spins_there_and_back(dtype):
    W, h = normal(6, 6, dtype=dtype), normal(6, seed=1, dtype=dtype)
    J, field, offset = BoltzmannMachine.from_spins(W, h).to_spins()
    close = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {}
    symmetric = (W + W.t()) / 2
    assert torch.equal(J, symmetric - torch.diag(symmetric.diagonal()))
    torch.testing.assert_close(field, h, **close)
    assert offset == pytest.approx(-float(W.trace()) / 2, rel=1e-5)
    assert J.dtype == field.dtype == dtype
    assert not J.requires_grad
    energy = machine(W, offset=0.3)
    again = BoltzmannMachine.from_spins(*energy.to_spins())
    torch.testing.assert_close(again.coupling, energy.coupling, **close)
    torch.testing.assert_close(again.bias, energy.bias, **close)
    assert again.offset.item() == pytest.approx(0.3, abs=1e-5)


def neighbour_energy(spins, coupling, field, periodic):
    """The grid's energy from its spins, a list of rows: each site, its right and lower one."""
    n_rows, n_columns = len(spins), len(spins[0])
    value = -field * sum(map(sum, spins))
    for r in range(n_rows):
        for c in range(n_columns):
            if c + 1 < n_columns or (periodic and n_columns > 1):
                value -= coupling * spins[r][c] * spins[r][(c + 1) % n_columns]
            if r + 1 < n_rows or (periodic and n_rows > 1):
                value -= coupling * spins[r][c] * spins[(r + 1) % n_rows][c]
    return value


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (2, 2), (2, 3), (3, 3), (3, 4)])
def test_grid_energy_is_the_sum_over_neighbours(shape, periodic):
    x = bits(math.prod(shape))
    energy = ising_grid(*shape, 0.44, -0.3, periodic=periodic, dtype=DOUBLE)
    spins = (2 * x - 1).view(-1, *shape).tolist()
    expected = [neighbour_energy(rows, 0.44, -0.3, periodic) for rows in spins]
    torch.testing.assert_close(energy(x).detach(), torch.tensor(expected, dtype=DOUBLE))


@pytest.mark.parametrize("n", [2, 3, 8, 11])
def test_ring_has_the_log_z_of_its_transfer_matrix(n):
    K, h = 0.7, 0.2
    T = np.exp([[K + h, -K], [-K, K - h]])
    log_z = (-ising_grid(1, n, K, h, dtype=DOUBLE)(bits(n))).logsumexp(0)
    expected = np.log(np.trace(np.linalg.matrix_power(T, n)))
    assert log_z.item() == pytest.approx(expected, rel=1e-12)


def test_torus_has_the_log_z_of_its_transfer_matrix():
    """A row of 3 is joined to the next by exp(K s's'): round 2 rows, both ways."""
    K, states = 0.4, 2 * bits(3) - 1
    within = (states * states.roll(1, 1)).sum(1)
    T = (K * (states @ states.t() + within)).exp()
    for n_rows in (2, 4):
        log_z = (-ising_grid(n_rows, 3, K, dtype=DOUBLE)(bits(3 * n_rows))).logsumexp(0)
        expected = torch.linalg.matrix_power(T, n_rows).trace().log()
        torch.testing.assert_close(log_z, expected)


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------

ZERO = torch.zeros(3, 3)
NAN = torch.full((3, 3), torch.nan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoltzmannMachine(torch.zeros(2, 3)), "square"),
        (lambda: BoltzmannMachine(torch.zeros(3)), "square"),
        (lambda: BoltzmannMachine(torch.zeros(0, 0)), "square"),
        (lambda: BoltzmannMachine(NAN), "coupling must be finite"),
        (lambda: BoltzmannMachine(ZERO, torch.zeros(2)), "bias must have shape"),
        (lambda: BoltzmannMachine(ZERO, torch.zeros(1, 3)), "bias must have shape"),
        (lambda: BoltzmannMachine(ZERO, NAN[0]), "bias must be finite"),
        (lambda: BoltzmannMachine(ZERO, offset=math.inf), "offset must be finite"),
        (lambda: BoltzmannMachine(ZERO, edges=torch.ones(2, 2)), "edges must have shape"),
        (lambda: BoltzmannMachine(ZERO + 1, edges=torch.eye(3)), "where there is no edge"),
        (lambda: BoltzmannMachine.from_spins(torch.zeros(2, 3)), "square"),
        (lambda: BoltzmannMachine.from_spins(ZERO, torch.zeros(2)), "field must have shape"),
        (lambda: ising_grid(0, 3), "n_rows must be"),
        (lambda: ising_grid(2, 2, math.nan), "coupling must be finite"),
        (lambda: ising_grid(2, 2, field=math.inf), "field must be finite"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
