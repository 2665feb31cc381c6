"""Maximum likelihood for normalizing flows: standardised rows, minibatches, held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm._steps import adamw
from skebm.noise._fitting import checked_blur, chunked, live_rows, moments, usable_scale, varies

FLOWS = ("maf", "nsf", "coupling")

# Numbers that a spline of eight bins makes of an entry of a row, for chunks of rows.
PER_ENTRY = 200
# Fewest rows of which some are held out; of fewer, steps that are taken.
ENOUGH, FEW_STEPS = 50, 50
# Held-out rows at least, with copies of other noise.
LEAST_HELD_OUT, MOST_COPIES = 500, 10
# Steps between looks at held-out rows, at least, where a pass is shorter.
LOOK = 20
# Largest norm of a gradient.
CLIP = 5.0
# Rows of which the weight decay is one.
DECAY_ROWS = 1500
# Share of their random values that the weights start with which move maps from the identity.
START = 0.1
# Steps in which the learning rate rises, and its last share.
WARM_UP, LAST = 20, 0.01


class Plan(NamedTuple):
    """How a flow is trained; refuses what is out of range."""

    learning_rate: float
    weight_decay: float | None
    batch_size: int
    n_steps: int
    n_steps_no_change: int
    validation_fraction: float

    def resolved(self, n_rows: int) -> Plan:
        """The plan for a table; `ValueError` for what is out of range."""
        if self.weight_decay is None:  # like a prior, it counts less beside more rows
            return self._replace(weight_decay=min(1.0, DECAY_ROWS / n_rows)).resolved(n_rows)
        for name in ("batch_size", "n_steps", "n_steps_no_change"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        for name, below in (
            ("learning_rate", math.inf),
            ("weight_decay", math.inf),
            ("validation_fraction", 1.0),
        ):
            value = getattr(self, name)
            if not isinstance(value, RealNumber) or not 0 <= float(value) < below:
                raise ValueError(f"{name} must be a number in [0, {below:g}), got {value!r}.")
        return self


class Table(NamedTuple):
    """Standardised rows (n, d), weights of mean 1 (n,), noise (d,); and the units of all."""

    z: Tensor
    weight: Tensor
    noise: Tensor
    centre: Tensor
    scale: Tensor

    def noisy(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Rows with fresh noise."""
        if not self.noise.any():
            return rows
        kind: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device}
        return rows + self.noise * torch.randn(rows.shape, generator=generator, **kind)


# ------------------------------------------------------------------------------
# Rows and flows
# ------------------------------------------------------------------------------


def standardised(x: Any, weight: Tensor | None, blur: Any) -> Table:
    """Rows in units of their noisy standard deviations, in their own precision."""
    rows, w = live_rows(x, weight)
    blur = checked_blur(blur, rows)
    mean, variance = moments(rows, w)
    live = varies(variance, mean, x.dtype)
    variance = torch.where(live, variance, 0.0) + blur.square()
    scale = usable_scale(variance, mean, x.dtype)
    # A flow would become a spike where neither rows nor noise vary.
    noise = torch.where(varies(variance, mean, x.dtype), blur / scale, 1.0)
    z = torch.where(live, (rows - mean) / scale, 0.0)
    return Table(*(t.to(x.dtype) for t in (z, w / w.mean(), noise, mean, scale)))


def recipe_of(kind: str, n_columns: int, transforms: Any, hidden_sizes: Any) -> dict[str, Any]:
    """What a named flow is built from, in plain values; refuses what cannot be built."""
    if kind not in FLOWS:
        names = ", ".join(map(repr, FLOWS))
        raise ValueError(f"flow must be one of {names}, or an nn.Module, got {kind!r}.")
    if transforms is None:  # halves of the columns have to tell each other of all of them
        transforms = 5 if kind == "coupling" and n_columns > 2 else 3
    sizes = [hidden_sizes] if isinstance(hidden_sizes, Integral) else list(hidden_sizes)
    for value in (transforms, *sizes):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(
                "transforms and hidden_sizes must be integers of at least 1, got "
                f"{transforms!r} and {hidden_sizes!r}."
            )
    return {"kind": kind, "transforms": int(transforms), "hidden_sizes": [int(s) for s in sizes]}


