"""Normalizing flows: invertible networks with exact densities."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Real
from skebm.base.processes import own_modes, seed_modules
from skebm.base.sampler import number_in, whole_number, whole_numbers
from skebm.base.torchtools import adamw
from skebm.distributions._fitting import (
    CHUNK,
    check_sigma,
    map_chunks,
    moments,
    positive,
    positive_weight_rows,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution

FLOWS = ("maf", "nsf", "coupling")

# Values that a spline of eight bins computes for an entry of a row, by which chunks are sized.
PER_ENTRY = 200
# Fewest rows of which some are held out, and the most steps with fewer rows.
MIN_ROWS_TO_SPLIT, FEW_STEPS = 50, 50
# Least number of steps between two evaluations on held-out rows.
MIN_CHECK_EVERY = 20
# Norm at which gradients are clipped.
CLIP = 5.0
# Steps in which the learning rate rises, and its last value relative to the largest.
WARM_UP, LAST_RATE = 20, 0.01


class TrainingSettings(NamedTuple):
    """How a flow is trained."""

    learning_rate: float
    weight_decay: float | None
    batch_size: int
    n_steps: int
    n_steps_no_change: int
    validation_fraction: float

    def for_rows(self, n_rows: int) -> TrainingSettings:
        """The settings for a number of rows; `ValueError` for a value out of range."""
        # Number of rows up to which the default weight decay is 1.
        decay_rows = 1500
        if self.weight_decay is None:  # like a prior, it matters less with more rows
            return self._replace(weight_decay=min(1.0, decay_rows / n_rows)).for_rows(n_rows)
        for name in ("batch_size", "n_steps", "n_steps_no_change"):
            whole_number(name, getattr(self, name), 1)
        number_in("learning_rate", self.learning_rate, "[0, inf)")
        number_in("weight_decay", self.weight_decay, "[0, inf)")
        number_in("validation_fraction", self.validation_fraction, "[0, 1)")
        return self


class StandardisedRows(NamedTuple):
    """Standardised rows (n, d), weights of mean 1 (n,), noise levels (d,), and their units."""

    z: Tensor
    weight: Tensor
    noise: Tensor
    centre: Tensor
    scale: Tensor

    def noisy(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Add new noise to rows."""
        if not self.noise.any():
            return rows
        kind: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device}
        return rows + self.noise * torch.randn(rows.shape, generator=generator, **kind)


# ------------------------------------------------------------------------------
# Rows and flows
# ------------------------------------------------------------------------------


def standardise(x: Any, weight: Tensor | None, sigma: Any) -> StandardisedRows:
    """Rows in units of the standard deviations of noisy rows, in their own precision."""
    rows, w = positive_weight_rows(x, weight)
    sigma = check_sigma(sigma, rows)
    mean, variance = moments(rows, w)
    varying = varies(rows, x.dtype)
    variance = torch.where(varying, variance, 0.0) + sigma.square()
    scale = usable_scale(variance, variance > 0)
    # Unit noise where neither rows nor noise vary: the density would degenerate otherwise.
    noise = torch.where(variance > 0, sigma / scale, 1.0)
    z = torch.where(varying, (rows - mean) / scale, 0.0)
    return StandardisedRows(*(t.to(x.dtype) for t in (z, w / w.mean(), noise, mean, scale)))


def config_of_kind(kind: str, n_columns: int, transforms: Any, hidden_sizes: Any) -> dict[str, Any]:
    """The configuration of a named flow in plain values; `ValueError` if it cannot be built."""
    if kind not in FLOWS:
        names = ", ".join(map(repr, FLOWS))
        raise ValueError(f"flow must be one of {names}, or an nn.Module, got {kind!r}.")
    if transforms is None:  # a coupling layer transforms half of the columns only
        transforms = 5 if kind == "coupling" and n_columns > 2 else 3
    whole_number("transforms", transforms, 1)
    sizes = whole_numbers("hidden_sizes", hidden_sizes, 1)
    return {"kind": kind, "transforms": int(transforms), "hidden_sizes": list(sizes)}


