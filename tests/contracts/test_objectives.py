"""Every objective: its gradients are those of what it says it minimises, scaled as they should."""

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from skebm.base import Batch, Loss, Objective
from skebm.base.objective import weighted_mean
from skebm.distributions import (
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    NormalizingFlow,
    TruncatedGaussian,
)
from skebm.energies import BernoulliDBM, MixedRBM
from skebm.estimators.rbm.gated.family import pair_log_ratios
from skebm.objectives import (
    AdversarialContrast,
    AdversarialJoint,
    AssessedDivergence,
    CenteredObjective,
    Centering,
    ClampedDivergence,
    ClassLikelihood,
    ConditionalDivergence,
    ContrastiveDivergence,
    DenoisingScoreMatching,
    EnergyDiscrepancy,
    EnumeratedLikelihood,
    ExactLikelihood,
    ExactScoreMatching,
    FlowContrastive,
    GivenConditions,
    JointLikelihood,
    LabelDivergence,
    MultiscaleScoreMatching,
    NoiseContrastive,
    ProbabilityFlow,
    PseudoLikelihood,
    RankedConditional,
    RatioMatching,
    Refinement,
    SlicedScoreMatching,
    TemporalDivergence,
)
from skebm.partition.given import frames_log_prob
from skebm.samplers import (
    MALA,
    FromData,
    FromNoise,
    Gibbs,
    GibbsWithGradients,
    Langevin,
    ParallelTempering,
    Persistent,
)
from skebm.training.selection import assess
from tests.support.discovery import without_case
from tests.support.networks import LEVELS, NEURAL, binary, classified, neural, one_hot, walled
from tests.support.objectives import (
    N_CHAINS,
    PENALTIES,
    RBM_CASES,
    D,
    H,
    assert_same,
    autograd,
    data,
    discrete_rows,
    flat,
    gradient,
    later,
    log_weight,
    look,
    machine,
    parameters,
    same,
    uniform,
    weights,
)
from tests.support.oracle import (
    DOUBLE,
    AutogradRBM,
    make_class_rbm,
    make_conditional,
    make_gated,
    make_rbm,
    make_temporal,
    make_tree_rbm,
    seeded,
)
from tests.support.tiers import named, only_full


class Case(NamedTuple):
    """How to make an objective with its energy, rows for it, and what kind it is.

    `fixed` says that the gradient does not depend on the generator, `scalar` that it is the
    gradient of ``forward``, and `penalised` that a part of it does not care for the rows.
    """

    make: Callable[[], Objective]
    rows: Callable[[int], Tensor]
    fixed: bool = False
    scalar: bool = True
    penalised: bool = False


def of_rbm(name, case):
    """The objective plain, with penalties, and centred."""

    def make(**settings):
        return lambda: case.make(make_rbm(D, H), **settings)

    penalties = {"penalty": PENALTIES["all"]}
    centred = {"centered": Centering(0.5)}
    return {
        name: Case(make(), data, case.fixed),
        f"{name} penalised": Case(make(**penalties), data, case.fixed, penalised=True),
        f"{name} centred": Case(make(**centred), data, case.fixed, scalar=False),
        f"{name} centred and penalised": Case(
            make(**centred, **penalties), data, case.fixed, scalar=False, penalised=True
        ),
    }


def of_rbms(cls):
    cases = RBM_CASES[cls]
    return {key: case for name in cases for key, case in of_rbm(name, cases[name]).items()}


def real_rows(n=6):
    return 2 * torch.randn(n, 3, generator=seeded(11), dtype=DOUBLE)


def rows_inside(lower, upper):
    wide = TruncatedGaussian(torch.full((3,), 0.5, dtype=DOUBLE), 2.0, lower, upper)
    return lambda n=6: wide.sample(n, seeded(11))


def on_reals(make, build=neural, **kind):
    return Case(lambda: make(build()), real_rows, **kind)


def inside(make, lower, upper, **kind):
    return Case(lambda: make(walled(3, lower, upper)), rows_inside(lower, upper), **kind)


# A kernel that draws nothing: what is left is the arithmetic of weights and counts.
DESCENT = Langevin(0.05, noise_scale=0.0)
NO_PROPOSALS, WEIGHED = {"n_independence_steps": 0}, {"reweight": True}


def chains_of(policy, energy, steps):
    """Chains that begin at the base of the energy, where there is one, and take three steps."""
    base = {} if policy is FromData else {"initial": energy.base}
    count = {"n_chains": N_CHAINS} if policy is Persistent else {}
    return policy(**{"n_steps": 3} | base | count | (steps or {}))


