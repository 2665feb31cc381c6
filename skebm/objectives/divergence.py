"""When training has run away: one rule for all objectives of the likelihood."""

from __future__ import annotations

import math

from skebm.base import Domain

# A sampler that accepts less than this has collapsed.
LEAST_ACCEPTANCE = 0.01
# No finite table supports log-odds of this size.
LARGEST_WEIGHT = 100.0
# Energy gap between data and chains, in standard deviations of the rows' energies and a nat more.
LARGEST_GAP = 10.0
# Nats a row that a model may fall below its base, as far as that is known.
LEAST_GAIN = -0.5
# Nats that a single step may change the energies of real rows against each other; of finite ones a
# share of the logarithm of the number of states, but at least one nat. On digits and MNIST the
# likelihoods of restricted Boltzmann machines fell below those of independent columns from 3 % on.
LARGEST_CHANGE, LARGEST_SHARE = 3.0, 0.03
# Fewer rows may just be rare ones.
LEAST_ROWS = 10


def why_diverged(
    logs: dict[str, float],
    before: dict[str, float] | None,
    n_rows: int,
    domain: Domain,
    rejects: bool = False,
) -> str | None:
    """Why training has run away by a monitor's numbers, or None. Each sign alone is a reason.

    1. The sampler accepts less than 1 % of its steps (if it `rejects` those that are too long).
    2. A weight between binary units beyond 100, where no finite table supports one.
    3. Data and chains differ in energy, on real rows either way, by more than ten standard
       deviations of the rows' energies and ten nats more. On finite domains chains that are so far
       above the data, and by more than the logarithm of the number of states, have lost the model;
       data that are above the chains (or have a negative log-likelihood) by more than that
       logarithm, and by a nat more than before, are less likely than under the uniform
       distribution, as samples have log p <= 0.
    4. The data are half a nat a row less likely than under the base.
    5. A single step has changed the energies of rows against each other so much that chains cannot
       follow: by 3 nats, on finite domains by 3 % of the logarithm of the number of states.

    Signs 3 to 5 ask for ten rows at least. What was as bad `before` the epoch is no reason: to
    start badly is not to diverge.
    """
    before = before or {}
    if rejects and logs.get("acceptance", 1.0) < LEAST_ACCEPTANCE:
        return f"the sampler accepts {logs['acceptance']:.2g} of its steps"
    finite = math.isfinite(domain.log_n_states)
    weight = logs.get("largest_weight", 0.0)
    if finite and weight > max(LARGEST_WEIGHT, before.get("largest_weight", 0.0)):
        return f"largest weight {weight:.3g}"
    if n_rows < LEAST_ROWS:
        return None
    reason = _unlike(logs, before, domain.log_n_states if finite else None)
    if reason is not None:
        return reason
    gain = logs.get("gain_over_base", 0.0)
    if gain < min(before.get("gain_over_base", 0.0), 0.0) + LEAST_GAIN:
        return f"{-gain:.3g} nats a row less likely than the base"
    change = logs.get("energy_change", 0.0)
    limit = max(1.0, LARGEST_SHARE * domain.log_n_states) if finite else LARGEST_CHANGE
    if change > limit:
        return f"one step changed the rows' energies by {change:.3g} nats, more than {limit:.3g}"
    return None


def _unlike(
    logs: dict[str, float], before: dict[str, float], log_n_states: float | None
) -> str | None:
    """Why energies of the data and of the chains differ too much, or None; see sign 3."""
    name = "energy_gap" if "energy_gap" in logs else "loss"
    gap, old = logs[name], before.get(name)
    limit = LARGEST_GAP * (1 + logs.get("energy_spread", math.inf))
    if log_n_states is None:
        lost = abs(gap) > max(limit, abs(old or 0.0))
    else:
        lost = -gap > max(limit, log_n_states, -(old or 0.0))
        if gap > max(log_n_states, -math.inf if old is None else old) + 1:
            return f"{name.replace('_', ' ')} {gap:.3g} nats, worse than a uniform distribution"
    return f"energy gap {gap:.3g} nats" if lost else None
