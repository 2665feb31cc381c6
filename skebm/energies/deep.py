r"""Deep Boltzmann machines: layers of hidden units as one bipartite energy.

The layers x, h2, h4, ... have no couplings with each other, and neither have h1, h3, ...: side by
side they are the two layers of a restricted Boltzmann machine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Centering, ContrastGradient, Offsets, Penalty
from skebm.base.torchtools import softplus
from skebm.base.units import Bernoulli
from skebm.distributions import Columns, Distribution, IndependentBernoulli
from skebm.distributions.independent import blocks_of
from skebm.energies.rbm.binary import BernoulliRBM
from skebm.energies.rbm.mixed import MixedRBM

# Log-odds of the hidden units of the row under the base: they are on in a quarter of the rows, as
# hidden units are at the start of training.
HIDDEN_LOGIT = -1.0
# Products of other widths are rounded by the place of a row in its block.
ALIGNMENT = 16
# Numbers that a sum over states holds at a time: 16 MB of float32.
CHUNK = 4_000_000


@dataclass(frozen=True)
class Layers:
    """Numbers of units of the layers, and their places in a bipartite energy.

    The row of the energy is (x, h2, h4, ...), its hidden layer (h1, h3, ...).

    Parameters
    ----------
    sizes : tuple of int
        Entries of x, then units of each hidden layer, from below.

    Raises
    ------
    ValueError
        Unless there is at least one hidden layer and all have at least one unit.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(
                f"sizes={self.sizes} must be the number of entries of x and those of the units of "
                "at least one hidden layer, each at least 1."
            )

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.sizes) - 1

    @property
    def n_visible(self) -> int:
        """Entries of x."""
        return self.sizes[0]

    @property
    def n_row(self) -> int:
        """Entries of a row of the bipartite energy: of x and of every second hidden layer."""
        return sum(self.sizes[::2])

    @property
    def n_beside(self) -> int:
        """Hidden units that are part of the row: h2, h4, ..."""
        return self.n_row - self.n_visible

    @property
    def n_between(self) -> int:
        """Hidden units of the bipartite energy: h1, h3, ..."""
        return sum(self.sizes[1::2])

    def place(self, layer: int) -> slice:
        """Place of a layer among those of its side; layer 0 is x."""
        start = sum(self.sizes[layer % 2 : layer : 2])
        return slice(start, start + self.sizes[layer])

    def couplings(self) -> Iterator[tuple[slice, slice]]:
        """Blocks of the weights (H, d) between neighbouring layers, from below."""
        for above in range(1, len(self.sizes)):
            between, row = (above, above - 1) if above % 2 else (above - 1, above)
            yield self.place(between), self.place(row)

    def mask(self, device: Any = "cpu") -> Tensor | None:
        """Which weights exist, (H, d) of bool; None if all do, as with up to two hidden layers."""
        if self.depth < 3:
            return None
        mask = torch.zeros(self.n_between, self.n_row, dtype=torch.bool, device=device)
        for rows, columns in self.couplings():
            mask[rows, columns] = True
        return mask

    def weights(self, energy: Any) -> tuple[Tensor, ...]:
        """Views of W_l, (units of layer l, units of layer l - 1), from below."""
        blocks = [energy.weight[rows, columns] for rows, columns in self.couplings()]
        return tuple(w if i % 2 == 0 else w.t() for i, w in enumerate(blocks))

    def biases(self, energy: Any) -> tuple[Tensor, ...]:
        """Views of the biases of all layers, that of x first; a base in the energy adds its own."""
        sides = energy.visible_bias, energy.hidden_bias
        return tuple(sides[layer % 2][self.place(layer)] for layer in range(len(self.sizes)))

    def hidden_layers(self, beside: Tensor, between: Tensor) -> tuple[Tensor, ...]:
        """States or means (n, units) of the hidden layers, h1 first, from those of both sides."""
        layers = []
        for layer in range(1, len(self.sizes)):
            place = self.place(layer)
            if layer % 2:
                layers.append(between[:, place])
            else:
                start, stop = place.start - self.n_visible, place.stop - self.n_visible
                layers.append(beside[:, start:stop])
        return tuple(layers)