def sampled(sampler, policy=FromData, steps=None, **settings):
    """Sampled negatives; `steps` are what the policy says of them."""

    def make(energy):
        return ContrastiveDivergence(energy, sampler, chains_of(policy, energy, steps), **settings)

    return make


assess_pairs = functools.partial(assess, pair_log_ratios)


def assessed(energy):
    """Rows of which a part is hidden, judged by a constant."""

    def judge(energy, x, weight, generator):
        return SimpleNamespace(gain=0.5)

    chains = chains_of(Persistent, energy, None)
    return AssessedDivergence(energy, Gibbs(), chains, judge)


def make_dbm():
    base = IndependentBernoulli(torch.full((2,), 0.3, dtype=DOUBLE))
    return BernoulliDBM((2, 3, 2), generator=seeded(), dtype=DOUBLE, base=base)


def dbm_rows(n=6):
    """Bits, and means of hidden units."""
    x = torch.rand(n, 4, generator=seeded(11), dtype=DOUBLE)
    return torch.cat([x[:, :2].round(), x[:, 2:]], 1)


def jointly(sampler, policy=FromData, steps=None, **settings):
    """The same of a classifier; rows without classes, those with them have tests of their own."""

    def make(energy):
        return JointLikelihood(energy, sampler, chains_of(policy, energy, steps), **settings)

    return make


def classes_of_bits():
    """A classification RBM of D bits."""
    return make_class_rbm(IndependentBernoulli(torch.zeros(D, dtype=DOUBLE)))


def with_classes(policy, **settings):
    """A classification RBM; rows without classes."""

    def make(energy):
        return ClassLikelihood(energy, Gibbs(), chains_of(policy, energy, None), **settings)

    return make


def gently(build):
    """Models near their base, to which the rows do not look like a divergence."""

    def make():
        energy = build()
        with torch.no_grad():
            for p in energy.parameters():
                p *= 0.4
        return energy

    return make


def based_rbm():
    energy = make_rbm(D, H)
    energy.base = uniform(energy)
    return energy


def real_rbm(cls=AutogradRBM):
    base = Gaussian(torch.zeros(3, dtype=DOUBLE), 2.0)
    return cls(base, H, generator=seeded(), scale=0.1, dtype=DOUBLE)


def by_chains(make, build=neural, **kind):
    return on_reals(make, gently(build), **kind)


def on_bits(make, build=lambda: binary(d=D), **kind):
    return Case(lambda: make(gently(build)()), data, **kind)


def one_hot_rows(n=6):
    return one_hot().domain.uniform(n, seeded(11), dtype=DOUBLE)


def flow():
    rows = 2 * torch.randn(40, 3, generator=seeded(3), dtype=DOUBLE)
    return NormalizingFlow.fit(rows, flow="maf", n_steps=5, hidden_sizes=(8,))


def on_discrete(cls, name):
    """An objective without samples on discrete energies, alone and penalised."""
    cases = {
        "": Case(lambda: cls(machine("bits")), discrete_rows("bits"), fixed=True),
        " penalised": Case(
            lambda: cls(machine("bits"), l1=0.3, l2=0.4),
            discrete_rows("bits"),
            fixed=True,
            penalised=True,
        ),
        " one-hot": Case(lambda: cls(machine("levels")), discrete_rows("levels"), fixed=True),
        " mixed": Case(lambda: cls(machine("mixed")), discrete_rows("mixed"), fixed=True),
        " of an RBM": Case(lambda: cls(make_rbm(D, H)), data, fixed=True),
        " of an RBM on a tree": Case(lambda: cls(make_tree_rbm(D, H)), data, fixed=True),
        " of a network": Case(lambda: cls(binary(d=D)), data, fixed=True),
        " of a network one-hot": Case(lambda: cls(one_hot()), one_hot_rows, fixed=True),
    }
    return {f"{name}{key}": case for key, case in cases.items()}


def gated_numbers():
    return make_gated(Gaussian(torch.zeros(3, dtype=DOUBLE), 1.0))


def pair_rows(of_bits):
    """Bits, and beside them bits or numbers."""

    def rows(n=6):
        x = torch.rand(n, 4, generator=seeded(11), dtype=DOUBLE).round()
        y = torch.randn(n, 3, generator=seeded(12), dtype=DOUBLE)
        return torch.cat([x, (y > 0).to(DOUBLE) if of_bits else y], 1)

    return rows


def frames_energy():
    return make_temporal(IndependentBernoulli(torch.zeros(3, dtype=DOUBLE)))


def labels_energy():
    """A bit and one of two labels."""
    labels = IndependentCategorical(torch.zeros(2, dtype=DOUBLE), (2,))
    return make_temporal(Columns([IndependentBernoulli(torch.zeros(1, dtype=DOUBLE)), labels]))


