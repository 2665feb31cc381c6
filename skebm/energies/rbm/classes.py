r"""Restricted Boltzmann machines of rows and their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import (
    BipartiteEnergy,
    Categorical,
    Centering,
    Clamp,
    Conditional,
    ContrastGradient,
    Domain,
    Mixed,
    Offsets,
    Penalty,
)
from skebm.base.contrast import means_of
from skebm.base.torchtools import softplus_sum, zero_pad
from skebm.base.units import Bernoulli
from skebm.distributions._fitting import draw_index
from skebm.energies.rbm.gradient import (
    Gradient,
    center_gradient,
    memory,
    precondition_gradient,
    relative_variance,
)
from skebm.energies.rbm.mixed import MixedRBM, WiderColumns

# Numbers that are computed at a time, as many as a cache holds.
CACHED = 2**17


class ClassesAndUnits(Conditional):
    """p(y, h given x): a class, then hidden units that are independent given it.

    Parameters
    ----------
    log_share : Tensor of shape (n, K)
        log p(y given x).
    field : Tensor of shape (n, H)
        Log-odds of the hidden units without those of the class.
    of_class : Tensor of shape (K, H)
        What a class adds to these log-odds.
    """

    def __init__(self, log_share: Tensor, field: Tensor, of_class: Tensor):
        self.log_share, self.field, self.of_class = log_share, field, of_class

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """p(y given x) and p(h_j = 1 given x), (n, K + H)."""
        share = self.log_share.exp()
        units = torch.zeros_like(self.field)
        for k, own in enumerate(self.of_class):
            units.addcmul_(share[:, k, None], (self.field + own).sigmoid_())
        return torch.cat([share, units], 1)

    def sample(self, generator: torch.Generator) -> Tensor:
        share = self.log_share.exp()
        kind: dict[str, Any] = {"dtype": share.dtype, "device": share.device}
        y = draw_index(share, torch.rand(len(share), generator=generator, **kind))
        units = Bernoulli((self.field + self.of_class[y]).sigmoid_()).sample(generator)
        return torch.cat([nn.functional.one_hot(y, share.shape[1]).to(units), units], 1)


class ClassRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine of rows and classes: the energy of p(x), the class summed out.

    .. math::
        E(x, y, h) = E(x, h) - d_y - h^\top U_y , \qquad
        F(x) = -\log \sum_y \sum_h e^{-E(x, y, h)}

    with E(x, h) the energy of an RBM of x alone. The class probabilities are exact:

    .. math::
        p(y \mid x) = \mathrm{softmax}_y
        \Bigl(d_y + \sum_j \log\bigl(1 + e^{c_j + W_j t(x) + U_{jy}}\bigr)\Bigr) .

    Class and hidden units form one hidden layer, which is drawn exactly given x, the class first.
    Given this layer, x is drawn exactly as well, so that block Gibbs sampling, annealing and
    enumeration work as for any restricted Boltzmann machine.

    Parameters
    ----------
    rbm : MixedRBM
        The RBM of x, whose visible units may be of any kind.
    n_classes : int
        K.
    generator : torch.Generator
        Source of the initial weights U, N(0, `scale` squared).
    scale : float, default=0.01
        Standard deviation of the initial weights of the classes.

    Attributes
    ----------
    rbm : MixedRBM
    class_weight : Parameter of shape (n_hidden, n_classes)
        U.
    class_bias : Parameter of shape (n_classes,)
        d, 0 at first.
    hidden_domain : Mixed
        A class, one-hot, then the hidden units.

    References
    ----------
    Larochelle and Bengio (2008), "Classification using discriminative restricted Boltzmann
    machines", ICML, equations 1 and 5. Larochelle, Mandel, Pascanu and Bengio (2012), "Learning
    algorithms for the classification restricted Boltzmann machine", JMLR 13.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import ClassRBM, MixedRBM
    >>> generator = torch.Generator().manual_seed(0)
    >>> rbm = MixedRBM(IndependentBernoulli(torch.zeros(4)), 2, generator=generator)
    >>> energy = ClassRBM(rbm, 3, generator=generator, scale=0.0)
    >>> energy.log_class_proba(torch.ones(1, 4)).exp().detach()  # nothing is known of them yet
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    domain: Domain
    always_proper = True  # a finite mixture of what its base is
    hidden_domain: Mixed

    def __init__(
        self,
        rbm: MixedRBM,
        n_classes: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
    ):
        super().__init__()
        weight = rbm.weight
        new: dict[str, Any] = {"dtype": weight.dtype, "device": generator.device}
        drawn = torch.randn(len(weight), n_classes, generator=generator, **new)
        self._set(rbm, nn.Parameter(scale * drawn), nn.Parameter(torch.zeros(n_classes, **new)))

    def _set(self, rbm: MixedRBM, weight: nn.Parameter, bias: nn.Parameter) -> None:
        self.rbm, self.class_weight, self.class_bias = rbm, weight, bias
        self.domain, units = rbm.domain, rbm.hidden_domain
        self.hidden_domain = Mixed((Categorical((len(bias),)), units))

    def _of(self, rbm: MixedRBM, weight: Tensor, bias: Tensor) -> ClassRBM:
        """Another RBM and other parameters of the classes, which are not trained."""
        copy = object.__new__(ClassRBM)
        nn.Module.__init__(copy)
        frozen = [nn.Parameter(part.detach(), requires_grad=False) for part in (weight, bias)]
        copy._set(rbm, *frozen)
        return copy.train(self.training)

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.class_bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Weights W of the RBM of x, (H, d)."""
        return self.rbm.weight

    @property
    def base(self) -> Any:
        """Base of the RBM of x."""
        return self.rbm.base

    # ---------------------------------------------------------------- classes

    def class_logits(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """log of p(x, y) up to a function of x, (n, K); a `beta` of shape (k, 1) gives (k, n, K).

        It is the log of the sum over hidden units of exp(-beta E(x, y, h)), without the visible
        part.
        """
        field = self.rbm.hidden_field(x)
        if isinstance(beta, Tensor):
            beta = beta.unsqueeze(-1)
            return self._logits(beta * field, beta)
        return self._logits(field if beta == 1.0 else beta * field, beta)

    def _logits(self, field: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """The same of fields (..., n, H) of the hidden units without the class, at `beta`."""
        of_class = (beta * self.class_weight).transpose(-1, -2).unsqueeze(-3)
        some = max(1, CACHED // max(field.numel(), 1))
        parts = [softplus_sum(field.unsqueeze(-2) + own) for own in of_class.split(some, -2)]
        return torch.cat(parts, -1) + beta * self.class_bias

    def log_class_proba(self, x: Tensor) -> Tensor:
        """log p(y given x), exact, (n, K)."""
        return self.class_logits(x).log_softmax(1)

    def joint_free_energy(self, x: Tensor) -> Tensor:
        """-log sum_h exp(-E(x, y, h)) of every class, (n, K)."""
        return self.rbm.visible_energy(x)[:, None] - self.class_logits(x)

    def given(self, label: int) -> MixedRBM:
        """The RBM of x whose hidden biases are those of a class: p(x given y).

        Its log Z is that of the class, less the bias d of the class.
        """
        copy = self.rbm.annealed(1.0)
        with torch.no_grad():
            copy.hidden_bias.add_(self.class_weight[:, label])
        return copy

    # ---------------------------------------------------------------- a bipartite energy

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_{y, h} exp(-beta E(x, y, h)), (n,); `beta` of shape (k, 1) gives (k, n)."""
        visible = beta * self.rbm.visible_energy(x)
        return visible - self.class_logits(x, beta).logsumexp(-1)

    def hidden(self, x: Tensor, beta: float = 1.0) -> ClassesAndUnits:
        """p(y, h given x) at inverse temperature `beta`."""
        field = self.rbm.hidden_field(x)
        return self.units_given_field(field if beta == 1.0 else beta * field, beta)

    def log_sum(self, field: Tensor, beta: float = 1.0) -> Tensor:
        """log of the sum over y and h, (n,), of fields (n, H) that are at `beta` already."""
        return self._logits(field, beta).logsumexp(-1)

    def units_given_field(self, field: Tensor, beta: float = 1.0) -> ClassesAndUnits:
        """p(y, h given x) of fields (n, H), without the class, that are at `beta` already."""
        log_share = self._logits(field, beta).log_softmax(1)
        return ClassesAndUnits(log_share, field, beta * self.class_weight.t())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given y, h) under a field, as :meth:`MixedRBM.visible`; y has no influence."""
        return self.rbm.visible(h[:, self.n_classes :], beta, field)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, y, h) + field' x), x as clamped where it is, (n,)."""
        y, units = h[:, : self.n_classes], h[:, self.n_classes :]
        of_class = y @ self.class_bias + (units * (y @ self.class_weight.t())).sum(1)
        return self.rbm.hidden_energy(units, beta, field, clamp) - beta * of_class

    def annealed(self, beta: float, start: Any = None) -> ClassRBM:
        """The model whose parameters are on the line from those of a start, at 0, to these, at 1.

        By default all parameters are multiplied by `beta`: at 0 the model is the base with free
        classes and hidden units.
        """
        rbm = self.rbm.annealed(beta, start)
        return self._of(rbm, beta * self.class_weight, beta * self.class_bias)

    def base_alone(self) -> ClassRBM:
        """The base with free classes and without hidden units: its log Z is log K, exactly."""
        start = self.annealed(0.0)
        rbm = start.rbm.first_units(0)
        return self._of(rbm, start.class_weight[:0], start.class_bias)

    def wider_base(self) -> WiderColumns:
        """A start of annealing that covers modes far from the base, that of the RBM of x."""
        return self.rbm.wider_base()

    def with_padding(self) -> ClassRBM:
        """A copy whose RBM of x is filled up with units that are never on."""
        rbm = self.rbm.with_padding()
        down = len(rbm.weight) - len(self.class_weight)
        weight = zero_pad(self.class_weight.detach(), 0, down)
        return self._of(rbm, weight, self.class_bias)

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> ClassGradient:
        """The gradient by hand, from one matrix product over data and chains."""
        return ClassGradient(self, centering, penalty)


class ClassGradient(ContrastGradient):
    r"""Gradient of a contrast of free energies and of cross-entropies, from one matrix product.

    Both are sums over rows and classes, :math:`\sum_i \sum_y r_{iy} \nabla F(x_i, y)`, of the
    gradients of the free energies of rows and classes. The weights r of a free energy F(x) are
    p(y given x) times its sign; those of a cross-entropy are :math:`p(y \mid x) - 1[y = y_i]`.

    Parameters
    ----------
    energy : ClassRBM
    centering : Centering or None
        Of the visible units, the classes among them, and the hidden units.
    penalty : Penalty or None
        On the weights W and U; without a target of sparsity.
    """

    def __init__(self, energy: ClassRBM, centering: Centering | None, penalty: Penalty | None):
        if penalty is not None and penalty.sparsity_target is not None:
            raise ValueError(
                "sparsity_target is not available with classes: use l1 and l2 of Penalty alone."
            )
        self.energy, self.centering, self.penalty = energy, centering, penalty
        self.of_rows = energy.rbm.contrast_gradient(centering, None)
        self._rows: Tensor | None = None

    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        """Means of the rows, classes and hidden units."""
        if self.centering is None:
            return None
        layer = self.energy.hidden(x).mean
        units = layer[:, self.energy.n_classes :]
        of_rows = self.of_rows.start_at(x, weight, units)
        shares = means_of(weight, layer[:, : self.energy.n_classes])[0]
        return Offsets(torch.cat([of_rows.visible, shares]), of_rows.hidden)

    def write(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None]:
        offsets, layer, _ = self.write_supervised(x, chain, sign, share, None, offsets, generator)
        return offsets, layer

    @torch.no_grad()
    def write_supervised(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        target: Tensor | None,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None, Tensor]:
        """Write ``.grad`` of a contrast plus a weighted sum of cross-entropies.

        Parameters
        ----------
        x, chain, sign, share, offsets, generator
            As for :meth:`write`.
        target : Tensor of shape (n, K) or None
            The weight of each row in the cross-entropy, in the column of its class, and 0
            elsewhere; None for no cross-entropy.

        Returns
        -------
        tuple
            Offsets for the next batch; the hidden layer, or None; and log p(y given x) of the
            rows, (n, K).
        """
        energy, n = self.energy, len(x)
        self._rows = memory(self._rows, (n + len(chain), x.shape[1]), x)
        rows = torch.cat([x, chain], out=self._rows)
        field = energy.rbm.hidden_field(rows)
        log_share = energy._logits(field).log_softmax(1)
        p = log_share.exp()
        weights = sign[:, None] * p
        if target is not None:
            weights[:n] += target.sum(1, keepdim=True) * p[:n] - target
        signed, units, of_class = self._sums(field, weights, p, n)
        layer = None
        if generator is not None:
            given = ClassesAndUnits(log_share[n:], field[n:], energy.class_weight.t())
            layer = given.sample(generator)
        if offsets is not None:
            assert self.centering is not None
            seen = torch.cat([x, p[:n]], 1)
            offsets = offsets.moving_average(seen, units, share, self.centering.rate)
        self._write(rows, weights, signed, of_class, offsets)
        return offsets, layer, log_share[:n]

    def _sums(
        self, field: Tensor, weights: Tensor, p: Tensor, n: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted sums of the hidden means over classes, (n + m, H), and over rows, (H, K).

        And the means of the first n rows, (n, H), where units are centred.
        """
        signed, units = torch.zeros_like(field), field[:n].clone().zero_()
        of_class = torch.empty_like(self.energy.class_weight)
        for k, own in enumerate(self.energy.class_weight.unbind(1)):
            h = (field + own).sigmoid_()
            signed.addcmul_(weights[:, k, None], h)
            of_class[:, k] = weights[:, k] @ h
            if self.centering is not None:
                units.addcmul_(p[:n, k, None], h[:n])
        return signed, units, of_class

    def _write(
        self,
        rows: Tensor,
        weights: Tensor,
        signed: Tensor,
        of_class: Tensor,
        offsets: Offsets | None,
    ) -> None:
        """Write ``.grad`` of all parameters, centred at the offsets."""
        energy, rbm = self.energy, self.energy.rbm
        sign, hidden = weights.sum(1), signed.sum(0)
        rest = self.of_rows.contrast_of_rest(sign, rows, signed)
        right, at_x = self.of_rows.statistics(rows), None
        of_y = Gradient(of_class, weights.sum(0), hidden)
        out = memory(rbm.weight.grad, rbm.weight.shape, rbm.weight)
        if offsets is None:
            plain = weight = torch.mm(signed.t(), right, out=out)
            of_x = Gradient(weight, sign @ right, hidden)
        else:
            d = energy.domain.n_columns
            at_x = self.of_rows.at_statistics(Offsets(offsets.visible[:d], offsets.hidden))
            assert at_x is not None
            columns = self._scales(at_x.visible, self.of_rows.relative_variance)
            units = self._scales(offsets.hidden)
            factors = sign, signed, right, columns, units
            of_x, of_y = self._center(factors, of_y, at_x, offsets.visible[d:], out)
            # Without the preconditioning, as the gradient of other parameters needs it.
            plain = of_x.weight if rest is None else of_x.weight / columns / units[:, None]
        if rest is not None:  # the signs of hidden means are in the weights of their classes
            rest = (*rest[:2], hidden)
        self.of_rows.write_rest(rest, Gradient(plain, of_x.visible, of_x.hidden), at_x)
        rbm.weight.grad, rbm.visible_bias.grad = of_x.weight, of_x.visible
        rbm.hidden_bias.grad = of_x.hidden
        energy.class_weight.grad, energy.class_bias.grad = of_y.weight, of_y.visible
        if self.penalty is not None:
            self._add_penalty(at_x, offsets)

    def _scales(
        self, mean: Tensor, variance: Callable[[Tensor], Tensor] = relative_variance
    ) -> Tensor:
        """Factors of the preconditioning, of units with these means."""
        assert self.centering is not None
        power = self.centering.precondition
        return variance(mean).pow(-power) if power else torch.ones_like(mean)

    def _center(
        self,
        factors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        of_y: Gradient,
        at_x: Offsets,
        pi: Tensor,
        out: Tensor,
    ) -> tuple[Gradient, Gradient]:
        """Gradients of rows and classes, as if they were one visible layer, centred.

        The factors of the weights' gradient are centred and scaled, not their product, which is
        larger: as in :func:`~skebm.energies.rbm.gradient.sum_of_signed_products`.
        """
        sign, left, right, columns, units = factors
        mu, lam = at_x
        classes = self._scales(pi)
        visible = (sign @ right).mul_(columns)
        left = left.addr_(sign, lam, alpha=-1).mul_(units)
        right = right.sub_(mu).mul_(columns)
        of_class = of_y.weight - torch.outer(of_y.hidden, pi) - torch.outer(lam, of_y.visible)
        of_class = of_class * units[:, None] * classes
        hidden = of_y.hidden * units - (right @ mu) @ left - of_class @ pi
        weight = torch.mm(left.t(), right, out=out)
        of_x = Gradient(weight, visible - (left @ lam) @ right, hidden)
        return of_x, Gradient(of_class, of_y.visible * classes - lam @ of_class, hidden)

    def _add_penalty(self, at_x: Offsets | None, offsets: Offsets | None) -> None:
        """Add the gradient of the penalties, centred as the others."""
        energy, rbm, penalty = self.energy, self.energy.rbm, self.penalty
        assert penalty is not None
        d = energy.domain.n_columns
        at_y = None if offsets is None else Offsets(offsets.visible[d:], offsets.hidden)
        blocks = (
            (rbm.weight, rbm.visible_bias, at_x, self.of_rows.relative_variance),
            (energy.class_weight, energy.class_bias, at_y, relative_variance),
        )
        for weight, bias, at, variance in blocks:
            zeros = torch.zeros_like(bias), torch.zeros_like(rbm.hidden_bias)
            gradient = Gradient(penalty.l1 * weight.sign() + penalty.l2 * weight, *zeros)
            gradient = center_gradient(gradient, at)
            if at is not None and self.centering is not None and self.centering.precondition:
                power = self.centering.precondition
                gradient = precondition_gradient(gradient, at, variance(at.visible), power)
            for parameter, value in zip((weight, bias, rbm.hidden_bias), gradient, strict=True):
                assert parameter.grad is not None
                parameter.grad += value
