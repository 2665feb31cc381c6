"""Normalizing flows: networks that move normal draws, of exact densities."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Real
from skebm.base.torchtools import adamw, seeded
from skebm.distributions._fitting import (
    CHUNK,
    checked_sigma,
    chunked,
    live_rows,
    moments,
    positive,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution

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


def standardised(x: Any, weight: Tensor | None, sigma: Any) -> Table:
    """Rows in units of their noisy standard deviations, in their own precision."""
    rows, w = live_rows(x, weight)
    sigma = checked_sigma(sigma, rows)
    mean, variance = moments(rows, w)
    live = varies(variance, mean, x.dtype)
    variance = torch.where(live, variance, 0.0) + sigma.square()
    scale = usable_scale(variance, mean, x.dtype)
    # A flow would become a spike where neither rows nor noise vary.
    noise = torch.where(varies(variance, mean, x.dtype), sigma / scale, 1.0)
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
            "add noise to columns that others determine, or look for rows that lie far out."
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


class NormalizingFlow(Distribution):
    r"""The distribution of a row that a flow makes of normal draws, in the units of the columns.

    .. math:: x = c + s \odot z, \qquad
        \log q(x) = \log p\bigl(T(z)\bigr) + \log\left|\det \frac{\partial T}{\partial z}\right|
        - \sum_i \log s_i

    with T an invertible map, which the network is, and p the density of independent standard normal
    numbers. Both are exact; no conditionals are, and :meth:`given` refuses.

    Parameters
    ----------
    flow : nn.Module
        Called without arguments it returns a distribution of z, rows of shape (d,), with
        ``rsample(shape)`` and ``log_prob(z)``, as the flows of zuko do. It is copied, and its
        parameters need no gradient until somebody asks for it.
    n_columns : int
        d.
    centre : Tensor of shape (d,), float or None, default=None
        c; None is zero.
    scale : Tensor of shape (d,), float or None, default=None
        s, positive; None is one.

    Attributes
    ----------
    flow : nn.Module
        The copy, whose weights may be trained: :meth:`log_prob` and :meth:`rsample_and_log_prob`
        are differentiable with respect to those that require a gradient. The distribution has
        its precision.
    centre, scale : Tensor of shape (d,)

    Notes
    -----
    An autoregressive flow gives densities in one pass through its networks and draws in d; of a
    coupling flow both are fast. Splines move what lies within five standard deviations; beyond,
    the tails are those of a normal distribution.

    A flow that :meth:`fit` made by name is stored as its name and arrays, and zuko is needed to
    load it; a module of a user is pickled as it is.

    References
    ----------
    Papamakarios, Pavlakou and Murray (2017), "Masked autoregressive flow for density estimation",
    NeurIPS.

    Durkan, Bekasov, Murray and Papamakarios (2019), "Neural spline flows", NeurIPS.

    Rozet et al. (2022), "Zuko: normalizing flows in PyTorch".

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Gaussian, NormalizingFlow
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(500, 2, generator=generator)
    >>> x[:, 1] += x[:, 0].square()
    >>> q = NormalizingFlow.fit(x, flow="coupling", n_steps=150)
    >>> q
    NormalizingFlow(coupling, 2 columns)
    >>> new = torch.randn(500, 2, generator=generator)
    >>> new[:, 1] += new[:, 0].square()
    >>> bool(q.log_prob(new).mean() > Gaussian.fit(x).log_prob(new).mean() + 0.2)  # nats
    True
    >>> q.sample(3, generator).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        flow: nn.Module,
        n_columns: int,
        centre: Tensor | float | None = None,
        scale: Tensor | float | None = None,
    ):
        self.domain = Real((n_columns,))
        self.flow = _frozen(copy.deepcopy(_checked_module(flow)))
        like = next(_reals(self.flow), torch.empty(0)).new_zeros(n_columns)
        self.centre = like if centre is None else _finite(centre, like)
        self.scale = like + 1 if scale is None else positive(scale, like, "scale")
        self._recipe: dict[str, Any] | None = None
        self._check_rows()

    def _check_rows(self) -> None:
        """Raise unless the flow draws rows of our columns, and knows their densities."""
        generator = torch.Generator(self.centre.device).manual_seed(0)
        with torch.no_grad(), seeded(generator):
            distribution = _distribution(self.flow)
            z = distribution.rsample((2,))
            d = self.domain.n_columns
            if z.shape != (2, d):
                raise ValueError(
                    f"The flow draws two rows of shape {tuple(z.shape)}, but n_columns={d}."
                )
            value = distribution.log_prob(z)
        if value.shape != (2,) or not value.isfinite().all():
            raise ValueError(
                "log_prob of the flow must be one finite number for each of two draws, of shape "
                f"(2,), not {value.tolist()}: an event is a row, not an entry of it."
            )

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weight: Tensor | None = None,
        flow: str | nn.Module = "nsf",
        *,
        sigma: Tensor | float = 0.0,
        transforms: int | None = None,
        hidden_sizes: tuple[int, ...] = (64, 64),
        learning_rate: float = 5e-3,
        weight_decay: float | None = None,
        batch_size: int = 256,
        n_steps: int = 1000,
        n_steps_no_change: int = 200,
        validation_fraction: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> NormalizingFlow:
        r"""Maximise the likelihood of standardised rows by AdamW.

        Centre and scale are the means and standard deviations of the (noisy) columns; a flow that
        is named starts near the normal distribution of these. A tenth of 50 rows or more is held
        out: after each pass over the others, and 20 steps at least, their likelihood is looked at,
        and the weights that they liked best are kept. Of fewer rows none is held out, and 50 steps
        are taken at most. The learning rate falls with a cosine, and norms of gradients are
        clipped at 5.

        A column that does not vary by more than rounding errors gets the scale 1, and where there
        is no `sigma` normal noise of that size, as a flow would become a spike there.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows; the flow has their precision.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero. A row of weight 2 counts as the row twice in the mean that
            is maximised; which rows are in a batch or held out does not depend on weights.
        flow : {"nsf", "maf", "coupling"} or nn.Module, default="nsf"
            ``"nsf"``: autoregressive rational-quadratic splines of eight bins; ``"maf"``:
            autoregressive affine maps; ``"coupling"``: splines of one half of the columns
            given the other. These need zuko. A module is copied, and trained from its weights, all
            of them.
        sigma : Tensor of shape (d,) or float, default=0
            Standard deviation, in units of x, of normal noise that is drawn anew for every batch:
            the flow is then the distribution of noisy rows.
        transforms : int >= 1 or None, default=None
            Maps of a named flow, which are composed. None is 3, and 5 for coupling flows of more
            than two columns.
        hidden_sizes : tuple of int, default=(64, 64)
            Units of the hidden layers in each of them.
        learning_rate : float >= 0, default=5e-3
            At its highest.
        weight_decay : float >= 0 or None, default=None
            Of AdamW, per step and relative to the learning rate. None is 1, and 1500 / n for more
            rows than that.
        batch_size : int >= 1, default=256
        n_steps : int >= 1, default=1000
            At most.
        n_steps_no_change : int >= 1, default=200
            Steps, of a pass at least, without a better likelihood of the held-out rows that end
            training.
        validation_fraction : float in [0, 1), default=0.1
            Share of the rows held out; 0 trains on all of them for `n_steps`.
        generator : torch.Generator or None, default=None
            Draws weights, batches and noise; None is one of seed 0.

        Raises
        ------
        FloatingPointError
            Where training diverges before there are weights worth keeping.
        ImportError
            Where a flow is asked for by name, and zuko is not installed.
        """
        plan = Plan(
            learning_rate, weight_decay, batch_size, n_steps, n_steps_no_change, validation_fraction
        )
        table = standardised(x, weight, sigma)
        plan = plan.resolved(len(table.z))
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        d, recipe = x.shape[1], None
        with seeded(generator):
            if isinstance(flow, str):
                recipe = recipe_of(flow, d, transforms, hidden_sizes)
                module = build(recipe, d)
            else:
                module = copy.deepcopy(_checked_module(flow))
            found = cls(module.to(x.device, x.dtype), d, table.centre, table.scale)
            train(found.flow, table, plan, generator)
        found._recipe = recipe
        _frozen(found.flow)
        return found

    # ---------------------------------------------------------------- the distribution

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        size = max(1, CHUNK // (PER_ENTRY * self.domain.n_columns))
        with torch.no_grad(), seeded(self._checked(generator)):
            draws = [
                _distribution(self.flow).rsample((min(size, n - done),))
                for done in range(0, n, size)
            ]
        none = self.centre.new_empty(0, self.domain.n_columns)
        return self.centre + self.scale * torch.cat([none, *draws])

    def rsample_and_log_prob(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n rows, (n, d), and tell their log-densities, (n,), cheaper than one by one.

        Both are differentiable with respect to the weights of the flow that require a gradient.
        """
        with seeded(self._checked(generator)):
            distribution = _distribution(self.flow)
            if hasattr(distribution, "rsample_and_log_prob"):
                z, value = distribution.rsample_and_log_prob((n,))
            else:
                z = distribution.rsample((n,))
                value = distribution.log_prob(z)
        return self.centre + self.scale * z, value - self.scale.log().sum()

    def log_prob(self, x: Tensor) -> Tensor:
        return self._chunked(self._log_prob, x)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of :meth:`log_prob` with respect to x, of the shape of x."""
        return self.log_prob_and_score(x)[1]

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), by one pass forth and back.

        They work under ``no_grad``, and can be differentiated where x or weights of the flow
        require a gradient.
        """
        return self._chunked(self._log_prob_and_score, x)

    def _log_prob(self, x: Tensor) -> Tensor:
        if not len(x):  # torch cannot reshape what is empty
            return x.sum(1)
        # In the precision of x, as rows may lie far from zero.
        z = (x - self.centre.to(x)) / self.scale.to(x)
        value = _distribution(self.flow).log_prob(z.to(self.centre))
        return value.to(x) - self.scale.to(x).log().sum()

    def _log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wanted = x.requires_grad or any(p.requires_grad for p in self.flow.parameters())
        keep = torch.is_grad_enabled() and wanted
        with torch.enable_grad():
            at = x if keep and x.requires_grad else x.detach().requires_grad_(True)
            value = self._log_prob(at)
            (score,) = torch.autograd.grad(value.sum(), at, create_graph=keep)
        return (value if keep else value.detach()), score

    def _chunked(self, function: Callable[..., Any], x: Tensor) -> Any:
        return chunked(function, x, PER_ENTRY * self.domain.n_columns)

    def _checked(self, generator: torch.Generator) -> torch.Generator:
        """The generator, which must be one of the flow's device, as that is what draws."""
        if generator.device.type != self.centre.device.type:
            raise ValueError(
                f"The flow is on {self.centre.device}, and the generator on {generator.device}."
            )
        return generator

    # ---------------------------------------------------------------- copies

    def to(self, device: torch.device | str, dtype: torch.dtype) -> NormalizingFlow:
        moved = super().to(device, dtype)
        moved.flow = copy.deepcopy(self.flow).to(device, dtype)
        return moved

    def frozen(self) -> NormalizingFlow:
        """A copy whose weights require no gradient."""
        moved = self.to(self.centre.device, self.centre.dtype)
        _frozen(moved.flow)
        return moved

    def __copy__(self) -> NormalizingFlow:
        """Not by way of what is stored, which would build the flow anew."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._recipe is None:
            return state | {"flow": copy.deepcopy(self.flow).cpu()}
        arrays = {k: v.detach().cpu().numpy() for k, v in self.flow.state_dict().items()}
        return state | {"flow": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({k: v for k, v in state.items() if k != "flow"})
        flow = state["flow"]
        if self._recipe is not None:
            with seeded(torch.Generator().manual_seed(0)):
                flow = build(self._recipe, self.domain.n_columns)
            flow.to(self.centre.dtype)
            flow.load_state_dict({k: torch.as_tensor(v) for k, v in state["flow"].items()})
        self.flow = _frozen(flow)

    def __repr__(self) -> str:
        name = type(self.flow).__name__ if self._recipe is None else self._recipe["kind"]
        return f"NormalizingFlow({name}, {self.domain.n_columns} columns)"


def _reals(flow: nn.Module) -> Any:
    """Its floating-point tensors, which say where it lives and in which precision."""
    tensors = (*flow.parameters(), *flow.buffers())
    return (t for t in tensors if t.is_floating_point())


def _frozen(flow: nn.Module) -> nn.Module:
    return flow.eval().requires_grad_(False)


def _checked_module(flow: Any) -> nn.Module:
    if not isinstance(flow, nn.Module):
        kind = flow.__name__ if isinstance(flow, type) else type(flow).__name__
        raise TypeError(
            "flow must be an nn.Module that returns a distribution of rows, such as "
            f"zuko.flows.NSF(n_columns), not {kind}."
        )
    return flow


def _distribution(flow: nn.Module) -> Any:
    """What the flow returns when it is called."""
    try:
        found = flow()
    except TypeError as error:
        raise TypeError(
            f"{type(flow).__name__} cannot be called without arguments: {error}"
        ) from error
    if not all(callable(getattr(found, name, None)) for name in ("rsample", "log_prob")):
        raise TypeError(
            f"{type(flow).__name__} must return a distribution with rsample and log_prob, but "
            f"returned {type(found).__name__}."
        )
    return found


def _finite(value: Any, like: Tensor) -> Tensor:
    """A finite number for each column, in the precision of the flow."""
    found = torch.as_tensor(value).detach().to(like)
    if found.shape not in ((), like.shape) or not found.isfinite().all():
        raise ValueError(f"centre must be finite, a number or one for each of {len(like)} columns.")
    return found.expand(like.shape).clone()