def windows(n=6):
    """Two frames of three bits, of which the last two are one of two labels; none is missing."""
    found = torch.rand(n, 2, 4, generator=seeded(11), dtype=DOUBLE).round()
    found[..., 2] = 1 - found[..., 1]
    found[..., -1] = 0
    return found.flatten(1)


JITTER = torch.tensor([0.3, 0.0, 0.1], dtype=DOUBLE)
SIGMA = torch.tensor([0.3, 0.7, 1.1], dtype=DOUBLE)

CASES = {
    ExactLikelihood: of_rbms(ExactLikelihood),
    CenteredObjective: of_rbms(CenteredObjective),
    AssessedDivergence: {"layers": Case(lambda: assessed(make_dbm()), dbm_rows)},
    ContrastiveDivergence: of_rbms(ContrastiveDivergence)
    | {
        # A replay buffer is written in place: see tests/objectives/contrastive/test_divergence.py.
        "sampled from data": by_chains(sampled(MALA(0.3))),
        "sampled from noise": by_chains(sampled(MALA(adapt=True, scale="auto"), FromNoise)),
        "sampled by chains": by_chains(sampled(MALA(adapt=True, scale="dense"), Persistent)),
        "sampled by chains downhill": by_chains(
            sampled(DESCENT, Persistent, NO_PROPOSALS, energy_l2=0.3), fixed=True
        ),
        "sampled by averaged chains": by_chains(sampled(Langevin(0.05, averaged=True), Persistent)),
        "sampled by tempered chains": by_chains(
            sampled(ParallelTempering(3, MALA(0.3)), Persistent)
        ),
        "sampled by weighed chains": by_chains(sampled(MALA(0.3), Persistent, WEIGHED)),
        "sampled for noisy rows": by_chains(sampled(MALA(0.3), Persistent, sigma=SIGMA)),
        "sampled in a box": Case(
            lambda: sampled(Langevin(0.05), Persistent)(gently(lambda: walled(3, 0.0, 1.5))()),
            rows_inside(0.0, 1.5),
        ),
        "sampled of a module": by_chains(sampled(MALA(0.3)), NEURAL["module alone"]),
        "sampled and refined": by_chains(
            sampled(Langevin(0.05), refinement=Refinement(0.7, 0.2)), penalised=True
        ),
        "sampled bits": on_bits(sampled(GibbsWithGradients())),
        "sampled bits by chains": on_bits(sampled(GibbsWithGradients(), Persistent)),
        "sampled bits by weighed chains": on_bits(
            sampled(GibbsWithGradients(), Persistent, WEIGHED)
        ),
        "sampled bits without a base": on_bits(
            sampled(GibbsWithGradients(), Persistent), lambda: binary("none", D)
        ),
        "RBM from noise": Case(
            lambda: sampled(Gibbs(), FromNoise, centering=Centering(0.5))(based_rbm()),
            data,
            scalar=False,
        ),
        "RBM by tempered chains": Case(
            lambda: sampled(ParallelTempering(3), Persistent)(based_rbm()), data
        ),
        "RBM by weighed chains": Case(
            lambda: sampled(Gibbs(), Persistent, WEIGHED)(based_rbm()), data
        ),
        "RBM with proposals": Case(
            lambda: sampled(GibbsWithGradients(), steps={"n_independence_steps": 2})(based_rbm()),
            data,
        ),
        "RBM with squares": Case(
            lambda: sampled(Gibbs(), energy_l2=0.3, penalty=PENALTIES["all"])(based_rbm()),
            data,
            penalised=True,
        ),
        "RBM of numbers from data": Case(lambda: sampled(Gibbs())(real_rbm(MixedRBM)), real_rows),
        "RBM of numbers by autograd": Case(lambda: sampled(Gibbs())(real_rbm()), real_rows),
        "RBM of noisy numbers by autograd": Case(
            lambda: sampled(Gibbs(), Persistent, sigma=SIGMA)(real_rbm()), real_rows
        ),
        "sampled one-hot": Case(
            lambda: sampled(GibbsWithGradients())(one_hot(base=True)), one_hot_rows
        ),
    },
    ExactScoreMatching: {
        "Hyvärinen": on_reals(ExactScoreMatching, fixed=True),
        "Hyvärinen above a wall": inside(ExactScoreMatching, 0.0, None, fixed=True),
        "Hyvärinen in a box": inside(ExactScoreMatching, 0.0, 1.5, fixed=True),
        "Hyvärinen of a module": on_reals(ExactScoreMatching, NEURAL["module"], fixed=True),
        "Hyvärinen jittered": on_reals(lambda e: ExactScoreMatching(e, JITTER)),
    },
    SlicedScoreMatching: {
        "sliced": on_reals(SlicedScoreMatching),
        "sliced by normals": on_reals(lambda e: SlicedScoreMatching(e, 3, "gaussian")),
        "sliced in a box": inside(lambda e: SlicedScoreMatching(e, 2, jitter=JITTER), 0.0, 1.5),
        "sliced on a mixture": on_reals(SlicedScoreMatching, NEURAL["on a mixture"]),
        "sliced reconstruction": on_reals(SlicedScoreMatching, NEURAL["reconstruction"]),
    },
    DenoisingScoreMatching: {
        "denoising": on_reals(lambda e: DenoisingScoreMatching(e, 0.5)),
        "denoising by column": on_reals(lambda e: DenoisingScoreMatching(e, SIGMA)),
        "denoising of a module": on_reals(
            lambda e: DenoisingScoreMatching(e, SIGMA), NEURAL["module alone"]
        ),
    },
    MultiscaleScoreMatching: {
        "multiscale": on_reals(lambda e: MultiscaleScoreMatching(e, *LEVELS), NEURAL["levels"]),
        "multiscale alone": on_reals(
            lambda e: MultiscaleScoreMatching(e, *LEVELS), NEURAL["levels alone"]
        ),
    },
    EnergyDiscrepancy: {
        "discrepancy": on_reals(lambda e: EnergyDiscrepancy(e, 0.5)),
        "discrepancy by column": on_reals(lambda e: EnergyDiscrepancy(e, SIGMA, n_negatives=3)),
        "discrepancy of a module": on_reals(
            lambda e: EnergyDiscrepancy(e, 0.5, stabiliser=0.0), NEURAL["module alone"]
        ),
        "discrepancy on a mixture": on_reals(
            lambda e: EnergyDiscrepancy(e, 0.5), NEURAL["on a mixture"]
        ),
        "discrepancy of bits": Case(lambda: EnergyDiscrepancy(make_rbm(D, H), 0.2), data),
    },
    NoiseContrastive: {
        "noise contrastive": on_reals(lambda e: NoiseContrastive(e, e.base)),
        "noise contrastive with noisy rows": on_reals(
            lambda e: NoiseContrastive(e, e.base, noise_ratio=3.0, sigma=SIGMA)
        ),
        "noise contrastive ranked": on_reals(lambda e: NoiseContrastive(e, e.base, form="ranking")),
        "noise contrastive of other noise": on_reals(
            lambda e: NoiseContrastive(e, Gaussian(torch.zeros(3, dtype=DOUBLE), 2.0)),
            NEURAL["on a mixture"],
        ),
        "noise contrastive of a module": on_reals(
            lambda e: NoiseContrastive(e, Gaussian(torch.zeros(3, dtype=DOUBLE), 2.0)),
            NEURAL["module alone"],
        ),
        "noise contrastive by bridges": on_reals(
            lambda e: NoiseContrastive(e, e.base, noise_ratio=2.0, sigma=SIGMA),
            NEURAL["telescope"],
        ),
        "noise contrastive bits": Case(
            lambda: NoiseContrastive(make_rbm(D, H), uniform(make_rbm(D, H))), data
        ),
    },
    FlowContrastive: {
        "flow contrastive": on_reals(lambda e: FlowContrastive(e, flow())),
        "flow contrastive with noisy rows": on_reals(
            lambda e: FlowContrastive(e, flow(), sigma=SIGMA), NEURAL["on a mixture"]
        ),
    },
    PseudoLikelihood: on_discrete(PseudoLikelihood, "pseudo-likelihood"),
    RatioMatching: on_discrete(RatioMatching, "ratio matching"),
    ProbabilityFlow: on_discrete(ProbabilityFlow, "probability flow"),
    EnumeratedLikelihood: on_discrete(EnumeratedLikelihood, "enumerated"),
    ClassLikelihood: {
        "classes": on_bits(with_classes(FromData), classes_of_bits),
        "classes by chains": on_bits(
            with_classes(Persistent, generative_weight=0.3, centering=Centering()),
            classes_of_bits,
            scalar=False,
        ),
    },
    ConditionalDivergence: {
        "pairs": Case(
            lambda: ConditionalDivergence(gently(make_gated)(), assess=assess_pairs),
            pair_rows(True),
        ),
        "pairs of numbers": Case(
            lambda: ConditionalDivergence(gently(gated_numbers)(), 2, assess_pairs),
            pair_rows(False),
        ),
    },
    GivenConditions: {
        "denoising given conditions": Case(
            lambda: GivenConditions(
                make_conditional(1, 2), functools.partial(DenoisingScoreMatching, sigma=0.5)
            ),
            real_rows,
        )
    },
    RankedConditional: {
        "ranked given conditions": Case(
            lambda: RankedConditional(make_conditional(1, 2), 4), real_rows
        )
    },
    ClampedDivergence: {
        "chains given conditions": Case(
            lambda: ClampedDivergence(make_conditional(1, 2), 2, 4), real_rows
        )
    },
    TemporalDivergence: {
        "frames": Case(
            lambda: TemporalDivergence(frames_energy(), "exact", 1, 1, 6, frames_log_prob),
            windows,
            fixed=True,
        ),
        "frames by chains": Case(
            lambda: TemporalDivergence(frames_energy(), "cd", 2, 1, 6, frames_log_prob), windows
        ),
    },
    LabelDivergence: {
        "labels": Case(
            lambda: LabelDivergence(labels_energy(), 2, 1, 0.0, "cd", 1, 1, 6), windows, fixed=True
        ),
        "frames and labels": Case(
            lambda: LabelDivergence(labels_energy(), 2, 1, 0.3, "cd", 2, 1, 6), windows
        ),
    },
    AdversarialContrast: {
        "adversarial": on_reals(lambda e: AdversarialContrast(e, n_steps=3)),
        "adversarial without steps": on_reals(
            lambda e: AdversarialContrast(e, n_steps=0, sigma=SIGMA, energy_l2=0.3),
            NEURAL["on a mixture"],
        ),
        "adversarial in a box": inside(lambda e: AdversarialContrast(e, n_steps=3), 0.0, 1.5),
        "adversarial from rows": on_reals(
            lambda e: AdversarialContrast(e, n_steps=2, start=real_rows(9)), NEURAL["module alone"]
        ),
    },
    AdversarialJoint: {
        "adversarial joint": on_reals(lambda e: AdversarialJoint(e, n_steps=3), classified),
        "adversarial joint of noisy rows": on_reals(
            lambda e: AdversarialJoint(e, generative_weight=0.3, sigma=SIGMA), classified
        ),
    },
    JointLikelihood: {
        "joint": by_chains(jointly(MALA(0.3)), classified),
        "joint by chains": by_chains(
            jointly(MALA(0.3), Persistent, sigma=SIGMA, generative_weight=0.3), classified
        ),
        "joint as one": by_chains(jointly(MALA(0.3), form="joint"), classified),
        "joint penalised": by_chains(
            jointly(DESCENT, Persistent, NO_PROPOSALS, energy_l2=0.3),
            classified,
            fixed=True,
        ),
    },
}
ALL = {name: case for cases in CASES.values() for name, case in cases.items()}
LEADS = [name for cases in CASES.values() for name in list(cases)[:2]]  # of each class


