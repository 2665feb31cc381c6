r"""Neural energies: a network that corrects a tractable base, E(x) = -log q(x) + f(x)."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from skebm.base import Domain, Energy, sampling
from skebm.base.energy import (
    DirectionalDerivatives,
    ValueAndInputGrad,
    autograd_grad,
    second_derivative_of_grad,
    second_derivatives_of,
    value_and_input_grad_of,
)
from skebm.base.processes import seed_modules
from skebm.distributions import Distribution, Gaussian, KernelDensity
from skebm.energies.factory import NetworkOf, Spec, module_of


def build_network(network: Any, spec: Spec) -> nn.Module:
    """Build the network that ``network=`` specifies, on the generator's device.

    Parameters
    ----------
    network : nn.Module, class, callable or object with ``build(spec)``
        A module is copied with its weights. A class or function, or either with arguments in a
        :class:`NetworkOf`, makes a new one.
    spec : Spec
        Shape of the rows, precision and output.

    Returns
    -------
    nn.Module
        From rows (n, ...) to one number per row, (n,), also where the last layer has one unit,
        (n, 1); or to logits, (n, n_classes).

    Raises
    ------
    TypeError
        If a class cannot be made of what is known of the rows, or the result is not a module.
    ValueError
        If it does not accept such rows, its output has another shape or precision, or it cannot
        compute in float64.
    """
    if isinstance(network, nn.Module):
        if any(isinstance(part, torch.jit.ScriptModule) for part in network.modules()):
            raise TypeError(
                "network is a scripted module, which cannot be stored with a model: pass the "
                "module that it was made of."
            )
        built: Any = copy.deepcopy(network)
    elif isinstance(network, NetworkOf):
        built = network.build(spec)
    elif isinstance(network, type) or not hasattr(network, "build"):
        built = NetworkOf(network).build(spec)
    else:
        built = module_of(network.build, spec)
    if not isinstance(built, nn.Module):
        raise TypeError(
            f"network={network!r} built {type(built).__name__}, but must build a torch.nn.Module."
        )
    built = built.to(spec.generator.device, spec.dtype)
    if any(isinstance(p, nn.UninitializedParameter) for p in built.parameters()):  # lazy layers
        with seed_modules(spec.generator):
            _values_at_zeros(built, spec, 2)
    if not any(p.requires_grad for p in built.parameters()):
        if isinstance(built, Energy):
            raise ValueError(
                "network has no weights that are trained: call requires_grad_(True) on it."
            )
        built = UntrainedNetwork(built).to(spec.generator.device, spec.dtype)
    if spec.n_classes is None and _values_at_zeros(built, spec, 2).shape == (2, 1):
        built = OneOutput(built)
    for n in (2, 1):
        _check_output(built, spec, n)
    _check_double(built, spec)
    return built


class UntrainedNetwork(nn.Module):
    """A network without weights that are trained, such as a known energy, which stays as it is.

    Optimizers and gradients need one weight; the one here has no effect.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, *args: Tensor) -> Tensor:
        value: Tensor = self.network(*args)
        if not isinstance(value, Tensor):  # which is refused
            return value
        return value * (1.0 + 0.0 * self.nothing)  # so that gradients by rows have it, too


class OneOutput(nn.Module):
    """A network whose last layer has one unit, (n, 1), as one number per row, (n,)."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, *args: Tensor) -> Tensor:
        """The network's values, (n,)."""
        value: Tensor = self.network(*args)
        return value.squeeze(1)


