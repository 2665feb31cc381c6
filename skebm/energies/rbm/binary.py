r"""Bipartite energies: restricted Boltzmann machines, by the type of their visible units."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skebm.base import Binary, BipartiteEnergy, Centering, Clamp, Conditional, Penalty
from skebm.base.domains import enumeration_cost
from skebm.base.torchtools import softplus, zero_pad
from skebm.base.units import Bernoulli
from skebm.distributions import Distribution, IndependentBernoulli, Tilt
from skebm.distributions.independent import log_sum
from skebm.energies.rbm.gradient import RBMGradient


class Moments(NamedTuple):
    """Exact log Z and expectations under the model: E[x] (d,), E[h] (H,), E[h x'] (H, d)."""

    log_z: Tensor
    x: Tensor
    h: Tensor
    hx: Tensor


class BernoulliRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine with binary visible and binary hidden units.

    .. math::
        E(x, h) = -b^\top x - c^\top h - h^\top W x, \qquad
        F(x) = -b^\top x - \sum_j \log\bigl(1 + e^{c_j + W_j x}\bigr).

    Parameters
    ----------
    n_visible, n_hidden : int
        Number of visible and hidden units, d and H.
    generator : torch.Generator
        Source of the initial weights, N(0, `scale` squared).
    scale : float, default=0.01
        Standard deviation of the initial weights.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.
    base : Distribution or None, default=None
        A distribution q with exact conditionals under unary fields, such as a Chow-Liu tree, that
        the RBM corrects: :math:`E(x, h) - \log q(x)`. It is not trained. p(x given h) is then q
        with the fields :math:`b + W^\top h`. A base of independent columns, which would only add
        fields to the visible biases, is not a part of the energy: it is no more than the start of
        annealing and tempering.

    Attributes
    ----------
    weight : Parameter of shape (n_hidden, n_visible)
    visible_bias : Parameter of shape (n_visible,)
    hidden_bias : Parameter of shape (n_hidden,)

    References
    ----------
    Smolensky (1986), "Information processing in dynamical systems: foundations of harmony theory".
    Tomczak (2022), "Deep Generative Modeling", eq. 6.37 (the free energy).
    """

    domain: Binary
    hidden_domain: Binary

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        dtype: torch.dtype = torch.float32,
        base: Distribution | None = None,
    ):
        super().__init__()
        if base is not None and base.domain.n_columns != n_visible:
            raise ValueError(
                f"The base has {base.domain.n_columns} columns and the energy {n_visible}."
            )
        if base is not None and not base.has_powers:
            raise ValueError(
                f"Powers of {base!r} have no closed form, which annealing from the uniform "
                "distribution needs: use independent bits or a tree."
            )
        self.base = base
        self.structure = None if isinstance(base, IndependentBernoulli) else base
        self.domain = Binary((n_visible,))
        self.hidden_domain = Binary((n_hidden,))
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        weight = torch.randn(n_hidden, n_visible, generator=generator, **new)
        self.weight = nn.Parameter(scale * weight)
        self.visible_bias = nn.Parameter(torch.zeros(n_visible, **new))
        self.hidden_bias = nn.Parameter(torch.zeros(n_hidden, **new))

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weight, visible and hidden bias, in a fifth of the time that three attributes take."""
        parameters: Any = self._parameters
        return parameters["weight"], parameters["visible_bias"], parameters["hidden_bias"]

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""
        value = self.correction_at(x, beta)
        return value if self.structure is None else value - beta * self.log_structure(x)

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> RBMGradient:
        """The gradient by hand, from one matrix product over data and chains."""
        return RBMGradient(self, centering, penalty)

    def correction(self, x: Tensor) -> Tensor:
        """Minus the log-ratio of the model to its base, unnormalised, (n,)."""
        if self.structure is None:
            return super().correction(x)  # the biases hold the base
        return self.correction_at(x)

    def correction_at(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Free energy at `beta`, (n,), without the part of a base that is no field."""
        _, visible_bias, _ = self.tensors
        linear, field = x @ visible_bias, self.hidden_field(x)  # (n,), (n, H)
        if isinstance(beta, Tensor):
            linear, field = beta * linear, beta.unsqueeze(-1) * field
        elif beta != 1.0:
            linear, field = beta * linear, beta * field
        return softplus(field).sum(-1).add_(linear).neg_()

    def log_structure(self, x: Tensor) -> Tensor | float:
        """log q(x), (n,), of rows that may be padded; 0 if the biases contain the base."""
        q = self.structure
        return 0.0 if q is None else q.log_prob(x[:, : q.domain.n_columns])

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_j = 1 given x) = sigmoid(beta (c_j + W_j x)), mean of shape (n, H)."""
        field = self.hidden_field(x)
        if beta != 1.0:
            field.mul_(beta)
        return Bernoulli(field.sigmoid_())

    def hidden_field(self, x: Tensor) -> Tensor:
        """c + W x, log-odds of the hidden units, (n, H)."""
        weight, _, bias = self.tensors
        return torch.addmm(bias, x, weight.t())

    def visible(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        power: float | None = None,
    ) -> Conditional:
        """p(x given h), proportional to q(x)^power exp(beta (b + W'h)'x + field' x), (n, d).

        `power` is beta by default, as the base is part of the energy. Without a base the columns
        are independent, with p(x_i = 1 given h) = sigmoid(beta (b_i + h W_i) + field_i).
        """
        logits = self._fields(h, beta, field)
        if self.structure is None:
            return Bernoulli(logits.sigmoid_())
        return self._tilt_of_base(logits, beta if power is None else power)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
        power: float | None = None,
    ) -> Tensor:
        """-log sum_x q(x)^power exp(-beta E(x, h) + field' x), x as clamped where it is, (n,)."""
        logits, own = self._fields(h, beta, field), -beta * (h @ self.hidden_bias)
        if self.structure is None:
            return own - log_sum(logits, clamp)
        tilt = self._tilt_of_base(logits, beta if power is None else power)
        if clamp is not None:
            tilt = tilt.given(clamp)
        return own - tilt.log_normaliser

    def _fields(self, h: Tensor, beta: float, field: Tensor | None) -> Tensor:
        weight, bias, _ = self.tensors
        logits = torch.addmm(bias, h, weight)
        if beta != 1.0:
            logits.mul_(beta)
        return logits if field is None else logits.add_(field)

    def _tilt_of_base(self, logits: Tensor, power: float) -> Tilt:
        assert self.structure is not None
        return self.structure.tilted(logits[:, : self.structure.domain.n_columns], power)

    def annealed(self, beta: float) -> BipartiteEnergy:
        """The model's correction of its base at `beta`: the base at 0, the model at 1."""
        if self.structure is not None:
            return TemperedCorrection(self, beta)
        logits = torch.zeros_like(self.visible_bias) if self.base is None else self.base.logits
        return Tilted(self, (1 - beta) * logits, beta)

    def flip_difference(self, x: Tensor) -> Tensor:
        """F(x with entry i set to 1 - x_i) - F(x), (n, d), for all i from one matrix product."""
        field = self.hidden_field(x)  # (n, H)
        step = 1 - 2 * x  # (n, d)
        here = softplus(field).sum(1, keepdim=True)
        change = here - _after_flips(field, step, self.weight) - step * self.visible_bias
        if self.structure is not None:
            known = self.structure.domain.n_columns
            change[:, :known] -= self.structure.flip_log_ratio(x[:, :known])
        return change

    def with_padding(self, multiple: int = 16) -> BernoulliRBM:
        """Copy with both layers filled up to a multiple by units that are never on.

        At such shapes BLAS rounds every row of a product alike, wherever it stands.
        """
        n_hidden, n_visible = self.weight.shape
        right, down = -n_visible % multiple, -n_hidden % multiple
        if not right and not down:
            return self
        off = -1e4  # sigmoid and softplus are 0 there in every precision
        return self.copy_with(
            zero_pad(self.weight.detach(), right, down),
            nn.functional.pad(self.visible_bias, (0, right), value=off),
            nn.functional.pad(self.hidden_bias, (0, down), value=off),
        )

    def copy_with(self, weight: Tensor, visible_bias: Tensor, hidden_bias: Tensor) -> BernoulliRBM:
        """An RBM of other parameters, (H, d), (d,) and (H,), on the same base; not trained."""
        copy = object.__new__(BernoulliRBM)
        nn.Module.__init__(copy)
        copy.base, copy.structure = self.base, self.structure
        copy.domain, copy.hidden_domain = Binary((len(visible_bias),)), Binary((len(hidden_bias),))
        copy.weight = nn.Parameter(weight)
        copy.visible_bias, copy.hidden_bias = nn.Parameter(visible_bias), nn.Parameter(hidden_bias)
        return copy.requires_grad_(False)

    def enumeration_cost(self) -> float:
        """States of the cheaper layer times units of the other: what :meth:`moments` visits."""
        return enumeration_cost(self.domain, self.hidden_domain)

    def moments(self) -> Moments:
        """Log Z and the model's expectations by enumeration of the cheaper layer (Tomczak 6.41)."""
        like: dict[str, Any] = {"dtype": self.weight.dtype, "device": self.weight.device}
        n_hidden, n_visible = self.weight.shape
        if self.domain.n_states * n_hidden == self.enumeration_cost():
            sums = _Sums(n_visible, n_hidden, **like)
            for x in self.domain.enumerate(max(1, CHUNK // n_hidden), **like):
                field = self.hidden_field(x)  # (S, H)
                log_p = torch.addmv(softplus(field).sum(1), x, self.visible_bias)
                sums.add(log_p + self.log_structure(x), x, field.sigmoid())
            log_z, mean, other, products = sums.expectations()
            return Moments(log_z, mean, other, products)
        sums = _Sums(n_hidden, n_visible, **like)
        for h in self.hidden_domain.enumerate(max(1, CHUNK // n_visible), **like):
            field = self._fields(h, 1.0, None)  # (S, d)
            if self.structure is None:
                log_sum, means = softplus(field).sum(1), field.sigmoid()
            else:
                tilt = self._tilt_of_base(field, 1.0)
                log_sum, means = tilt.log_normaliser, tilt.mean
            sums.add(torch.addmv(log_sum, h, self.hidden_bias), h, means)
        log_z, mean, other, products = sums.expectations()
        return Moments(log_z, other, mean, products.t())


# Entries of the larger layer that an enumeration holds at a time: 2 MB of float32, which stay in
# the processor's cache (1.7 times as fast as 16 MB).
CHUNK = 500_000


# Numbers that a gradient through flips keeps at a time: 128 MB of float32.
FLIPS = 32_000_000


def _after_flips(field: Tensor, step: Tensor, weight: Tensor) -> Tensor:
    """sum_j log(1 + exp(field_j + step_i W_ji)) for every column i, (n, d).

    A gradient needs all (n, d, H) terms: those of many rows are computed again, block by block.
    """
    n_rows = max(1, FLIPS // weight.numel())
    if len(step) <= n_rows or not torch.is_grad_enabled():
        return _flip_sums(field, step, weight)
    blocks = zip(field.split(n_rows), step.split(n_rows), strict=True)
    again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(_flip_sums, f, s, weight, **again) for f, s in blocks])


def _flip_sums(field: Tensor, step: Tensor, weight: Tensor) -> Tensor:
    # Columns by unbind: the gradient of weight[:, i] is as large as that of all of them.
    columns = zip(step.unsqueeze(2).unbind(1), weight.unbind(1), strict=True)
    return torch.stack([softplus(torch.addcmul(field, s, w)).sum(1) for s, w in columns], 1)


class _Sums:
    """Sums over the states s (S, a) of one layer, given the other's means in each, (S, b).

    Relative to the largest log-probability so far; float64 across chunks.
    """

    def __init__(self, n_states: int, n_other: int, **like: Any):
        self.dtype = like.pop("dtype")
        like["dtype"] = torch.float64
        self.largest = torch.full((), -torch.inf, **like)
        self.total = torch.zeros(n_other + 1, n_states + 1, **like)

    def add(self, log_p: Tensor, states: Tensor, other: Tensor) -> None:
        """Take a chunk of states in."""
        largest = torch.maximum(self.largest, log_p.detach().max())
        p = (log_p.double() - largest).exp().to(states.dtype)
        # Products and means from one multiplication, without a copy of the larger layer.
        right = p[:, None] * nn.functional.pad(states, (0, 1), value=1.0)
        sums = torch.cat([other.t() @ right, right.sum(0, keepdim=True)])
        self.total = self.total * (self.largest - largest).exp() + sums
        self.largest = largest

    def expectations(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log Z, E[s], E[o] and E[o s']."""
        norm = self.total[-1, -1]
        mean = (self.total / norm).to(self.dtype)
        return norm.log() + self.largest, mean[-1, :-1], mean[:-1, -1], mean[:-1, :-1]


class Tilted(BipartiteEnergy):
    r"""A bipartite energy at inverse temperature `beta`, plus a unary term: beta E - field' x.

    The path of annealed importance sampling and the posterior of a noisy row are both of this form.

    Parameters
    ----------
    energy : BipartiteEnergy
        The energy that is tilted; its parameters are shared, not copied.
    field : Tensor of shape (d,) or (n, d)
        Unary term, shared by all rows or one for each.
    beta : float, default=1.0
        Inverse temperature of `energy`; the field is not scaled by it.
    """

    def __init__(self, energy: BipartiteEnergy, field: Tensor, beta: float = 1.0):
        super().__init__()
        self.domain, self.hidden_domain = energy.domain, energy.hidden_domain
        self.energy, self.field, self.beta = energy, field, beta

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Tilted free energy, (n,)."""
        return self.energy.free_energy(x, beta * self.beta) - beta * (x * self.field).sum(1)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x), which does not depend on the field."""
        return self.energy.hidden(x, beta * self.beta)

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h) with the field added."""
        return self.energy.visible(h, beta * self.beta, self._total(beta, field))

    def _total(self, beta: float, field: Tensor | None) -> Tensor:
        """The field at `beta`, and another one that is given."""
        own = beta * self.field
        return own if field is None else own + field

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """Free energy of a hidden row with the field added, (n,)."""
        return self.energy.hidden_energy(h, beta * self.beta, self._total(beta, field), clamp)

    def annealed(self, beta: float) -> Tilted:
        """Energy and field, both at `beta`."""
        return Tilted(self.energy, beta * self.field, beta * self.beta)


class TemperedCorrection(BipartiteEnergy):
    r"""An RBM whose correction of its base is tempered: beta E(x, h) - (1 - beta) log q(x).

    This is the path from the base itself, at `beta` = 0, to the model, at 1.

    Parameters
    ----------
    energy : BernoulliRBM
        An RBM with a base; its parameters are shared, not copied.
    beta : float
        Inverse temperature of the correction.
    """

    def __init__(self, energy: BernoulliRBM, beta: float):
        super().__init__()
        self.domain, self.hidden_domain = energy.domain, energy.hidden_domain
        self.energy, self.beta = energy, beta

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Free energy, (n,)."""
        return self.energy.correction_at(x, beta * self.beta) - beta * self.energy.log_structure(x)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x), which does not depend on the base."""
        return self.energy.hidden(x, beta * self.beta)

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h): the base with tempered fields."""
        return self.energy.visible(h, beta * self.beta, field, power=beta)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """Free energy of a hidden row, (n,)."""
        return self.energy.hidden_energy(h, beta * self.beta, field, clamp, power=beta)

    def annealed(self, beta: float) -> TemperedCorrection:
        """A weaker correction of the same base."""
        return TemperedCorrection(self.energy, beta * self.beta)
