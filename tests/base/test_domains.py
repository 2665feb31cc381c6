"""Domains: states, uniform draws, membership and dequantisation of every kind of row."""

import dataclasses
import math

import pytest
import scipy.stats
import torch

from skebm.base import Binary, Categorical, Domain, Mixed, Real
from tests.support.discovery import without_case
from tests.support.oracle import DOUBLE, P_FLOOR, chi_square

NAN = math.nan

# Discrete domains with their number of states, spelled out.
DISCRETE = {
    "binary": (Binary((5,)), 32),
    "binary image": (Binary((2, 3)), 64),
    "categorical": (Categorical((3, 1, 2, 4)), 24),
    "mixed": (Mixed((Categorical((3,)), Binary((2,)), Categorical((2, 2)))), 48),
    "mixed image": (Mixed((Binary((2, 2)), Categorical((3,)))), 48),
    "mixed in mixed": (Mixed((Mixed((Binary((1,)), Categorical((3,)))), Binary((2,)))), 24),
}
CONTINUOUS = {
    "real": Real((3,)),
    "real image": Real((2, 2)),
    "half line": Real((2,), lower=0.0),
    "box": Real((2, 2), lower=-1.0, upper=3.0),
    "mixed with real": Mixed((Binary((2,)), Real((2,), -1.0, 3.0))),
}
ALL = {name: domain for name, (domain, _) in DISCRETE.items()} | CONTINUOUS


def discrete(test):
    return pytest.mark.parametrize(
        ("domain", "count"), DISCRETE.values(), ids=[name.replace(" ", "-") for name in DISCRETE]
    )(test)


def each(domains):
    ids = [name.replace(" ", "-") for name in domains]
    return pytest.mark.parametrize("domain", domains.values(), ids=ids)


def all_states(domain, **kwargs):
    return torch.cat(list(domain.enumerate(**kwargs)))


def test_every_domain_has_a_case():
    assert (
        without_case(
            Domain, {type(domain) for domain in ALL.values()}, "ALL in tests/base/test_domains.py"
        )
        == []
    )


# ------------------------------------------------------------------------------
# States
# ------------------------------------------------------------------------------


ROW_SHAPES = {
    "binary image": (2, 3),
    "categorical": (10,),
    "mixed": (9,),
    "mixed image": (7,),
    "real image": (2, 2),
    "mixed with real": (4,),
}


@pytest.mark.parametrize("name", ROW_SHAPES)
def test_row_shape_counts_the_entries_of_a_row(name):
    assert ALL[name].row_shape == ROW_SHAPES[name]
    assert ALL[name].n_columns == math.prod(ROW_SHAPES[name])


@discrete
def test_states_have_the_shape_of_a_row(domain, count):
    for chunk in (1, 100):
        for states in domain.enumerate(chunk):
            assert states.shape[1:] == domain.row_shape


@discrete
def test_enumeration_is_complete_and_distinct(domain, count):
    x = all_states(domain)
    assert len(x) == len(x.flatten(1).unique(dim=0)) == count
    assert domain.contains(x).all()
    assert domain.n_states == pytest.approx(count)
    assert domain.log_n_states == pytest.approx(math.log(count))


@discrete
def test_chunks_of_any_size_give_the_same_states(domain, count):
    whole = all_states(domain)
    for chunk in (1, 5, count - 1, count, 10 * count):
        parts = list(domain.enumerate(chunk))
        assert max(len(part) for part in parts) <= chunk
        assert torch.equal(torch.cat(parts), whole)
    start, stop = 3, 11
    part = domain.states(start, stop, dtype=DOUBLE, device="cpu")
    assert torch.equal(part, whole[start:stop])


@discrete
def test_states_have_the_dtype_asked_for(domain, count):
    for dtype in (torch.float32, torch.float64):
        assert all_states(domain, dtype=dtype).dtype == dtype


@pytest.mark.parametrize(
    ("domain", "count"),
    [
        (Binary((61,)), 2**61),
        (Categorical((3,) * 30), 3**30),
        (Mixed((Binary((20,)), Categorical((5,) * 10))), 2**20 * 5**10),
        (Binary((5000,)), math.inf),
    ],
)
def test_large_counts_are_exact(domain, count):
    """A logarithm taken back would lose the last digits, and with them the last states."""
    assert domain.n_states == count
    if math.isfinite(count):
        assert domain.log_n_states == pytest.approx(math.log(count))
    else:
        assert math.isfinite(domain.log_n_states)


