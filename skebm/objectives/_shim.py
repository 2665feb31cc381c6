"""TEMPORARY."""

from sklearn.base import BaseEstimator

from skebm.energies import BernoulliRBM
from skebm.objectives.contrastive import ContrastiveDivergence as OldCD
from skebm.objectives.joint import JointLikelihood as OldJoint
from skebm.objectives.likelihood import ExactLikelihood as OldExact
from skebm.objectives.rbm_gradient import Regulariser
from skebm.objectives.sampled import SampledLikelihood
from skebm.samplers import Persistent


class Penalty(BaseEstimator):
    _parameter_constraints: dict = {}

    def __init__(self, l1=0.0, l2=0.0, sparsity_target=None, sparsity_cost=0.1):
        self.l1, self.l2, self.sparsity_target, self.sparsity_cost = (
            l1,
            l2,
            sparsity_target,
            sparsity_cost,
        )


class Centering(BaseEstimator):
    _parameter_constraints: dict = {}

    def __init__(self, rate=0.01, precondition=0.0):
        self.rate, self.precondition = rate, precondition


def reg(p):
    return (
        Regulariser() if p is None else Regulariser(p.l1, p.l2, p.sparsity_target, p.sparsity_cost)
    )


def ExactLikelihood(energy, *, centering=None, penalty=None):
    return OldExact(energy, centered=centering is not None, regulariser=reg(penalty))


def gen(chains):
    d = {"n_steps": chains.n_steps or 10, "n_jumps": 0}
    d = {
        "n_steps": chains.n_steps or 10,
        "n_independence_steps": 1
        if chains.n_independence_steps is None
        else chains.n_independence_steps,
    }
    return d


def ContrastiveDivergence(
    energy,
    sampler,
    chains,
    *,
    sigma=None,
    anneal=(1.0, 0),
    energy_l2=0.0,
    clip_norm=None,
    refinement=None,
    centering=None,
    penalty=None,
):
    if isinstance(energy, BernoulliRBM):
        p = isinstance(chains, Persistent)
        return OldCD(
            energy,
            sampler,
            energy.base,
            n_steps=chains.n_steps or 1,
            n_chains=chains.n_chains if p else 100,
            persistent=p,
            centered=centering is not None,
            precondition=0.0 if centering is None else centering.precondition,
            reweight=p and chains.reweight,
            regulariser=reg(penalty),
        )
    return SampledLikelihood(
        energy,
        sampler,
        chains,
        noise=sigma,
        anneal=anneal,
        energy_l2=energy_l2,
        clip_norm=clip_norm,
        refinement=refinement,
        augmentation=getattr(chains, "augmentation", None),
        reweight=getattr(chains, "reweight", False),
        **gen(chains),
    )


def JointLikelihood(energy, sampler, chains, *, sigma=None, **kw):
    return OldJoint(energy, sampler, chains, noise=sigma, **kw, **gen(chains))