# What does not depend on the settings of an objective.
lead = pytest.mark.parametrize("case", named(LEADS, ALL), indirect=True)


def those(**kind):
    """Cases of a kind, of which two of each class are in the first tier."""
    cases = {n: c for n, c in ALL.items() if all(getattr(c, k) == v for k, v in kind.items())}
    return named([name for name in LEADS if name in cases], cases)


@pytest.fixture(params=named(LEADS, ALL))
def case(request):
    return ALL[request.param]


def test_every_objective_has_a_case():
    missing = without_case(Objective, CASES, "CASES in tests/contracts/test_objectives.py")
    assert not missing, "\n".join(missing)


# ------------------------------------------------------------------------------
# gradients() and forward() agree
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.scalar])
@pytest.mark.parametrize(
    ("started", "kind"),
    [
        ("fresh", None),
        ("running", "light"),
        only_full("fresh", "of mean 1"),
        only_full("fresh", "light"),
        only_full("running", None),
        only_full("running", "of mean 1"),
    ],
)
def test_gradients_are_those_of_forward(name, kind, started):
    objective, x = ALL[name].make(), ALL[name].rows()
    state = objective.start(Batch(x), seeded(1)) if started == "fresh" else later(objective, x)
    batch = Batch(x, weight=weights(kind))
    grads, loss = gradient(objective, batch, state, seed=5)
    expected = autograd(lambda _: objective(batch, state, seeded(5)).value, objective.energy)
    assert_same(grads, expected)
    if loss.value is not None:  # a line search looks at the value, too
        torch.testing.assert_close(loss.value, objective(batch, state, seeded(5)).value.detach())