@each(CONTINUOUS)
def test_continuous_domains_have_no_states(domain):
    assert domain.n_states == domain.log_n_states == math.inf
    with pytest.raises(ValueError, match="too many states"):
        next(domain.enumerate())
    with pytest.raises(ValueError, match="no states to enumerate"):
        domain.states(0, 1, dtype=DOUBLE, device="cpu")


@each(
    {
        "binary": Binary((62,)),
        "huge": Binary((5000,)),
        "categorical": Categorical((10,) * 19),
        "mixed": Mixed((Binary((40,)), Binary((40,)))),
    }
)
def test_too_many_states_are_refused(domain):
    with pytest.raises(ValueError, match="too many states"):
        next(domain.enumerate())


# ------------------------------------------------------------------------------
# Uniform draws
# ------------------------------------------------------------------------------


@discrete
def test_uniform_draws_are_uniform(domain, count, generator):
    n = 100 * count
    draws = domain.uniform(n, generator, dtype=DOUBLE)
    assert draws.shape == (n, *domain.row_shape)
    assert draws.dtype == DOUBLE
    assert domain.contains(draws).all()
    states = torch.cat([all_states(domain), draws]).flatten(1)
    _, number = states.unique(dim=0, return_inverse=True)
    counts = torch.bincount(number) - 1  # each state is once in front of the draws
    assert chi_square(counts, torch.full((count,), 1 / count, dtype=DOUBLE)) > P_FLOOR


def test_uniform_draws_fill_a_box(generator):
    domain = CONTINUOUS["box"]
    draws = domain.uniform(4000, generator, dtype=DOUBLE)
    assert domain.contains(draws).all()
    for column in draws.flatten(1).t():
        test = scipy.stats.kstest(column.numpy(), "uniform", (domain.lower, 4.0))
        assert test.pvalue > P_FLOOR
    assert torch.corrcoef(draws.flatten(1).t()).triu(1).abs().max() < 5 / 4000**0.5


@each({name: ALL[name] for name in ("real", "half line")} | {"above": Real((2,), upper=1.0)})
def test_uniform_draws_need_a_box(domain, generator):
    with pytest.raises(ValueError, match="lower.*upper"):
        domain.uniform(2, generator, dtype=DOUBLE)


@each({name: domain for name, domain in ALL.items() if name not in ("real", "real image")})
def test_draws_repeat_with_the_seed_and_leave_the_global_one(domain):
    if domain == CONTINUOUS["half line"]:
        domain = Real((2,), 0.0, 1.0)

    def draw(seed):
        return domain.uniform(50, torch.Generator().manual_seed(seed), dtype=DOUBLE)

    before = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------
# Membership
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "row"),
    [
        (Binary((2,)), [0.0, 0.5]),
        (Binary((2,)), [2.0, 0.0]),
        (Binary((2,)), [-1.0, 0.0]),
        (Binary((2,)), [1.0, NAN]),
        (Binary((2, 2)), [[1.0, 0.0], [0.0, 3.0]]),
        (Categorical((2, 3)), [1.0, 0.0, 0.0, 0.0, 0.0]),
        (Categorical((2, 3)), [1.0, 0.0, 1.0, 0.0, 1.0]),
        (Categorical((2, 3)), [1.0, 1.0, 0.0, 0.0, 0.0]),  # the right sum, not the right groups
        (Categorical((2, 3)), [1.0, 0.0, 0.5, 0.5, 0.0]),
        (Categorical((2, 3)), [1.0, 0.0, 2.0, -1.0, 0.0]),
        (Categorical((2, 3)), [1.0, 0.0, NAN, 0.0, 0.0]),
        (Real((2,)), [0.0, NAN]),
        (Real((2,)), [0.0, math.inf]),
        (Real((2,), lower=0.0), [0.0, -0.1]),
        (Real((2,), upper=0.0), [0.0, 0.1]),
        (Real((1, 2), 0.0, 1.0), [[0.5, 1.5]]),
        (Mixed((Binary((1,)), Real((1,), 0.0, 1.0))), [0.5, 0.5]),
        (Mixed((Binary((1,)), Real((1,), 0.0, 1.0))), [1.0, 1.5]),
        (Mixed((Binary((1,)), Real((1,), 0.0, 1.0))), [1.0, NAN]),
        (Mixed((Binary((1,)), Real((1,), 0.0, 1.0))), [NAN, 0.5]),
    ],
)
def test_rows_outside_are_identified(domain, row):
    """One bad row between two good ones is the only one rejected."""
    good = torch.zeros(1, *domain.row_shape, dtype=DOUBLE)
    if isinstance(domain, Categorical):
        good = all_states(domain)[:1]
    bad = torch.tensor([row], dtype=DOUBLE)
    assert domain.contains(torch.cat([good, bad, good])).tolist() == [True, False, True]