class Parametrized:
    """A module with parametrizations of torch, such as ``spectral_norm``, that can be pickled.

    torch makes a class for each such part, which pickle cannot find again.
    """

    def __init__(self, module: nn.Module):
        self.module = module

    def build(self, spec: Spec) -> nn.Module:
        """A copy of the module."""
        return build_network(self.module, spec)

    def __getstate__(self) -> dict[str, Any]:
        return {"pickled": _to_bytes(self.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.module = pickle.loads(state["pickled"])


def network_to_state(network: Any) -> Any:
    """The network in a form that can be pickled: itself, or :class:`Parametrized`."""
    if not isinstance(network, nn.Module):
        return network
    if any(parametrize.is_parametrized(part) for part in network.modules()):
        return Parametrized(network)
    return network


def network_from_state(stored: Any) -> Any:
    """Undo :func:`network_to_state`."""
    return stored.module if isinstance(stored, Parametrized) else stored


class _Pickler(pickle.Pickler):
    """A pickler that takes modules with parametrizations."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module) and parametrize.is_parametrized(value):
            state, name = value.__dict__.copy(), "_load_state_dict_pre_hooks"
            # weight_norm adds a local function for weights of torch before 2.0.
            state[name] = type(state[name])(
                (key, hook)
                for key, hook in state[name].items()
                if "_weight_norm_compat_hook" not in repr(getattr(hook, "hook", hook))
            )
            return _module_from_state, (type(value).__bases__[0], state)
        return NotImplemented


def _to_bytes(module: nn.Module) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file).dump(module)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"network cannot be pickled ({error}): define its classes and functions at the top "
            "level of a module, or pass an object with a method build(spec) that makes it."
        ) from error
    return file.getvalue()


def _module_from_state(kind: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    """A module of a class with parametrizations, which `state` holds."""
    module: nn.Module = kind.__new__(kind)
    module.__dict__.update(state)
    parametrize._inject_new_class(module)
    parts = module.parametrizations
    assert isinstance(parts, nn.ModuleDict)
    for name in parts:
        parametrize._inject_property(module, name)
    return module


def _values_at_zeros(network: nn.Module, spec: Spec, n: int) -> Tensor:
    """What the network returns for n rows of zeros; `ValueError` where that is no tensor."""
    x = torch.zeros(n, *spec.shape, dtype=spec.dtype, device=spec.generator.device)
    with sampling(network), torch.no_grad():
        try:
            value = network(x, x.new_zeros(n)) if spec.noise_levels else network(x)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"The network does not take rows of shape {(n, *spec.shape)}"
                f"{' and their noise levels' if spec.noise_levels else ''}: {error}"
            ) from error
    if not isinstance(value, Tensor):
        raise ValueError(
            f"The network must return one number per row, as a tensor of shape ({n},) for {n} "
            f"rows, but returned {type(value).__name__}."
        )
    return value


def _check_output(network: nn.Module, spec: Spec, n: int) -> None:
    """Raise `ValueError` unless the network returns a number, or logits, for each of n rows."""
    value = _values_at_zeros(network, spec, n)
    returned = tuple(value.shape)
    if spec.n_classes is not None:
        if returned != (n, spec.n_classes):
            raise ValueError(
                f"The network must return logits, of shape {(n, spec.n_classes)} for {n} rows and "
                f"{spec.n_classes} classes, but returned {returned}: end it with a layer of "
                f"{spec.n_classes} units."
            )
    elif returned != (n,):
        raise ValueError(
            f"The network must return one number per row, of shape ({n},) or ({n}, 1) for rows of "
            f"shape {(n, *spec.shape)}, but returned {returned}: end it with a layer of one unit."
        )
    if value.dtype != spec.dtype:
        raise ValueError(
            f"The network returned {_bits(value.dtype)} for rows and weights of "
            f"{_bits(spec.dtype)}: {BUFFERS}."
        )


# What makes a network follow its rows from one precision and device to another.
BUFFERS = (
    'write constants as buffers, self.register_buffer("c", c) in its constructor, make new '
    "tensors like its input, x.new_zeros(...), and leave out conversions such as x.float()"
)
# Weights of a network that is tried in double precision; a copy of a larger one takes memory.
MOST_TRIED = 10_000_000


def _bits(dtype: torch.dtype) -> str:
    """Name of a type without its module."""
    return str(dtype).removeprefix("torch.")


def _check_double(network: nn.Module, spec: Spec) -> None:
    """Raise `ValueError` for a network that has no float64 values, which log Z needs."""
    n_weights = sum(p.numel() for p in network.parameters())
    if spec.dtype == torch.float64 or n_weights > MOST_TRIED:
        return
    if spec.generator.device.type == "mps":  # which has no float64
        return
    double, kind = copy.deepcopy(network).double(), spec._replace(dtype=torch.float64)
    try:
        value = _values_at_zeros(double, kind, 2)
        reason = f"returned {_bits(value.dtype)}" if value.dtype != torch.float64 else ""
    except ValueError as error:
        reason = str(error.__cause__)
    if reason:
        raise ValueError(
            f"The network computes in float32 only ({reason}), and log Z is computed in float64: "
            f"{BUFFERS}."
        )


class NeuralEnergy(Energy):
    r"""A network that corrects a base, :math:`E(x) = -\log q(x) + f(x)`.

    With f = 0 the model is the base, which is normalised. If f grows more slowly than
    :math:`-\log q`, as networks of bounded gradient do with a normal base, Z is finite for any
    weights.

    With `noise_levels` the energy is that of noisy rows, conditional on the noise level of each
    row, ``cond`` of shape (n,) in units of x:

    .. math:: E(x, \sigma) = -\log (q * N(0, \sigma^2 I))(x)
        + \tfrac1\sigma f(x / \sqrt{1 + \sigma^2}, \log \sigma) ,

    where q is a normal distribution. With this scaling gradients of f are of order one at all
    levels [1]_. Without ``cond`` the smallest level is used.

    Parameters
    ----------
    network : nn.Module
        From rows to one number per row, (n,).
    domain : Domain
        Domain of flat real, binary or one-hot rows. The network is defined for real numbers, so
        that samplers for discrete rows can use its gradient.
    base : Distribution or None, default=None
        q on the same domain, normalised; None leaves it out.
    image_shape : tuple of int or None, default=None
        Shape in which the network takes rows.
    noise_levels : tuple of float or None, default=None
        Smallest and largest noise level, in units of x.
    ceiling : float or None, default=None
        Largest value of f, without noise levels: larger ones are replaced by it, so that no row is
        made less likely than under q by more than the ceiling and log Z.

    References
    ----------
    .. [1] Karras, Aittala, Aila and Laine (2022), "Elucidating the design space of diffusion-based
       generative models", NeurIPS, section 5.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> network = MLP().build(Spec((2,), torch.Generator().manual_seed(0)))
    >>> energy = NeuralEnergy(network, Real((2,)), Gaussian(torch.zeros(2), 1.0))
    >>> energy(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        network: nn.Module,
        domain: Domain,
        base: Distribution | None = None,
        *,
        image_shape: tuple[int, ...] | None = None,
        noise_levels: tuple[float, float] | None = None,
        ceiling: float | None = None,
    ):
        super().__init__()
        self.network, self.domain, self.base, self.ceiling = network, domain, base, ceiling
        self.image_shape, self.noise_levels = image_shape, noise_levels
        self.has_gradient = bool(getattr(network, "has_gradient", True))
        self.always_proper = base is not None and not self.has_gradient  # f is bounded
        self.noisy_base: NoisyNormal | None = None
        if noise_levels is not None and base is not None:
            if not isinstance(base, Gaussian):
                raise ValueError(
                    f"Noise levels need a normal base, because its noisy rows are normal, not "
                    f"{base!r}."
                )
            self.noisy_base = NoisyNormal(base)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        if self.noise_levels is None:
            value = self.parametric_energy(x)
            return value if self.base is None else value - self.base.log_prob(x)
        sigma, log_sigma, shrink = self._noise_scaling(x, cond)
        value = self.network(self.as_input(x * shrink), log_sigma) / sigma
        return value if self.noisy_base is None else value - self.noisy_base(x, sigma).value

    def parametric_energy(self, x: Tensor) -> Tensor:
        """The part that depends on the weights: f(x), (n,), or E(x) with noise levels."""
        if self.noise_levels is not None:
            return self(x)
        value: Tensor = self.network(self.as_input(x))
        return value if self.ceiling is None else value.clamp(max=self.ceiling)

    def correction(self, x: Tensor) -> Tensor:
        """E(x) + log q(x), (n,): f(x) without noise levels."""
        return self.parametric_energy(x) if self.noise_levels is None else super().correction(x)

    def discontinuities(self, entry: int) -> Tensor:
        """Values of an entry at which the network is not continuous, as sums of trees."""
        found = getattr(self.network, "discontinuities", None)
        return super().discontinuities(entry) if found is None else found(entry)

    def corrects(self, base: Any) -> bool:
        """Whether `base` is this energy's, and f a function of the row alone."""
        return base is not None and base is self.base and self.noise_levels is None

    def correction_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x), (n,), and its gradient, (n, d), without noise levels; detached."""
        with torch.no_grad():
            value, grad = self._correction_and_grad(x)
        return value.detach(), grad.detach()

    def _correction_and_grad(self, x: Tensor) -> ValueAndInputGrad:
        """f(x), (n,), and its gradient, (n, d), which is 0 at the ceiling, without noise levels."""
        value, grad = value_and_input_grad_of(self.network, self.as_input(x))
        grad = grad.reshape(x.shape)
        if self.ceiling is None:
            return ValueAndInputGrad(value, grad)
        above = value > self.ceiling
        return ValueAndInputGrad(
            value.clamp(max=self.ceiling), grad.masked_fill(above[:, None], 0.0)
        )

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        if torch.is_inference_mode_enabled():
            return super().value_and_grad(x, cond)
        with torch.no_grad():
            value, grad = self.value_and_input_grad(x, cond)
        return value.detach(), grad.detach()

    def value_and_input_grad(
        self, x: Tensor, cond: Any = None, without: Tensor | None = None
    ) -> ValueAndInputGrad:
        """Energy (n,) and its gradient (n, d), differentiable with respect to the weights.

        `without` are the centres, (n,), that a kernel density as base leaves out.
        """
        if self.noise_levels is None:
            value, grad = self._correction_and_grad(x)
            if self.base is None:
                return ValueAndInputGrad(value, grad)
            if without is None:
                log_q, score = self.base.log_prob_and_score(x)
            else:
                log_q, score = self._kernels.log_prob_and_score(x, without)
            return ValueAndInputGrad(value - log_q, grad - score)
        sigma, log_sigma, shrink = self._noise_scaling(x, cond)
        value, grad = value_and_input_grad_of(self.network, self.as_input(x * shrink), log_sigma)
        value, grad = value / sigma, grad.reshape(x.shape) * (shrink / sigma[:, None])
        if self.noisy_base is None:
            return ValueAndInputGrad(value, grad)
        log_q, score = self.noisy_base(x, sigma)
        return ValueAndInputGrad(value - log_q, grad - score)

    def input_grad(self, x: Tensor, cond: Any = None, without: Tensor | None = None) -> Tensor:
        """The gradient of :meth:`value_and_input_grad`, without evaluating log q."""
        if self.noise_levels is not None or self.base is None:
            return self.value_and_input_grad(x, cond).grad
        score = self.base.score(x) if without is None else self._kernels.score(x, without)
        return self._correction_and_grad(x).grad - score

    @property
    def _kernels(self) -> KernelDensity:
        """The base, if it is a kernel density; else `TypeError`."""
        if not isinstance(self.base, KernelDensity):
            raise TypeError(
                f"Only a kernel density as base has centres to leave out, not {self.base!r}."
            )
        return self.base

    def second_derivatives(
        self, x: Tensor, directions: Tensor, without: Tensor | None = None
    ) -> DirectionalDerivatives:
        """Gradient (n, d), and the sum of second derivatives along directions, (n,)."""
        base: Any = self.base
        if self.noise_levels is None:
            grad, second = second_derivatives_of(self.network, self.as_input(x), directions)
            grad = grad.reshape(x.shape)
            if self.ceiling is not None:
                above = self.network(self.as_input(x)) > self.ceiling
                grad = grad.masked_fill(above[:, None], 0.0)
                second = second.masked_fill(above, 0.0)
        else:
            sigma, log_sigma, shrink = self._noise_scaling(x, None)
            grad, second = second_derivatives_of(
                self.network, self.as_input(x * shrink), directions, log_sigma
            )
            grad = grad.reshape(x.shape) * (shrink / sigma[:, None])
            second = second * shrink[:, 0].square() / sigma
            base = self.noisy_base and self.noisy_base.at(self.noise_levels[0])
        if base is None:
            return DirectionalDerivatives(grad, second)
        of_base = _second_derivatives_of_base(base, x, directions, without)
        return DirectionalDerivatives(grad - of_base.grad, second - of_base.second_derivative)

    def as_input(self, x: Tensor) -> Tensor:
        """Flat rows in the shape in which the network takes them."""
        return x if self.image_shape is None else x.unflatten(1, self.image_shape)

    def _noise_scaling(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Noise levels (n,), their logarithms, and the factors that scale the rows, (n, 1)."""
        assert self.noise_levels is not None
        sigma = x.new_full(x.shape[:1], self.noise_levels[0]) if cond is None else cond
        return sigma, sigma.log(), (1 + sigma.square()).rsqrt()[:, None]


class NoisyNormal(nn.Module):
    """A normal distribution convolved with normal noise of a different level for each row."""

    mean: Tensor
    variances: Tensor
    axes: Tensor

    def __init__(self, base: Gaussian):
        super().__init__()
        mean = base.mean.flatten()
        if base.scale_tril is None:
            assert base.scale is not None
            variances, axes = base.scale.flatten().square(), torch.eye(len(mean)).to(mean)
        else:
            scale_tril = base.scale_tril.double()
            variances, axes = torch.linalg.eigh(scale_tril @ scale_tril.t())
        self.register_buffer("mean", mean.clone(), persistent=False)
        self.register_buffer("variances", variances.to(mean), persistent=False)
        self.register_buffer("axes", axes.to(mean), persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> ValueAndInputGrad:
        """Log-density of each row at its noise level, (n,), and the score, (n, d)."""
        variances = self.variances + sigma[:, None].square()
        projected = (x - self.mean) @ self.axes
        scaled = projected / variances
        log_det = (2 * math.pi * variances).log().sum(1)
        value = -((projected * scaled).sum(1) + log_det) / 2
        return ValueAndInputGrad(value, -scaled @ self.axes.t())

    def at(self, sigma: float) -> Gaussian:
        """The distribution at one noise level."""
        variances = self.variances.double() + sigma**2
        axes = self.axes.double()
        noisy = Gaussian(self.mean.double(), covariance=(axes * variances) @ axes.t())
        return noisy.to(self.mean.device, self.mean.dtype)


def _second_derivatives_of_base(
    base: Any, x: Tensor, directions: Tensor, without: Tensor | None
) -> DirectionalDerivatives:
    """Score of the base and second derivatives of log q along directions; detached."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        log_q = base.log_prob(x) if without is None else base.log_prob(x, without)
        if not log_q.requires_grad:  # uniform
            return DirectionalDerivatives(torch.zeros_like(x), x.new_zeros(len(x)))
        score = autograd_grad(log_q, x)
        second_derivative = second_derivative_of_grad(score, x, directions)
    return DirectionalDerivatives(score.detach(), second_derivative.detach())