def build(recipe: dict[str, Any], n_columns: int) -> nn.Module:
    """A flow of zuko, its weights by torch's global generator."""
    try:
        import zuko
    except ImportError as error:
        raise ImportError(
            f'The flow {recipe["kind"]!r} needs zuko: pip install "skebm[flows]".'
        ) from error
    settings = {"transforms": recipe["transforms"], "hidden_features": recipe["hidden_sizes"]}
    if recipe["kind"] == "coupling":
        settings["passes"] = 2
    make = zuko.flows.MAF if recipe["kind"] == "maf" else zuko.flows.NSF
    flow = make(n_columns, **settings)
    # Each map starts near the identity, so that the flow starts near a normal distribution.
    for part in flow.transform.transforms:
        last = part.hyper[-1] if n_columns > 1 else part  # of one column there is no network
        for p in last.parameters():
            p.data.mul_(START)
    return flow


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


def train(flow: nn.Module, table: Table, plan: Plan, generator: torch.Generator) -> None:
    """Maximise the likelihood of the table's rows, in place, and go back to the best weights.

    `FloatingPointError` where it diverges before there are any.
    """
    fit, held_out = _split(table, plan.validation_fraction, generator)
    watched = None if held_out is None else _copies(held_out, generator)
    few = held_out is None and plan.validation_fraction > 0
    n_steps = min(plan.n_steps, FEW_STEPS) if few else plan.n_steps
    look = max(LOOK, math.ceil(len(fit.z) / plan.batch_size))
    parameters = list(flow.train().requires_grad_(True).parameters())
    decay = plan.weight_decay
    assert decay is not None
    optimizer = adamw(parameters, lr=plan.learning_rate, weight_decay=decay)
    batches = _batches(fit, plan.batch_size, generator)
    best, best_at, kept = -math.inf, 0, None
    for step in range(1, n_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * _rate(step, n_steps)
        batch = next(batches)
        # Not divided by the weights of the batch, which would favour rows in light batches.
        loss = -(batch[1] * flow().log_prob(batch[0])).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        if step % look and step < n_steps:
            continue
        found = _held_out(flow, *(batch if watched is None else watched))
        if not math.isfinite(found):
            break
        # Without held-out rows the last weights that are sound are the best.
        if watched is None or found > best:
            best, best_at = found, step
            kept = {name: value.clone() for name, value in flow.state_dict().items()}
        elif step - best_at >= max(plan.n_steps_no_change, look):
            break
    if kept is None:
        raise FloatingPointError(
            f"The likelihood of the flow is not finite after {step} steps: lower learning_rate, "
            "add blur to columns that others determine, or look for rows that lie far out."
        )
    flow.load_state_dict(kept)


def _rate(step: int, n_steps: int) -> float:
    """Share of the learning rate: it rises over a few steps and falls with a cosine."""
    fall = (1 + math.cos(math.pi * (step - 1) / n_steps)) / 2
    return min(1.0, step / WARM_UP) * (LAST + (1 - LAST) * fall)


def _held_out(flow: nn.Module, z: Tensor, weight: Tensor) -> float:
    """Mean log-likelihood of held-out rows."""
    flow.eval()
    with torch.no_grad():
        value = chunked(lambda rows: flow().log_prob(rows), z, PER_ENTRY * z.shape[1])
    flow.train()
    return float((weight * value).mean())


def _split(table: Table, fraction: float, generator: torch.Generator) -> tuple[Table, Table | None]:
    """Rows to fit and rows to watch, None where there are too few."""
    n = len(table.z)
    n_held_out = int(fraction * n) if n >= ENOUGH else 0
    if n_held_out == 0:
        return table, None
    order = torch.randperm(n, generator=generator, device=generator.device)
    parts = order[n_held_out:], order[:n_held_out]
    fit, held_out = (table._replace(z=table.z[i], weight=table.weight[i]) for i in parts)
    return fit, held_out


def _copies(held_out: Table, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Held-out rows with noise that stays, several copies where there are few, and weights."""
    n = len(held_out.z)
    copies = min(MOST_COPIES, math.ceil(LEAST_HELD_OUT / n)) if held_out.noise.any() else 1
    z = held_out.noisy(held_out.z.repeat(copies, 1), generator)
    return z, held_out.weight.repeat(copies)


def _batches(
    table: Table, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy rows and weights, pass after pass, in batches of even sizes."""
    n = len(table.z)
    n_batches = math.ceil(n / batch_size)
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device)
        for rows in order.tensor_split(n_batches):
            yield table.noisy(table.z[rows], generator), table.weight[rows]