def test_every_parameter_gets_a_gradient(case):
    objective, x = case.make(), case.rows(5)
    assert {id(p) for p in objective.energy.parameters()} <= {id(p) for p in objective.parameters()}
    for state in (objective.start(Batch(x), seeded(1)), later(objective, x)):
        gradient(objective, Batch(x), state)
        for name, p in objective.named_parameters():
            assert p.grad.shape == p.shape
            assert p.grad.dtype == p.dtype
            assert torch.isfinite(p.grad).all(), name
            assert not p.numel() or (p.grad != 0).any(), name
            assert not p.grad.requires_grad


def test_gradients_replace_what_was_there(case):
    objective, x = case.make(), case.rows()
    state = objective.start(Batch(x), seeded(1))
    once, _ = gradient(objective, Batch(x), state)
    with torch.no_grad():
        objective.gradients(Batch(x), state, seeded(0))
    assert_same({name: p.grad for name, p in parameters(objective.energy).items()}, once)


def test_gradients_leave_rows_parameters_and_the_global_generator_alone(case):
    objective, x, w = case.make(), case.rows(), weights("of mean 1")
    kept = x.clone(), w.clone()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    global_state = torch.get_rng_state()
    state = objective.start(Batch(x), seeded(1))
    gradient(objective, Batch(x, weight=w), state)
    assert torch.equal(x, kept[0])
    assert torch.equal(w, kept[1])
    assert_same(objective.state_dict(), before, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), global_state)


