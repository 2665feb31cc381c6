r"""Neural energies: a network that corrects a base which is known, E(x) = -log q(x) + f(x)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import Domain, Energy, sampling
from skebm.base.torchtools import seeded
from skebm.distributions import Distribution, Gaussian, GaussianMixture, KernelDensity
from skebm.energies.derivatives import (
    DirectionalDerivatives,
    ValueAndInputGrad,
    autograd_grad,
    second_derivative_of_grad,
    second_derivatives_of,
    value_and_input_grad_of,
)

# What is left of the precision of a base, so that a network cannot take all of it away.
MARGIN = 0.95


class Whitening(NamedTuple):
    """Rows whose entries are comparable: y = A (x - centre), A symmetric.

    Attributes
    ----------
    centre : Tensor of shape (d,)
    matrix : Tensor of shape (d, d)
        A. Far out half the squared norm of y must stay below -log q of the base: an f that takes no
        more than that away leaves every model proper.
    """

    centre: Tensor
    matrix: Tensor


def whitening_of(base: Distribution | None) -> Whitening | None:
    """How a normal distribution, a mixture or kernels whiten rows; None for any other base.

    By the covariance of the base as a whole, and so much less that no component is narrower.
    """
    if isinstance(base, KernelDensity):
        like = base.centres
        share, means = base.weights.double(), base.centres.double()
        covariances = base.kernel_covariances
        portions = (
            share.new_ones(1) if base.mixing_weights is None else base.mixing_weights.double()
        )
    elif isinstance(base, GaussianMixture) or (
        isinstance(base, Gaussian) and base.scale_tril is not None
    ):
        like = base.mean if isinstance(base, Gaussian) else base.means
        log_share, means, covariances = base.components()
        share = portions = log_share.exp()
    else:
        return None
    centre = share @ means
    between = ((means - centre) * share[:, None]).t() @ (means - centre)
    within = (portions @ covariances.flatten(1)).view_as(covariances[0])
    variances, axes = torch.linalg.eigh(within + between)
    root = (axes * variances.rsqrt()) @ axes.t()
    widest = torch.linalg.eigvalsh(root @ covariances @ root).max()
    shrunk = root * (MARGIN / widest.clamp_min(1.0)).sqrt()
    return Whitening(centre.to(like), shrunk.to(like))


class Spec(NamedTuple):
    """What a network is built for.

    Attributes
    ----------
    shape : tuple of int
        Shape of a row: ``(d,)``, or ``(C, H, W)`` of an image.
    generator : torch.Generator
        Source of the initial weights.
    dtype : torch.dtype
        Precision of the weights.
    noise_levels : bool
        Whether the network is called as ``network(x, log_sigma)``, with the logarithm of a noise
        level for each row, (n,), or as ``network(x)``.
    whitening : Whitening or None
        How the base whitens rows; None where it does not say.
    n_classes : int or None
        Whether the network is to return one logit for each of so many classes, (n, n_classes),
        instead of one number a row.
    """

    shape: tuple[int, ...]
    generator: torch.Generator
    dtype: torch.dtype = torch.float32
    noise_levels: bool = False
    whitening: Whitening | None = None
    n_classes: int | None = None


def build_network(network: Any, spec: Spec) -> nn.Module:
    """Make the network that ``network=`` names, on the generator's device.

    Parameters
    ----------
    network : object with ``build(spec)``, callable ``spec -> nn.Module``, or nn.Module
        A module is copied with its weights.
    spec : Spec

    Returns
    -------
    nn.Module
        From rows (n, ...) to one number a row, (n,), or to logits, (n, n_classes).
    """
    if isinstance(network, type) and hasattr(network, "build"):
        name = network.__name__
        raise TypeError(f"network={name} is a class: pass an instance, network={name}().")
    if isinstance(network, nn.Module):
        built: Any = copy.deepcopy(network)
    else:
        make: Callable[[Spec], Any] = network.build if hasattr(network, "build") else network
        with seeded(spec.generator):
            built = make(spec)
    if not isinstance(built, nn.Module):
        raise TypeError(
            f"network={network!r} built {type(built).__name__}, but must build a torch.nn.Module."
        )
    built = built.to(spec.generator.device, spec.dtype)
    for n in (2, 1):
        _check_output(built, spec, n)
    return built


def _check_output(network: nn.Module, spec: Spec, n: int) -> None:
    """Raise `ValueError` unless the network gives one number, or logits, for each of n rows."""
    x = torch.zeros(n, *spec.shape, dtype=spec.dtype, device=spec.generator.device)
    with sampling(network), torch.no_grad():
        try:
            value = network(x, x.new_zeros(n)) if spec.noise_levels else network(x)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"The network does not take rows of shape {(n, *spec.shape)}"
                f"{' and their noise levels' if spec.noise_levels else ''}: {error}"
            ) from error
    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if spec.n_classes is not None:
        if found != (n, spec.n_classes):
            raise ValueError(
                f"The network must return logits, of shape {(n, spec.n_classes)} for {n} rows and "
                f"{spec.n_classes} classes, but returned {found}: end it with a layer of "
                f"{spec.n_classes} units."
            )
    elif found != (n,):
        raise ValueError(
            f"The network must return one number a row, of shape ({n},) for rows of shape "
            f"{(n, *spec.shape)}, but returned {found}: end it with a layer of one unit and "
            "squeeze(1) that."
        )


class NeuralEnergy(Energy):
    r"""A network on top of a base, :math:`E(x) = -\log q(x) + f(x)`.

    With f = 0 the model is the base, normalised. As long as f grows slower than
    :math:`-\log q`, as networks of bounded slope do on top of normal distributions, the model is
    proper whatever the weights.

    With `noise_levels` the energy is one of noisy rows and of the level of the noise for each row,
    in standard deviations, ``cond`` of shape (n,):

    .. math:: E(x, \sigma) = -\log (q * N(0, \sigma^2 I))(x)
        + \tfrac1\sigma f(x / \sqrt{1 + \sigma^2}, \log \sigma) ,

    where q is a normal distribution. Scaled so, slopes of f are of order one at all levels [1]_.
    Without ``cond`` it is the energy at the smallest one.

    Parameters
    ----------
    network : nn.Module
        From rows to one number a row, (n,).
    domain : Domain
        Of flat rows: real, binary or one-hot ones. The network is a function of real numbers
        everywhere, so that samplers for discrete rows can follow its gradient.
    base : Distribution or None, default=None
        q on the same domain, normalised; None leaves it out.
    image_shape : tuple of int or None, default=None
        Shape in which the network sees rows.
    noise_levels : tuple of float or None, default=None
        Smallest and largest level.

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
    ):
        super().__init__()
        self.network, self.domain, self.base = network, domain, base
        self.image_shape, self.noise_levels = image_shape, noise_levels
        self.noisy_base: NoisyNormal | None = None
        if noise_levels is not None and base is not None:
            if not isinstance(base, Gaussian):
                raise ValueError(
                    f"Noise levels need a normal base, whose noisy rows are normal, not {base!r}."
                )
            self.noisy_base = NoisyNormal(base)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        if self.noise_levels is None:
            value = self.network(self.seen(x))
            return value if self.base is None else value - self.base.log_prob(x)
        sigma, log_sigma, shrink = self._level(x, cond)
        value = self.network(self.seen(x * shrink), log_sigma) / sigma
        return value if self.noisy_base is None else value - self.noisy_base(x, sigma).value

    def trained(self, x: Tensor) -> Tensor:
        """f(x), (n,), where there is one level of noise at most; the base is known."""
        return self(x) if self.noise_levels is not None else self.network(self.seen(x))

    def correction(self, x: Tensor) -> Tensor:
        """f(x), (n,), likewise."""
        return self.trained(x) if self.noise_levels is None else super().correction(x)

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        if torch.is_inference_mode_enabled():
            return super().value_and_grad(x, cond)
        with torch.no_grad():
            found = self.value_and_input_grad(x, cond)
        return found.value.detach(), found.grad.detach()

    def value_and_input_grad(
        self, x: Tensor, cond: Any = None, without: Tensor | None = None
    ) -> ValueAndInputGrad:
        """Energy (n,) and its gradient (n, d), differentiable with respect to the weights.

        `without` are the centres, (n,), that a base of kernels leaves out.
        """
        if self.noise_levels is None:
            value, slope = value_and_input_grad_of(self.network, self.seen(x))
            slope = slope.reshape(x.shape)
            if self.base is None:
                return ValueAndInputGrad(value, slope)
            if without is None:
                log_q, pull = self.base.log_prob_and_score(x)
            else:
                log_q, pull = self._kernels.log_prob_and_score(x, without)
            return ValueAndInputGrad(value - log_q, slope - pull)
        sigma, log_sigma, shrink = self._level(x, cond)
        value, slope = value_and_input_grad_of(self.network, self.seen(x * shrink), log_sigma)
        value, slope = value / sigma, slope.reshape(x.shape) * (shrink / sigma[:, None])
        if self.noisy_base is None:
            return ValueAndInputGrad(value, slope)
        log_q, pull = self.noisy_base(x, sigma)
        return ValueAndInputGrad(value - log_q, slope - pull)

    def input_grad(self, x: Tensor, cond: Any = None, without: Tensor | None = None) -> Tensor:
        """The gradient of :meth:`slopes` alone: the base need not be evaluated."""
        if self.noise_levels is not None or self.base is None:
            return self.value_and_input_grad(x, cond).grad
        pull = self.base.score(x) if without is None else self._kernels.score(x, without)
        return value_and_input_grad_of(self.network, self.seen(x)).grad.reshape(x.shape) - pull

    @property
    def _kernels(self) -> KernelDensity:
        """The base, of which centres can be left out."""
        if not isinstance(self.base, KernelDensity):
            raise TypeError(f"Only a base of kernels has centres to leave out, not {self.base!r}.")
        return self.base

    def second_derivatives(
        self, x: Tensor, directions: Tensor, without: Tensor | None = None
    ) -> DirectionalDerivatives:
        """Gradient (n, d), and the sum of second derivatives along directions, (n,)."""
        base: Any = self.base
        if self.noise_levels is None:
            slope, second_derivative = second_derivatives_of(self.network, self.seen(x), directions)
            slope = slope.reshape(x.shape)
        else:
            sigma, log_sigma, shrink = self._level(x, None)
            slope, second_derivative = second_derivatives_of(
                self.network, self.seen(x * shrink), directions, log_sigma
            )
            slope = slope.reshape(x.shape) * (shrink / sigma[:, None])
            second_derivative = second_derivative * shrink[:, 0].square() / sigma
            base = self.noisy_base and self.noisy_base.at(self.noise_levels[0])
        if base is None:
            return DirectionalDerivatives(slope, second_derivative)
        of_base = _second_derivatives_of_base(base, x, directions, without)
        return DirectionalDerivatives(
            slope - of_base.grad, second_derivative - of_base.second_derivative
        )

    def seen(self, x: Tensor) -> Tensor:
        """Rows in the shape in which the network takes them."""
        return x if self.image_shape is None else x.unflatten(1, self.image_shape)

    def _level(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Levels (n,), their logarithms, and what rows are multiplied by, (n, 1)."""
        assert self.noise_levels is not None
        sigma = x.new_full(x.shape[:1], self.noise_levels[0]) if cond is None else cond
        return sigma, sigma.log(), (1 + sigma.square()).rsqrt()[:, None]


class NoisyNormal(nn.Module):
    """A normal distribution blurred by noise of another level for each row."""

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
            root = base.scale_tril.double()
            variances, axes = torch.linalg.eigh(root @ root.t())
        self.register_buffer("mean", mean.clone(), persistent=False)
        self.register_buffer("variances", variances.to(mean), persistent=False)
        self.register_buffer("axes", axes.to(mean), persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> ValueAndInputGrad:
        """Log-density of each row at its level, and its gradient."""
        spread = self.variances + sigma[:, None].square()
        along = (x - self.mean) @ self.axes
        pull = along / spread
        log_det = (2 * math.pi * spread).log().sum(1)
        return ValueAndInputGrad(-((along * pull).sum(1) + log_det) / 2, -pull @ self.axes.t())

    def at(self, sigma: float) -> Gaussian:
        """The distribution at one level."""
        spread = self.variances.double() + sigma**2
        axes = self.axes.double()
        found = Gaussian(self.mean.double(), covariance=(axes * spread) @ axes.t())
        return found.to(self.mean.device, self.mean.dtype)


def _second_derivatives_of_base(
    base: Any, x: Tensor, directions: Tensor, without: Tensor | None
) -> DirectionalDerivatives:
    """Gradient of log q and its second derivatives along directions; without a graph."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        log_q = base.log_prob(x) if without is None else base.log_prob(x, without)
        if not log_q.requires_grad:  # uniform
            return DirectionalDerivatives(torch.zeros_like(x), x.new_zeros(len(x)))
        slope = autograd_grad(log_q, x)
        second_derivative = second_derivative_of_grad(slope, x, directions)
    return DirectionalDerivatives(slope.detach(), second_derivative.detach())