def test_the_faces_of_a_box_are_inside():
    assert Real((2,), -1.0, 1.0).contains(torch.tensor([[-1.0, 1.0]])).all()


# ------------------------------------------------------------------------------
# Dequantisation
# ------------------------------------------------------------------------------


def assert_fills_a_unit(noise):
    for column in noise.flatten(1).t():
        assert scipy.stats.kstest(column.numpy(), "uniform").pvalue > P_FLOOR
    assert noise.min() >= 0
    assert noise.max() < 1


@each({name: ALL[name] for name in ("binary", "binary image")})
def test_binary_rows_are_the_floor_of_their_noisy_selves(domain, generator):
    x = domain.uniform(2000, generator, dtype=DOUBLE)
    noisy = domain.dequantise(x, generator)
    assert torch.equal(noisy.floor(), x)
    assert_fills_a_unit(noisy - x)


def test_categories_are_the_floor_of_their_noisy_levels(generator):
    domain = ALL["categorical"]
    x = domain.uniform(2000, generator, dtype=DOUBLE)
    noisy = domain.dequantise(x, generator)
    assert torch.equal(domain.one_hot(noisy.floor().long(), DOUBLE), x)
    assert_fills_a_unit(noisy - noisy.floor())


def test_mixed_rows_are_dequantised_by_part(generator):
    domain = Mixed((Binary((2, 2)), Real((3,), 0.0, 1.0), Categorical((3, 2))))
    x = domain.uniform(2000, generator, dtype=DOUBLE)
    noisy = domain.dequantise(x, generator)
    assert noisy.shape == (2000, 4 + 3 + 2)  # one column for each category
    assert torch.equal(noisy[:, :4].floor(), x[:, :4])
    assert torch.equal(noisy[:, 4:7], x[:, 4:7])
    assert torch.equal(Categorical((3, 2)).one_hot(noisy[:, 7:].floor().long(), DOUBLE), x[:, 7:])
    discrete = torch.cat([noisy[:, :4], noisy[:, 7:]], 1)
    assert_fills_a_unit(discrete - discrete.floor())


def test_real_rows_stay(generator):
    x = torch.randn(5, 3, generator=generator)
    assert torch.equal(Real((3,)).dequantise(x, generator), x)


# ------------------------------------------------------------------------------
# Values
# ------------------------------------------------------------------------------


def test_levels_and_one_hot_are_inverse():
    domain = ALL["categorical"]
    x = all_states(domain)
    levels = domain.levels(x)
    assert torch.equal(domain.one_hot(levels, DOUBLE), x)
    assert (levels >= 0).all()
    assert (levels < torch.tensor(domain.groups)).all()


def test_split_gives_every_part_its_own_rows(generator):
    domain = Mixed((Binary((2, 2)), Categorical((3,)), Real((2,), 5.0, 6.0)))
    x = domain.uniform(7, generator, dtype=DOUBLE)
    blocks = domain.split(x)
    for part, block in zip(domain.parts, blocks, strict=True):
        assert block.shape == (7, *part.row_shape)
        assert part.contains(block).all()
    assert torch.equal(torch.cat([block.flatten(1) for block in blocks], 1), x)


@each(ALL)
def test_domains_are_values(domain):
    """Frozen, hashable, equal to a copy and to no other."""
    copy = dataclasses.replace(domain)
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert [other for other in ALL.values() if other == domain] == [domain]
    field = dataclasses.fields(domain)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(domain, field, None)


def test_domains_of_one_shape_differ_by_kind_and_bounds():
    domains = {Binary((2,)), Real((2,)), Real((2,), 0.0), Real((2,), None, 0.0), Categorical((2,))}
    assert len(domains) == 5