def test_the_generator_is_the_only_randomness(case):
    objective, x = case.make(), case.rows(40)
    state = objective.start(Batch(x), seeded(1))
    first, _ = gradient(objective, Batch(x), state, seed=5)
    torch.manual_seed(99)
    second, _ = gradient(objective, Batch(x), state, seed=5)
    other, _ = gradient(objective, Batch(x), state, seed=6)
    assert_same(first, second, atol=0, rtol=0)
    assert case.fixed == torch.equal(flat(first), flat(other))


@pytest.mark.parametrize("name", those(fixed=True))
def test_single_precision_gradients_are_close(name):
    objective, x = ALL[name].make(), ALL[name].rows()
    single = copy.deepcopy(objective).float()
    state = objective.start(Batch(x), seeded(1))
    packed = {k: None if v is None else v.float() for k, v in objective.pack(state).items()}
    started = single.unpack(packed)
    if started is None:
        started = single.start(Batch(x.float()), seeded(1))
    grads, _ = gradient(objective, Batch(x), state)
    rough, _ = gradient(single, Batch(x.float()), started)
    assert {g.dtype for g in rough.values()} == {torch.float32}
    assert_same({k: g.double() for k, g in rough.items()}, grads, atol=2e-5, rtol=1e-5)


# ------------------------------------------------------------------------------
# Weights and counts
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", those(fixed=True))
def test_a_short_batch_counts_for_itself(name):
    objective, x = ALL[name].make(), ALL[name].rows(3)
    state = objective.start(Batch(x), seeded(1))
    short, _ = gradient(objective, Batch(x), state)
    full, _ = gradient(objective, Batch(x.repeat(4, 1)), state)
    assert_same(short, full)


@pytest.mark.parametrize("name", those(fixed=True))
def test_integer_weights_are_repeated_rows(name):
    objective, x, w = ALL[name].make(), ALL[name].rows(4), torch.tensor([1, 3, 0, 2])
    state = objective.start(Batch(x), seeded(1))
    many, few = Batch(x.repeat_interleave(w, 0)), Batch(x, weight=w / w.to(DOUBLE).mean())
    repeated, after_many = gradient(objective, many, state)
    weighted, after_few = gradient(objective, few, state)
    assert_same(weighted, repeated)
    packed, expected = objective.pack(after_few.state), objective.pack(after_many.state)
    for key, value in packed.items():
        torch.testing.assert_close(value, expected[key], equal_nan=True)
    held_out = [objective.validation_loss(batch, state, seeded(1)) for batch in (many, few)]
    torch.testing.assert_close(*held_out)


def test_equal_weights_are_no_weights(case):
    objective, x = case.make(), case.rows()
    state = objective.start(Batch(x), seeded(1))
    plain, _ = gradient(objective, Batch(x), state)
    weighted, _ = gradient(objective, Batch(x, weight=torch.ones(6, dtype=DOUBLE)), state)
    assert_same(weighted, plain)


@pytest.mark.parametrize("name", those(penalised=False))
def test_a_batch_pulls_with_its_weight(name):
    """Twice the weight, twice the gradient: a heavy batch of a fit is not normalised away."""
    objective, x, w = ALL[name].make(), ALL[name].rows(), weights("of mean 1")
    if not ALL[name].scalar:
        objective.centering.rate = 0.0  # offsets drift faster under more weight
    state = objective.start(Batch(x), seeded(1))
    once, _ = gradient(objective, Batch(x, weight=w), state)
    twice, _ = gradient(objective, Batch(x, weight=2 * w), state)
    assert_same(twice, {name: 2 * grad for name, grad in once.items()})