def build(config: dict[str, Any], n_columns: int) -> nn.Module:
    """A flow of zuko, with weights drawn from torch's global generator."""
    try:
        import zuko
    except ImportError as error:
        raise ImportError(
            f'The flow {config["kind"]!r} needs zuko: pip install "skebm[flows]".'
        ) from error
    settings = {"transforms": config["transforms"], "hidden_features": config["hidden_sizes"]}
    if config["kind"] == "coupling":
        settings["passes"] = 2
    make = zuko.flows.MAF if config["kind"] == "maf" else zuko.flows.NSF
    flow = make(n_columns, **settings)
    # Factor of the initial weights of the last layers, which makes the maps nearly the identity.
    initial_scale = 0.1
    # Each map starts near the identity, so that the flow starts near a normal distribution.
    for part in flow.transform.transforms:
        last = part.hyper[-1] if n_columns > 1 else part  # one column needs no network
        for p in last.parameters():
            p.data.mul_(initial_scale)
    return flow


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


def train(
    flow: nn.Module,
    rows: StandardisedRows,
    settings: TrainingSettings,
    generator: torch.Generator,
) -> None:
    """Maximise the likelihood of rows, in place, and return to the best weights.

    `FloatingPointError` is raised if training diverges before there are any.
    """
    fit, held_out = _split_rows(rows, settings.validation_fraction, generator)
    monitored = None if held_out is None else _copies(held_out, generator)
    few = held_out is None and settings.validation_fraction > 0
    n_steps = min(settings.n_steps, FEW_STEPS) if few else settings.n_steps
    check_every = max(MIN_CHECK_EVERY, math.ceil(len(fit.z) / settings.batch_size))
    parameters = list(flow.train().requires_grad_(True).parameters())
    decay = settings.weight_decay
    assert decay is not None
    optimizer = adamw(parameters, lr=settings.learning_rate, weight_decay=decay)
    batches = _batches(fit, settings.batch_size, generator)
    best, best_at, kept = -math.inf, 0, None
    for step in range(1, n_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _rate(step, n_steps)
        batch = next(batches)
        # Not divided by the total weight of the batch, which would favour rows in light batches.
        loss = -(batch[1] * flow().log_prob(batch[0])).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        if step % check_every and step < n_steps:
            continue
        value = _mean_log_prob(flow, *(batch if monitored is None else monitored))
        if not math.isfinite(value):
            break
        # Without held-out rows the last weights with a finite likelihood are kept.
        if monitored is None or value > best:
            best, best_at = value, step
            kept = {name: weight.clone() for name, weight in flow.state_dict().items()}
        elif step - best_at >= max(settings.n_steps_no_change, check_every):
            break
    if kept is None:
        raise FloatingPointError(
            f"The likelihood of the flow is not finite after {step} steps: lower learning_rate, "
            "add noise to columns that are determined by others, or remove extreme outliers."
        )
    flow.load_state_dict(kept)


def _rate(step: int, n_steps: int) -> float:
    """Factor of the learning rate: linear warm-up, then cosine decay."""
    cosine = (1 + math.cos(math.pi * (step - 1) / n_steps)) / 2
    return min(1.0, step / WARM_UP) * (LAST_RATE + (1 - LAST_RATE) * cosine)


def _mean_log_prob(flow: nn.Module, z: Tensor, weight: Tensor) -> float:
    """Mean log-likelihood of rows in evaluation mode, in nats."""
    flow.eval()
    with torch.no_grad():
        value = map_chunks(lambda rows: flow().log_prob(rows), z, PER_ENTRY * z.shape[1], CHUNK)
    flow.train()
    return float((weight * value).mean())


def _split_rows(
    rows: StandardisedRows, fraction: float, generator: torch.Generator
) -> tuple[StandardisedRows, StandardisedRows | None]:
    """Training rows and held-out rows, None where there are too few."""
    n = len(rows.z)
    n_held_out = int(fraction * n) if n >= MIN_ROWS_TO_SPLIT else 0
    if n_held_out == 0:
        return rows, None
    order = torch.randperm(n, generator=generator, device=generator.device)
    parts = order[n_held_out:], order[:n_held_out]
    fit, held_out = (rows._replace(z=rows.z[i], weight=rows.weight[i]) for i in parts)
    return fit, held_out


def _copies(held_out: StandardisedRows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Held-out rows with fixed noise, several copies where there are few, and their weights."""
    n = len(held_out.z)
    # Held-out rows are repeated with other noise up to this number, and at most so often.
    min_held_out, max_copies = 500, 10
    copies = min(max_copies, math.ceil(min_held_out / n)) if held_out.noise.any() else 1
    z = held_out.noisy(held_out.z.repeat(copies, 1), generator)
    return z, held_out.weight.repeat(copies)


def _batches(
    rows: StandardisedRows, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy rows and weights, epoch after epoch, in batches of even sizes."""
    n = len(rows.z)
    n_batches = math.ceil(n / batch_size)
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device)
        for index in order.tensor_split(n_batches):
            yield rows.noisy(rows.z[index], generator), rows.weight[index]


class NormalizingFlow(Distribution):
    r"""A normalizing flow: an invertible network that maps rows to normal draws.

    .. math:: x = c + s \odot z, \qquad
        \log q(x) = \log p\bigl(T(z)\bigr) + \log\left|\det \frac{\partial T}{\partial z}\right|
        - \sum_i \log s_i

    with T the invertible map of the network and p the standard normal density. Draws and densities
    are exact; there are no exact conditionals, so :meth:`given` raises `TypeError`.

    Parameters
    ----------
    flow : nn.Module
        Called without arguments it returns a distribution of z, rows of shape (d,), with
        ``rsample(shape)`` and ``log_prob(z)``, as the flows of zuko do. It is copied, and the
        parameters of the copy require no gradient.
    n_columns : int
        d.
    centre : Tensor of shape (d,), float or None, default=None
        c, in the units of x; None is zero.
    scale : Tensor of shape (d,), float or None, default=None
        s, in the units of x, positive; None is one.

    Attributes
    ----------
    flow : nn.Module
        The copy, whose weights may be trained: :meth:`log_prob` and :meth:`rsample_and_log_prob`
        are differentiable with respect to those that require a gradient. The distribution has
        its precision.
    centre, scale : Tensor of shape (d,)
        As given, expanded.

    Notes
    -----
    An autoregressive flow evaluates densities in one pass through its networks and draws in d
    passes; a coupling flow is fast at both. Splines transform values within five standard
    deviations; beyond, the tails are normal.

    A named flow made by :meth:`fit` is stored as its name and arrays, and zuko is needed to load
    it; any other module is pickled.

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
        self.flow = _frozen(copy.deepcopy(_check_module(flow)))
        like = next(_reals(self.flow), torch.empty(0)).new_zeros(n_columns)
        self.centre = like if centre is None else _finite(centre, like)
        self.scale = like + 1 if scale is None else positive(scale, like, "scale")
        self._config: dict[str, Any] | None = None
        self._check_shapes()

    def _check_shapes(self) -> None:
        """Raise `ValueError` unless the flow draws rows of d columns and gives their densities."""
        generator = torch.Generator(self.centre.device).manual_seed(0)
        with torch.no_grad(), seed_modules(generator):
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
        r"""Maximise the likelihood of standardised rows with AdamW.

        Centre and scale are the means and standard deviations of the (noisy) columns; a named flow
        starts near the normal distribution with these. If there are 50 rows or more, a tenth of
        them is held out: their likelihood is evaluated after each epoch, but at most every 20
        steps, and the weights with the largest value are kept. If there are fewer, none is held
        out, and at most 50 steps are taken. The learning rate has a cosine decay, and gradients are
        clipped at a norm of 5.

        A column that varies by no more than rounding errors gets the scale 1 and, without `sigma`,
        normal noise of that scale, because its density would degenerate otherwise.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Finite rows; the flow has their precision.
        weight : Tensor of shape (n,) or None, default=None
            Non-negative, not all zero. A row of weight 2 counts as two rows in the mean
            log-likelihood; batches and held-out rows are chosen irrespective of the weights.
        flow : {"nsf", "maf", "coupling"} or nn.Module, default="nsf"
            ``"nsf"``: autoregressive rational-quadratic splines of eight bins; ``"maf"``:
            autoregressive affine maps; ``"coupling"``: splines of one half of the columns
            given the other. These need zuko. A module is copied, and all of its parameters are
            trained from their present values.
        sigma : Tensor of shape (d,) or float, default=0
            Standard deviation, in units of x, of normal noise that is added anew to every batch:
            the flow then models noisy rows.
        transforms : int >= 1 or None, default=None
            Number of maps of which a named flow is composed. None is 3, and 5 for coupling flows of
            more than two columns.
        hidden_sizes : tuple of int, default=(64, 64)
            Units of the hidden layers of each map.
        learning_rate : float >= 0, default=5e-3
            Largest learning rate of the schedule.
        weight_decay : float >= 0 or None, default=None
            Weight decay of AdamW, per step and relative to the learning rate. None is 1 for up to
            1500 rows, and 1500 / n for more.
        batch_size : int >= 1, default=256
            Number of rows for a step.
        n_steps : int >= 1, default=1000
            Largest number of steps.
        n_steps_no_change : int >= 1, default=200
            Number of steps, at least one epoch, without an increase of the held-out likelihood
            after which training stops.
        validation_fraction : float in [0, 1), default=0.1
            Fraction of the rows that is held out; 0 trains on all of them for `n_steps`.
        generator : torch.Generator or None, default=None
            Draws weights, batches and noise; None is one of seed 0.

        Raises
        ------
        FloatingPointError
            Where training diverges before the first evaluation.
        ImportError
            Where a flow is named and zuko is not installed.
        """
        settings = TrainingSettings(
            learning_rate, weight_decay, batch_size, n_steps, n_steps_no_change, validation_fraction
        )
        rows = standardise(x, weight, sigma)
        settings = settings.for_rows(len(rows.z))
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        d, config = x.shape[1], None
        with seed_modules(generator):
            if isinstance(flow, str):
                config = config_of_kind(flow, d, transforms, hidden_sizes)
                module = build(config, d)
            else:
                module = copy.deepcopy(_check_module(flow))
            fitted = cls(module.to(x.device, x.dtype), d, rows.centre, rows.scale)
            train(fitted.flow, rows, settings, generator)
        fitted._config = config
        _frozen(fitted.flow)
        return fitted

    # ---------------------------------------------------------------- the distribution

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        size = max(1, CHUNK // (PER_ENTRY * self.domain.n_columns))
        with torch.no_grad(), seed_modules(self._check_generator(generator)):
            draws = [
                _distribution(self.flow).rsample((min(size, n - start),))
                for start in range(0, n, size)
            ]
        empty = self.centre.new_empty(0, self.domain.n_columns)
        return self.centre + self.scale * torch.cat([empty, *draws])

    def rsample_and_log_prob(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n rows, (n, d), with their log-densities, (n,), cheaper than in two calls.

        Both are differentiable with respect to the weights of the flow that require a gradient.
        """
        with seed_modules(self._check_generator(generator)):
            distribution = _distribution(self.flow)
            if hasattr(distribution, "rsample_and_log_prob"):
                z, value = distribution.rsample_and_log_prob((n,))
            else:
                z = distribution.rsample((n,))
                value = distribution.log_prob(z)
        return self.centre + self.scale * z, value - self.scale.log().sum()

    def log_prob(self, x: Tensor) -> Tensor:
        return self._map_chunks(self._log_prob, x)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of :meth:`log_prob` with respect to x, of the shape of x."""
        return self.log_prob_and_score(x)[1]

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), by one forward and one backward pass.

        It works under ``no_grad``; otherwise the result is differentiable with respect to x and
        weights of the flow that require a gradient.
        """
        return self._map_chunks(self._log_prob_and_score, x)

    def _log_prob(self, x: Tensor) -> Tensor:
        if not len(x):  # the flow cannot reshape an empty tensor
            return x.sum(1)
        # Standardised in the precision of x, as rows may be far from zero.
        z = (x - self.centre.to(x)) / self.scale.to(x)
        value = _distribution(self.flow).log_prob(z.to(self.centre))
        return value.to(x) - self.scale.to(x).log().sum()

    def _log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        needed = x.requires_grad or any(p.requires_grad for p in self.flow.parameters())
        keep = torch.is_grad_enabled() and needed
        with torch.enable_grad():
            at = x if keep and x.requires_grad else x.detach().requires_grad_(True)
            value = self._log_prob(at)
            (score,) = torch.autograd.grad(value.sum(), at, create_graph=keep)
        return (value if keep else value.detach()), score

    def _map_chunks(self, function: Callable[..., Any], x: Tensor) -> Any:
        return map_chunks(function, x, PER_ENTRY * self.domain.n_columns, CHUNK)

    def _check_generator(self, generator: torch.Generator) -> torch.Generator:
        """The generator; `ValueError` unless it is on the device of the flow."""
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
        """A shallow copy; the default would use the stored state and build the flow again."""
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._config is None:
            return state | {"flow": copy.deepcopy(self.flow).cpu()}
        arrays = {k: v.detach().cpu().numpy() for k, v in self.flow.state_dict().items()}
        return state | {"flow": arrays}

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({k: v for k, v in state.items() if k != "flow"})
        flow = state["flow"]
        if self._config is not None:
            with own_modes(), seed_modules(torch.Generator().manual_seed(0)):
                flow = build(self._config, self.domain.n_columns).to(self.centre.dtype)
                flow.load_state_dict({k: torch.tensor(v) for k, v in state["flow"].items()})
        self.flow = _frozen(flow)

    def __repr__(self) -> str:
        name = type(self.flow).__name__ if self._config is None else self._config["kind"]
        return f"NormalizingFlow({name}, {self.domain.n_columns} columns)"


def _reals(flow: nn.Module) -> Any:
    """The floating-point tensors of a flow, which have its device and precision."""
    tensors = (*flow.parameters(), *flow.buffers())
    return (t for t in tensors if t.is_floating_point())


def _frozen(flow: nn.Module) -> nn.Module:
    return flow.eval().requires_grad_(False)


def _check_module(flow: Any) -> nn.Module:
    if not isinstance(flow, nn.Module):
        kind = flow.__name__ if isinstance(flow, type) else type(flow).__name__
        raise TypeError(
            "flow must be an nn.Module that returns a distribution of rows, such as "
            f"zuko.flows.NSF(n_columns), not {kind}."
        )
    return flow


def _distribution(flow: nn.Module) -> Any:
    """The distribution that a flow returns; `TypeError` if it is none."""
    try:
        distribution = flow()
    except TypeError as error:
        raise TypeError(
            f"{type(flow).__name__} cannot be called without arguments: {error}"
        ) from error
    if not all(callable(getattr(distribution, name, None)) for name in ("rsample", "log_prob")):
        raise TypeError(
            f"{type(flow).__name__} must return a distribution with rsample and log_prob, but "
            f"returned {type(distribution).__name__}."
        )
    return distribution


def _finite(value: Any, like: Tensor) -> Tensor:
    """A finite number for each column, in the precision of the flow."""
    numbers = torch.as_tensor(value).detach().to(like)
    if numbers.shape not in ((), like.shape) or not numbers.isfinite().all():
        raise ValueError(f"centre must be finite, a number or one for each of {len(like)} columns.")
    return numbers.expand(like.shape).clone()