# ------------------------------------------------------------------------------
# Energies
# ------------------------------------------------------------------------------


class DeepMachineMixin:
    """What deep machines share: their layers, and what they remember of the RBM of the first layer.

    That is a machine of the same shape, whose upper layers are independent of x and of each other,
    so that p(x) is that of the RBM. Annealing goes through it (see
    :class:`skebm.energies.path.FirstLayerPath`). Its parameters are buffers, so that they are
    stored but not trained.
    """

    layers: Layers
    remembers: bool
    weight: Tensor
    named_parameters: Any
    get_buffer: Any

    @torch.no_grad()
    def _lay_out(self, layers: Layers, scale: float | None, remembers: bool) -> None:
        """Scale standard normal weights, set those to zero that do not exist; room for buffers."""
        module: Any = self
        self.layers, self.remembers = layers, remembers
        factor = torch.zeros_like(self.weight)
        for rows, columns in layers.couplings():
            n_units = rows.stop - rows.start + columns.stop - columns.start
            factor[rows, columns] = (2 / n_units) ** 0.5 if scale is None else scale
        self.weight.mul_(factor)
        for name, own in list(module.named_parameters()) if remembers else ():
            module.register_buffer(f"first_{name}", torch.zeros_like(own))

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """W_l, (units of layer l, units of layer l - 1), from below."""
        return self.layers.weights(self)

    @property
    def biases(self) -> tuple[Tensor, ...]:
        """Biases of the layers, that of x first; a base in the energy adds its own."""
        return self.layers.biases(self)

    def contrast_gradient(self, centering: Centering | None, penalty: Penalty | None) -> Any:
        """The gradient of the RBM, without that of weights that do not exist."""
        rbm: Any = super()
        gradient = rbm.contrast_gradient(centering, penalty)
        mask = self.layers.mask(self.weight.device)
        return gradient if mask is None else MaskedGradient(gradient, self, mask)

    @torch.no_grad()
    def set_first_layer(self, rbm: Any) -> None:
        """Remember an RBM of the first layer, and set this machine to it.

        Units of upper layers have the log-odds of untrained ones.
        """
        d, h = self.layers.n_visible, self.layers.sizes[1]
        places: dict[str, Any] = {
            "weight": (slice(h), slice(d)),
            "visible_bias": slice(d),
            "hidden_bias": slice(h),
        }
        given = dict(rbm.named_parameters())
        off = 0.0 if isinstance(self, MixedRBM) else HIDDEN_LOGIT  # the base has it there
        fill = {"weight": 0.0, "visible_bias": off, "hidden_bias": HIDDEN_LOGIT}
        for name, buffer in self._first_parameters().items():
            buffer.fill_(fill.get(name, 0.0))
            if name in given:
                buffer[places.get(name, slice(None))] = given[name]
        self.return_to_first_layer()

    @torch.no_grad()
    def return_to_first_layer(self) -> None:
        """Set this machine to the RBM that it remembers."""
        first = self._first_parameters()
        for name, own in self.named_parameters():
            own.copy_(first[name])

    def _first_parameters(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(f"first_{name}") for name, _ in self.named_parameters()}

    @torch.no_grad()
    def first_rbm(self) -> BernoulliRBM | MixedRBM:
        """The RBM of the first layer by itself, of rows x."""
        first, module, layers = self._first_parameters(), self, self.layers
        like = first["hidden_bias"]
        new: dict[str, Any] = {"generator": torch.Generator(like.device), "dtype": like.dtype}
        rbm: BernoulliRBM | MixedRBM
        if isinstance(module, MixedRBM):
            parts = module.parts[:-1] if layers.n_beside else module.parts
            base = parts[0] if len(parts) == 1 else Columns(parts)
            rbm = MixedRBM(base, layers.sizes[1], **new)
        else:
            assert isinstance(module, BernoulliRBM)
            rbm = BernoulliRBM(layers.n_visible, layers.sizes[1], **new)
        for name, own in rbm.named_parameters():
            own.copy_(first[name][tuple(slice(n) for n in own.shape)])
        return rbm.requires_grad_(False)

    def since_first_layer(self, share: float) -> BernoulliRBM | MixedRBM:
        """The machine whose parameters are on the line from the first layer, at 0, to these."""
        first, module = self._first_parameters(), self
        if isinstance(module, MixedRBM):
            return module.annealed(share, first)
        assert isinstance(module, BernoulliRBM)
        return module.copy_with(*(first[n].lerp(p, share) for n, p in self.named_parameters()))