@pytest.mark.parametrize("name", those(penalised=False))
def test_a_row_pulls_with_its_weight(name):
    """Rows under the same noise: gradients are linear in the weights."""
    objective, x = ALL[name].make(), ALL[name].rows()
    if not ALL[name].scalar:
        objective.centering.rate = 0.0
    state = objective.start(Batch(x), seeded(1))
    one, other = weights("of mean 1"), weights("heavy").flip(0)
    found = [gradient(objective, Batch(x, weight=w), state)[0] for w in (one, other, one + other)]
    assert_same(found[2], {name: found[0][name] + found[1][name] for name in found[2]})


@pytest.mark.parametrize("name", those(penalised=False))
def test_a_batch_without_weight_does_not_pull(name):
    objective, x = ALL[name].make(), ALL[name].rows()
    batch = Batch(x, weight=torch.zeros(6, dtype=DOUBLE))
    state = objective.start(batch, seeded(1))
    grads, loss = gradient(objective, batch, state)
    for grad in grads.values():
        torch.testing.assert_close(grad, torch.zeros_like(grad))
    for value in objective.pack(loss.state).values():
        assert value is None or torch.isfinite(value).all()
    assert objective.divergence_reason(look(objective, batch, loss.state)) is None
    assert torch.isfinite(objective.validation_loss(batch, loss.state, seeded(0)))


def test_a_weighted_mean_repeats_rows():
    values, weight = torch.tensor([1.0, 5.0, 7.0]), torch.tensor([2.0, 0.0, 1.0])
    assert weighted_mean(values, weight).item() == pytest.approx((1 + 1 + 7) / 3)
    assert weighted_mean(values, 9 * weight).item() == pytest.approx((1 + 1 + 7) / 3)
    assert weighted_mean(values, None).item() == pytest.approx(13 / 3)
    assert torch.isfinite(weighted_mean(values, 0 * weight))


# ------------------------------------------------------------------------------
# State that is stored
# ------------------------------------------------------------------------------


@lead
@pytest.mark.parametrize("n_batches", [0, 2])
def test_a_stored_state_goes_on_as_if_nothing_had_happened(case, n_batches):
    objective, x = case.make(), case.rows()
    state = later(objective, x, n_batches)
    packed = objective.pack(state)
    assert all(value is None or isinstance(value, torch.Tensor) for value in packed.values())
    again = objective.unpack(packed)
    if again is None:  # allowed where a fresh state is the same: it then holds nothing
        assert not any(value is not None for value in packed.values())
        again = objective.start(Batch(x), seeded(1))
    assert same(state, again)
    first, one = gradient(objective, Batch(x), state, seed=5)
    second, two = gradient(objective, Batch(x), again, seed=5)
    assert_same(second, first, atol=0, rtol=0)
    assert same(one.state, two.state)


def test_no_state_can_be_stored(case):
    """A net may be stored before its first batch."""
    objective = case.make()
    again = objective.unpack(objective.pack(None))
    assert again is None or same(again, objective.start(Batch(case.rows()), seeded(1)))


@lead
def test_an_objective_can_be_copied_in_the_midst_of_training(case):
    objective, x = case.make(), case.rows()
    state = later(objective, x)
    twin = copy.deepcopy(objective)
    assert twin.energy is not objective.energy
    first, _ = gradient(objective, Batch(x), state, seed=5)
    second, _ = gradient(twin, Batch(x), state, seed=5)
    assert_same(second, first, atol=0, rtol=0)


# ------------------------------------------------------------------------------
# Monitor, held-out score, divergence
# ------------------------------------------------------------------------------


