"""Detection of divergence, shared by all likelihood-based objectives."""

from __future__ import annotations

import math

from skebm.base import Domain

# Acceptance rate below which the sampler no longer moves.
LEAST_ACCEPTANCE = 0.01
# No finite data set supports log-odds of this size.
LARGEST_WEIGHT = 100.0
# Energy gap between data and chains, in units of one plus the standard deviation of the rows'
# energies.
LARGEST_GAP = 10.0
# Mean log-likelihood ratio to the base, in nats, below which a model has diverged.
LEAST_GAIN = -0.5
# Largest change of the rows' relative energies in a single step, in nats; on finite domains, as a
# fraction of the logarithm of the number of states, but at least one nat. On digits and MNIST the
# likelihoods of restricted Boltzmann machines fell below those of independent columns from 3 % on.
LARGEST_CHANGE, LARGEST_SHARE = 3.0, 0.03
# With fewer rows, the means are too noisy to judge by.
LEAST_ROWS = 10


def why_diverged(
    logs: dict[str, float],
    before: dict[str, float] | None,
    n_rows: int,
    domain: Domain,
    rejects: bool = False,
) -> str | None:
    """Reason why training has diverged according to the monitored values, or None.

    Each of the following suffices:

    1. The sampler accepts less than 1 % of its steps (only if it `rejects` steps that are too
       long).
    2. The largest weight between binary units exceeds 100, which no finite data set supports.
    3. The mean energies of data and chains differ by more than ten times one plus the standard
       deviation of the rows' energies: on real rows, in either direction. On finite domains, where
       the gap also has to exceed the logarithm of the number of states, it counts if the chains
       are above the data, as they are then no samples from the model. An energy gap (or a negative
       log-likelihood) that exceeds that logarithm, and its own value `before`, by more than a nat
       counts, too: the data are then less likely than under the uniform distribution, as samples
       have log p <= 0.
    4. The data are less likely than under the base, by half a nat per row.
    5. A single step has changed the relative energies of the rows by more than chains can follow:
       by 3 nats, on finite domains by 3 % of the logarithm of the number of states.

    Criteria 3 to 5 require at least ten rows. A value that was as bad `before` the epoch does not
    count: a poor start is not divergence.
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
    reason = _energy_gap(logs, before, domain.log_n_states if finite else None)
    if reason is not None:
        return reason
    gain = logs.get("gain_over_base", 0.0)
    if gain < min(before.get("gain_over_base", 0.0), 0.0) + LEAST_GAIN:
        return f"the rows are {-gain:.3g} nats less likely than under the base, on average"
    change = logs.get("energy_change", 0.0)
    limit = max(1.0, LARGEST_SHARE * domain.log_n_states) if finite else LARGEST_CHANGE
    if change > limit:
        return f"one step changed the rows' energies by {change:.3g} nats, more than {limit:.3g}"
    return None


def _energy_gap(
    logs: dict[str, float], before: dict[str, float], log_n_states: float | None
) -> str | None:
    """Reason if the energies of data and chains differ too much, or None; see criterion 3."""
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