class FirstLayerRows(Distribution):
    """Rows of the first layer of a deep machine, beside units that are independent of them.

    Parameters
    ----------
    energy : BernoulliRBM or MixedRBM
        The machine at its first layer (:meth:`DeepMachineMixin.since_first_layer`).
    layers : Layers
    draw : callable
        ``draw(n, generator)`` returns rows x of the RBM, (n, d).
    log_z : float
        log Z of the machine at its first layer; nan if that is not known.
    """

    def __init__(
        self,
        energy: BernoulliRBM | MixedRBM,
        layers: Layers,
        draw: Callable[[int, torch.Generator], Tensor],
        log_z: float = math.nan,
    ):
        self.energy, self.layers, self.draw, self.log_z = energy, layers, draw, log_z
        self.domain = energy.domain

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        x = self.draw(n, generator)
        mean = torch.full_like(x[:, :1], HIDDEN_LOGIT).sigmoid().expand(n, self.layers.n_beside)
        return torch.cat([x, Bernoulli(mean).sample(generator)], 1)

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        return -self.energy(x) - self.log_z

    def to(self, device: torch.device | str, dtype: torch.dtype) -> FirstLayerRows:
        """The same, which is where its energy is."""
        return self


class BernoulliDBM(DeepMachineMixin, BernoulliRBM):
    r"""Deep Boltzmann machine of binary units, with all hidden layers.

    .. math:: E(x, h_1, \dots, h_L) = -b_0^\top x - \sum_{l=1}^L \bigl(b_l^\top h_l
        + h_l^\top W_l h_{l-1}\bigr), \qquad h_0 = x .

    As an energy of rows it is the free energy of (x, h2, h4, ...), with h1, h3, ... summed out.

    Parameters
    ----------
    layers : sequence of int
        Numbers of units of x and of the hidden layers, from below.
    generator : torch.Generator
        Source of the initial weights.
    scale : float or None, default=None
        Standard deviation of the initial weights; None is that of Glorot and Bengio (2010) for each
        pair of layers.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.
    base : IndependentBernoulli or None, default=None
        Independent columns of x, from which annealing and chains start; None are fair coins.

    remembers : bool, default=False
        Whether the machine remembers an RBM of its first layer (:meth:`set_first_layer`).

    Attributes
    ----------
    layers : Layers
        Where the layers are; ``layers.weights(energy)`` and ``layers.biases(energy)`` are views.
    weights, biases : tuple of Tensor
        W_l of shape (units of layer l, units of layer l - 1), and the biases of all layers.

    References
    ----------
    Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS, equation 9.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliDBM
    >>> from skebm.partition import Exact
    >>> energy = BernoulliDBM((4, 3, 2), generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> [tuple(w.shape) for w in energy.weights]
    [(3, 4), (2, 3)]
    >>> round(Exact().estimate(energy).value, 4)  # 9 log 2
    6.2383
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        generator: torch.Generator,
        scale: float | None = None,
        dtype: torch.dtype = torch.float32,
        base: IndependentBernoulli | None = None,
        remembers: bool = False,
    ):
        layout = Layers(tuple(layers))
        if base is not None:
            beside = base.logits.new_full((layout.n_beside,), HIDDEN_LOGIT)
            base = IndependentBernoulli(torch.cat([base.logits, beside]))
        super().__init__(
            layout.n_row, layout.n_between, generator=generator, scale=1.0, dtype=dtype, base=base
        )
        self._lay_out(layout, scale, remembers)


class MixedDBM(DeepMachineMixin, MixedRBM):
    r"""Deep Boltzmann machine with visible units of any kind; see :class:`MixedRBM`.

    .. math:: E(x, h_1, \dots, h_L) = -\log q_s(x) - b_0^\top t(x) - h_1^\top W_1 t(x)
        - \sum_{l=1}^L b_l^\top h_l - \sum_{l=2}^L h_l^\top W_l h_{l-1} .

    Parameters
    ----------
    base : Distribution
        q, of x, with exact tilts. (The base of the rows has independent bits h2, h4, ... beside
        x.)
    hidden_layers : sequence of int
        Numbers of units of the hidden layers, from below.
    generator : torch.Generator
        Source of the initial weights.
    scale : float or None, default=None
        Standard deviation of the initial weights; None is that of Glorot and Bengio (2010).
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.
    remembers : bool, default=False
        Whether the machine remembers an RBM of its first layer (:meth:`set_first_layer`).

    Attributes
    ----------
    layers : Layers
        Where the layers are.
    weights, biases : tuple of Tensor
        As in :class:`BernoulliDBM`; biases are fields in addition to those of the base.

    References
    ----------
    Salakhutdinov and Hinton (2009), "Deep Boltzmann machines", AISTATS. Srivastava and
    Salakhutdinov (2012), "Multimodal learning with deep Boltzmann machines", NeurIPS (real units).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Gaussian
    >>> from skebm.energies import MixedDBM
    >>> base = Gaussian(torch.zeros(2), 1.0)
    >>> energy = MixedDBM(base, (3, 2), generator=torch.Generator().manual_seed(0))
    >>> energy.domain.n_columns  # two numbers, and the units of the second hidden layer
    4
    """

    def __init__(
        self,
        base: Distribution,
        hidden_layers: Sequence[int],
        *,
        generator: torch.Generator,
        scale: float | None = None,
        dtype: torch.dtype = torch.float32,
        remembers: bool = False,
    ):
        layout = Layers((base.domain.n_columns, *hidden_layers))
        if layout.n_beside:
            new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
            beside = IndependentBernoulli(torch.full((layout.n_beside,), HIDDEN_LOGIT, **new))
            base = Columns([*blocks_of(base), beside])
        super().__init__(base, layout.n_between, generator=generator, scale=1.0, dtype=dtype)
        self._lay_out(layout, scale, remembers)


class MaskedGradient(ContrastGradient):
    r"""Gradient of an RBM some of whose weights are fixed at zero.

    Centred biases follow the weights (see :func:`skebm.energies.rbm.gradient.center_gradient`), so
    the contribution of the weights that are fixed at zero is removed from them:
    :math:`\tilde g_b = g_b - \tilde G^\top \lambda` with the masked :math:`\tilde G`.

    Parameters
    ----------
    gradient : RBMGradient
    energy : BernoulliDBM or MixedDBM
    mask : Tensor of shape (H, d), bool
        Weights that exist.
    """

    def __init__(self, gradient: Any, energy: Any, mask: Tensor):
        self.gradient, self.energy, self.left_out = gradient, energy, ~mask

    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        offsets: Offsets | None = self.gradient.start(x, weight)
        return offsets

    @torch.no_grad()
    def write(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None]:
        offsets, layer = self.gradient.write(x, chain, sign, share, offsets, generator)
        weight, visible_bias, hidden_bias = (p.grad for p in self.energy.tensors)
        if offsets is not None:
            extra = weight * self.left_out
            visible_bias.addmv_(extra.t(), offsets.hidden)
            hidden_bias.addmv_(extra, self.gradient.statistics(offsets.visible))
        weight.masked_fill_(self.left_out, 0.0)
        return offsets, layer


# ------------------------------------------------------------------------------
# Given the visible layer
# ------------------------------------------------------------------------------


class HiddenGiven:
    r"""The hidden layers of a deep Boltzmann machine given rows x.

    The terms of x are computed once; after that only products of hidden layers are needed.

    Parameters
    ----------
    energy : BernoulliRBM or MixedRBM
        A deep machine, or a padded copy of one.
    layers : Layers
    x : Tensor of shape (n, d)
    padded : bool, default=False
        Whether the widths of products are multiples of 16. The result for a row is then the same,
        bit for bit, at every place in a block.

    Attributes
    ----------
    field : Tensor of shape (n, H)
        Log-odds of h1, h3, ... where h2, h4, ... are 0.
    weight : Tensor of shape (H, B)
        Couplings of h1, h3, ... with h2, h4, ...
    bias : Tensor of shape (B,)
        Log-odds of h2, h4, ... where h1, h3, ... are 0.
    """

    def __init__(self, energy: Any, layers: Layers, x: Tensor, *, padded: bool = False):
        self.layers, d, b = layers, layers.n_visible, layers.n_beside
        self.energy = energy
        self.row = nn.functional.pad(x, (0, energy.domain.n_columns - d))
        self.hidden_bias = energy.hidden_bias
        self.field = energy.hidden_field(self.row)
        self.weight = energy.weight[:, d : d + b]
        self.bias = energy.visible_bias[d : d + b]
        if b and isinstance(energy, MixedRBM):  # its base is a part of the energy
            self.bias = self.bias + energy.parts[-1].logits
        # Log-odds of units that only fill up a layer.
        off = -1e4
        if padded:
            extra = -b % ALIGNMENT
            self.weight = nn.functional.pad(self.weight, (0, extra))
            self.bias = nn.functional.pad(self.bias, (0, extra), value=off)

    @functools.cached_property
    def log_rest(self) -> Tensor:
        """Minus the energy where all hidden units are 0, (n,); mean field does not need it."""
        log_rest: Tensor = -self.energy.free_energy(self.row) - softplus(self.field).sum(1)
        return log_rest

    def between_field(self, beside: Tensor) -> Tensor:
        """Log-odds of h1, h3, ... given states or means (n, B) of h2, h4, ..., (n, H)."""
        return torch.addmm(self.field, beside, self.weight.t())

    def beside_field(self, between: Tensor) -> Tensor:
        """Log-odds of h2, h4, ... given states or means (n, H) of h1, h3, ..., (n, B)."""
        return torch.addmm(self.bias, between, self.weight)

    def bottom_up(self) -> Tensor:
        """Log-odds of h2, h4, ... from a pass upwards, the start of mean field, (n, B).

        Weights from below are doubled where units above are still unknown (Salakhutdinov and
        Hinton, 2009, section 3.1).
        """
        return self.beside_field((2 * self.field - self.hidden_bias).sigmoid_())

    def log_joint(self, beside: Tensor) -> Tensor:
        """log of the sum of exp(-E) over h1, h3, ..., given h2, h4, ... (n, B), (n,).

        For means of h2, h4, ... it is the variational bound without their entropy.
        """
        summed = softplus(self.between_field(beside)).sum(1)
        return self.log_rest + beside @ self.bias + summed

    def log_marginal(self) -> Tensor:
        """log of the sum of exp(-E) over all hidden layers, (n,), float64; by enumeration."""
        n, m = self.layers.n_beside, self.layers.n_between
        over_row = n <= m
        n_units, width = (n, len(self.bias)) if over_row else (m, self.field.shape[1])
        total = self.log_rest.new_full((len(self.field),), -torch.inf, dtype=torch.float64)
        size = max(1, CHUNK // (len(self.field) * self.field.shape[1]))
        for start in range(0, 2**n_units, size):
            number = torch.arange(start, min(start + size, 2**n_units), device=self.field.device)
            place = torch.arange(n_units, device=number.device)
            states = (number[:, None] >> place & 1).to(self.field)
            states = nn.functional.pad(states, (0, width - n_units))
            part = (
                self._log_sum_given_beside(states)
                if over_row
                else self._log_sum_given_between(states)
            )
            total = torch.logaddexp(total, part.double().logsumexp(1))
        return total

    def _log_sum_given_beside(self, states: Tensor) -> Tensor:
        """log sum over h1, h3, ... of exp(-E) in states (S, B) of the others, (n, S)."""
        field = self.field[:, None] + (states @ self.weight.t())[None]
        return self.log_rest[:, None] + states @ self.bias + softplus(field).sum(2)

    def _log_sum_given_between(self, states: Tensor) -> Tensor:
        """log sum over h2, h4, ... of exp(-E) in states (S, H) of the others, (n, S)."""
        summed = softplus(torch.addmm(self.bias, states, self.weight)).sum(1)
        return self.log_rest[:, None] + self.field @ states.t() + summed