@lead
@pytest.mark.parametrize("training", [True, only_full(False)])
def test_looking_changes_nothing(case, training):
    objective, x = case.make().train(training), case.rows()
    state = later(objective, x)
    kept = copy.deepcopy(state)
    grads, _ = gradient(objective, Batch(x), state, seed=5)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    global_state = torch.get_rng_state()
    for look_at in (objective.monitor, objective.validation_loss):
        found = look_at(Batch(x), state, seeded(0))
        for value in found.values() if isinstance(found, dict) else [found]:
            assert not value.requires_grad
    assert same(state, kept)
    assert_same(objective.state_dict(), before, atol=0, rtol=0)
    after = {name: p.grad for name, p in parameters(objective.energy).items()}
    assert_same(after, grads, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert {module.training for module in objective.modules()} == {training}
    assert_same(gradient(objective, Batch(x), state, seed=5)[0], grads, atol=0, rtol=0)


@pytest.mark.parametrize("name", those(fixed=True))
def test_rows_without_weight_do_not_show(name):
    """Training does not see them; that they are unlikely must not look like a divergence."""
    objective, x = ALL[name].make(), ALL[name].rows(12)
    state = objective.start(Batch(x), seeded(1))
    w = torch.cat([torch.ones(6, dtype=DOUBLE), torch.zeros(6, dtype=DOUBLE)])
    alone, together = Batch(x[:6], weight=w[:6]), Batch(x, weight=w)
    assert look(objective, together, state) == pytest.approx(look(objective, alone, state))
    found = [
        objective.validation_loss(batch, state, seeded(0)).item() for batch in (alone, together)
    ]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("name", those(penalised=False))
def test_a_heavy_batch_is_no_divergence(name):
    """The last, short batch of an epoch may hold the heaviest rows of a healthy fit."""
    objective, x = ALL[name].make(), ALL[name].rows()
    state = later(objective, x)
    light = look(objective, Batch(x), state)
    heavy = look(objective, Batch(x, weight=torch.full((6,), 10.0, dtype=DOUBLE)), state)
    assert heavy == pytest.approx(light)
    assert objective.divergence_reason(light) is None
    assert objective.divergence_reason(heavy) is None


@pytest.mark.parametrize("name", those(penalised=False))
def test_numbers_that_are_not_finite_are_a_divergence(name):
    objective, x = ALL[name].make(), ALL[name].rows()
    logs = look(objective, Batch(x), later(objective, x))
    assert "loss" in logs
    assert objective.divergence_reason(logs) is None
    for name in logs:
        for bad in (float("nan"), float("inf"), -float("inf")):
            assert isinstance(objective.divergence_reason(logs | {name: bad}), str), (name, bad)


@lead
@pytest.mark.parametrize("kind", ["heavy", only_full(None), only_full("of mean 1")])
def test_the_held_out_loss_is_a_mean(case, kind):
    """The engine weighs batches by their total weight itself."""
    objective, x, w = case.make(), case.rows(), weights(kind)
    state = later(objective, x)
    value = objective.validation_loss(Batch(x, weight=w), state, seeded(4))
    assert value.shape == ()
    assert torch.equal(value, objective.validation_loss(Batch(x, weight=w), state, seeded(4)))
    if w is not None:
        again = objective.validation_loss(Batch(x, weight=5 * w), state, seeded(4))
        torch.testing.assert_close(again, value)


@pytest.mark.parametrize("name", named(sorted({*LEADS} - {"sliced by normals"})[::3], ALL))
def test_the_held_out_loss_does_not_flicker(name):
    """Other noise moves it by less than half of what it moves the loss of a batch."""
    case = ALL[name]
    objective, x = case.make(), case.rows(20)
    state = later(objective, x)
    held_out, forward = [], []
    for seed in range(30):
        held_out.append(objective.validation_loss(Batch(x), state, seeded(seed)))
        forward.append(objective(Batch(x), state, seeded(seed)).value.detach())
    spread, of_forward = (torch.stack(values).std() for values in (held_out, forward))
    assert spread <= of_forward / 2 + 1e-12
    assert case.fixed == bool(of_forward < 1e-12)


# ------------------------------------------------------------------------------
# What an objective that writes no more than forward() gets
# ------------------------------------------------------------------------------


class MeanEnergy(Objective):
    """The mean energy of the batch."""

    def __init__(self, energy):
        super().__init__()
        self.energy = energy

    def forward(self, batch, state, generator):
        value = weighted_mean(self.energy(batch.x), batch.weight)
        return Loss(value, state, {"energy_gap": value.detach()})


def test_a_plain_objective_is_differentiated():
    energy = make_rbm(D, H)
    objective, x, w = MeanEnergy(energy), data(), weights("heavy")
    batch, state = Batch(x, weight=w), objective.start(Batch(x), seeded())
    expected = autograd(lambda e: -(w * log_weight(e, x)).sum() / w.sum(), energy)
    for _ in range(2):  # the second does not add to the first
        with torch.no_grad():
            loss = objective.gradients(batch, state, seeded())
        assert_same({name: p.grad for name, p in parameters(energy).items()}, expected)
    assert objective.unpack(objective.pack(loss.state)) is None
    logs = look(objective, batch, state)
    value = -(w @ log_weight(energy, x) / w.sum()).item()
    assert logs == pytest.approx({"loss": value, "energy_gap": value})
    assert objective.validation_loss(batch, state, seeded()).item() == pytest.approx(value)
    assert objective.divergence_reason(logs) is None
    assert "energy_gap" in objective.divergence_reason(logs | {"energy_gap": float("nan")})
    assert objective.work(20) == pytest.approx(2 * objective.work(10))
