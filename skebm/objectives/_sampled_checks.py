"""Which parts of a negative phase go together."""

from __future__ import annotations

from typing import Any

from skebm.base import Real
from skebm.samplers import AnnealedLangevin


def check_parts(objective: Any) -> None:
    """Raise `ValueError` for parts of a sampled likelihood that do not go together."""
    if objective.noise is not None and not isinstance(objective.energy.domain, Real):
        raise ValueError(f"Normal noise leaves {objective.energy.domain}: pass noise=None.")
    if objective.refinement is not None:
        objective.refinement.check(objective.energy, objective.sampler)
    exact = objective.sampler.exact and objective.sampler.kernel is objective.sampler
    if isinstance(objective.sampler, AnnealedLangevin):
        raise ValueError(
            f"{objective.sampler} comes down levels of noise, which this energy does not know: use "
            "Langevin or MALA."
        )
    start, domain = getattr(objective.chains, "initial", None), objective.energy.domain
    if start is not None and (
        type(start.domain) is not type(domain) or start.domain.row_shape != domain.row_shape
    ):
        raise ValueError(f"Chains start at noise of {start.domain}, and rows are {domain}.")
    if objective.reweight and not objective.persistent:
        raise ValueError(
            f'reweight weighs persistent chains: use init="persistent", not {objective.chains}.'
        )
    if objective.reweight and not exact:
        raise ValueError(
            "reweight follows persistent chains by steps that leave the model invariant: pass "
            f"persistent chains and a sampler such as MALA, not {objective.sampler}."
        )
    if objective.reweight and objective.chains.initial is None:
        raise ValueError(
            "reweight needs a density that chains start from: pass Persistent(noise=...), the "
            "base of the energy."
        )
    if objective.augmentation is not None and objective.persistent:
        raise ValueError(
            "Persistent chains never start anew, so there is nothing to augment: use a replay "
            "buffer, or chains from the data or from noise."
        )
    if not objective.persistent and objective.sampler.kernel is not objective.sampler:
        raise ValueError(
            f"{objective.sampler} is not exact from rows alone: use persistent chains with it."
        )
