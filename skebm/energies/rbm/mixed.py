r"""Restricted Boltzmann machines with visible units of any kind, given by a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Centering,
    Clamp,
    Domain,
    Offsets,
    Penalty,
    Real,
)
from skebm.base.domains import columns_of, enumeration_cost, parts_of
from skebm.base.energy import are_bits, difference_of_levels, differences_of, discrete_columns
from skebm.base.torchtools import softplus, softplus_sum, zero_pad
from skebm.base.units import Bernoulli
from skebm.distributions import (
    Columns,
    Distribution,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
    LatentClasses,
    Tilt,
)
from skebm.distributions.independent import blocks_of
from skebm.energies.rbm.gradient import Gradient, RBMGradient, memory

# Log of the sum over hidden units of fields (..., H), (...).
LogSum = Callable[[Tensor], Tensor]


class Widths(NamedTuple):
    """The base with trained precisions, and the factors of its statistics, None without any."""

    structure: Distribution
    factor: Tensor | None


class MixedRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine with visible units of the kinds that its base determines.

    .. math::
        E(x, h) = -\log q_s(x) - b^\top t(x) - c^\top h - h^\top W t(x), \qquad
        F(x) = -\log q_s(x) - b^\top t(x) - \sum_j \log\bigl(1 + e^{c_j + W_j t(x)}\bigr).

    Given the hidden units, rows have the base q with unary fields: bits stay bits, one-hot columns
    are softmax units, and real columns are normal with a covariance that does not depend on h. With
    any distribution that has exact conditionals under unary fields, p(x given h) is exact, and log
    Z is a sum over the hidden states.

    The covariance of real columns is trained: in :math:`q_s` a real column is distributed as in q
    after division by :math:`e^{s_i / 2}`, so that its precision is that in q times :math:`e^{s_i}`
    and the correlations do not change; the hidden units explain the rest of the variance. (If q has
    latent classes, only the precisions within the classes are multiplied.) The statistics t(x) are
    :math:`e^{s_i} x_i` for real entries and x_i for all others: where q has independent columns of
    unit variance and mean 0, the mean of a real column given h is then :math:`b_i + W_i^\top h`,
    whatever its variance.

    Parameters
    ----------
    base : Distribution
        q, on flat rows, with exact tilts: :class:`~skebm.distributions.IndependentBernoulli`, a
        tree, :class:`~skebm.distributions.IndependentCategorical`,
        :class:`~skebm.distributions.Gaussian`, :class:`~skebm.distributions.LatentClasses`, or
        several of them side by side (:class:`~skebm.distributions.Columns`). Not trained.
        Annealing, tempering and chains start from it.
    n_hidden : int
        Number of hidden units, H.
    generator : torch.Generator
        Source of the initial weights, N(0, `scale` squared).
    scale : float, default=0.01
        Standard deviation of the initial weights.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.

    Attributes
    ----------
    weight : Parameter of shape (n_hidden, n_visible)
    visible_bias : Parameter of shape (n_visible,)
        Fields in addition to those of the base; initially 0.
    hidden_bias : Parameter of shape (n_hidden,)
    log_precision : Parameter of shape (n_real,)
        s, of the real columns in order; initially 0.
    is_real : Tensor of shape (n_visible,)
        Which entries of a row are real.

    References
    ----------
    Welling, Rosen-Zvi and Hinton (2004), "Exponential family harmoniums with an application to
    information retrieval", NeurIPS, section 2. Cho, Ilin and Raiko (2011), "Improved learning of
    Gaussian-Bernoulli restricted Boltzmann machines", ICANN (learned variances).

    Examples
    --------
    Two colours, three sizes and a weight:

    >>> import torch
    >>> from skebm.distributions import Columns, Gaussian, IndependentCategorical
    >>> from skebm.energies import MixedRBM
    >>> from skebm.partition import Exact
    >>> q = Columns([IndependentCategorical(torch.zeros(5), (2, 3)), Gaussian(torch.zeros(1), 1.0)])
    >>> energy = MixedRBM(q, 4, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> round(Exact().estimate(energy).value, 4)  # 4 log 2, as q is normalised
    2.7726
    """

    domain: Domain
    always_proper = True  # a finite mixture of what its base is
    hidden_domain: Binary
    is_real: Tensor
    real_columns: Tensor

    def __init__(
        self,
        base: Distribution,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.parts = blocks_of(base)
        check_parts(self.parts)
        self.base, self.domain = base, base.domain
        self._kept: tuple[Any, Widths] | None = None
        self._n_right = 0  # columns that fill up a copy
        self.hidden_domain = Binary((n_hidden,))
        n_visible = base.domain.n_columns
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        weight = torch.randn(n_hidden, n_visible, generator=generator, **new)
        self.weight = nn.Parameter(scale * weight)
        self.visible_bias = nn.Parameter(torch.zeros(n_visible, **new))
        self.hidden_bias = nn.Parameter(torch.zeros(n_hidden, **new))
        kinds = parts_of(base.domain)
        is_real = [torch.full((kind.n_columns,), isinstance(kind, Real)) for kind in kinds]
        self._register_kinds(torch.cat(is_real).to(generator.device))
        self.log_precision = nn.Parameter(torch.zeros(int(self.is_real.sum()), **new))

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    def _register_kinds(self, is_real: Tensor) -> None:
        self.register_buffer("is_real", is_real, persistent=False)
        self.register_buffer("real_columns", is_real.nonzero().ravel(), persistent=False)

    def structure(self) -> Distribution:
        """q with the trained precisions of its real columns."""
        return self._widths().structure

    def factor(self) -> Tensor | None:
        """Ratio of t(x) to x, (d,); None if no column is real."""
        return self._widths().factor

    def _widths(self) -> Widths:
        """What follows from the precisions, computed once as long as they stay."""
        if torch.is_grad_enabled():
            return self._new_widths()
        now = self.log_precision.data_ptr(), self.log_precision._version
        if self._kept is None or self._kept[0] != now:
            self._kept = now, self._new_widths()
        return self._kept[1]

    def _new_widths(self) -> Widths:
        if not len(self.log_precision):
            return Widths(self.base, None)
        own = self.log_precision.split([n_real(part) for part in self.parts])
        parts = [
            part.with_precision(s) if len(s) else part
            for part, s in zip(self.parts, own, strict=True)
        ]
        factor = torch.ones(self.domain.n_columns).to(self.visible_bias)
        factor = factor.masked_scatter(self.is_real, self.log_precision.exp())
        return Widths(Columns(parts) if isinstance(self.base, Columns) else parts[0], factor)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    # ---------------------------------------------------------------- energies

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""
        field = self.hidden_field(x)
        scaled = beta.unsqueeze(-1) * field if isinstance(beta, Tensor) else beta * field
        return beta * self.visible_energy(x) - softplus(scaled).sum(-1)

    def visible_energy(self, x: Tensor) -> Tensor:
        """The part of E(x, h) without hidden units, -log q_s(x) - b't(x), (n,)."""
        return -(self.statistics(x) @ self.visible_bias) - self.structure().log_prob(x)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weight, visible and hidden bias."""
        return self.weight, self.visible_bias, self.hidden_bias

    def statistics(self, x: Tensor) -> Tensor:
        """t(x), (n, d), with columns of zeros in a padded copy."""
        factor = self.factor()
        t = x if factor is None else x * factor
        return nn.functional.pad(t, (0, self._n_right)) if self._n_right else t

    def hidden_field(self, x: Tensor) -> Tensor:
        """c + W t(x), log-odds of the hidden units, (n, H)."""
        return torch.addmm(self.hidden_bias, self.statistics(x), self.weight.t())

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_j = 1 given x) = sigmoid(beta (c_j + W_j t(x))), mean of shape (n, H)."""
        return Bernoulli((beta * self.hidden_field(x)).sigmoid())

    def log_sum(self, field: Tensor, beta: float = 1.0) -> Tensor:
        """log of the sum over hidden units, (n,), of fields (n, H) that are at `beta` already."""
        return softplus_sum(field)

    def units_given_field(self, field: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h given x) of fields (n, H) that are at `beta` already."""
        return Bernoulli(field.sigmoid())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Tilt:
        """p(x given h), proportional to q_s(x)^beta exp(beta (b + W'h)' t(x) + field' x)."""
        own, factor = torch.addmm(self.visible_bias, h, self.weight), self.factor()
        own = own[:, : self.domain.n_columns]
        own = own if factor is None else own * factor
        own = own if beta == 1.0 else beta * own
        return self.structure().tilted(own if field is None else own + field, beta)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x), x as clamped where it is, (n,)."""
        tilt = self.visible(h, beta, field)
        if clamp is not None:
            tilt = tilt.given(clamp)
        return -beta * (h @ self.hidden_bias) - tilt.log_normaliser

    def level_difference(self, x: Tensor, log_sum: LogSum = softplus_sum) -> Tensor:
        """E(x after a change of one column) - E(x), (n, d), without a product for each change.

        `log_sum` sums out hidden units of another kind than bits; it maps fields (..., H) to (...).
        """
        if len(self.log_precision):
            return super().level_difference(x)  # which says why not
        field, d, differences = self.hidden_field(x), self.domain.n_columns, []
        weight, here = self.weight.unbind(1), log_sum(field)
        for (first, width), is_bit in zip(
            discrete_columns(self.domain), are_bits(self.domain), strict=True
        ):
            own, entries = weight[first : first + width], x[:, first : first + width]
            if is_bit:
                moved = [torch.addcmul(field, 1 - 2 * entries, own[0])]
            else:
                rest = field - entries @ torch.stack(own)
                moved = [rest + w for w in own]
            differences += [here - log_sum(one) for one in moved]
        linear = difference_of_levels(self.visible_bias[:d].expand_as(x), x, self.domain)
        return torch.stack(differences, 1) + linear + self._base_difference(x)

    @torch.no_grad()
    def _base_difference(self, x: Tensor) -> Tensor:
        """log q(x) - log q(x after a change of one column), (n, d)."""
        differences = []
        blocks = x.split([part.domain.n_columns for part in self.parts], 1)
        for part, block in zip(self.parts, blocks, strict=True):
            if isinstance(part, IndependentBernoulli | IndependentCategorical):
                logits = part.logits.expand_as(block)
                differences.append(difference_of_levels(logits, block, part.domain))
            else:
                differences.append(-differences_of(part.log_prob, block, part.domain))
        return torch.cat(differences, 1)

    @torch.no_grad()
    def hold_within_limits(self) -> None:
        """Hold the precisions of real columns: those of constant ones would grow for ever.

        A base that covers heavy tails becomes no narrower.
        """
        most = [0.0 if covers_tails(part) else MAX_LOG_PRECISION for part in self.parts]
        if len(set(most)) == 1:
            self.log_precision.clamp_(max=most[0])
            return
        own = self.log_precision.split([n_real(part) for part in self.parts])
        for one, largest in zip(own, most, strict=True):
            one.clamp_(max=largest)

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> MixedGradient:
        """The gradient by hand, from one matrix product over data and chains."""
        return MixedGradient(self, centering, penalty)

    def enumeration_cost(self) -> float:
        """States of the cheaper layer times units of the other."""
        return enumeration_cost(self.domain, self.hidden_domain)

    @torch.no_grad()
    def pseudo_log_likelihood(self, x: Tensor, log_sum: LogSum = softplus_sum) -> Tensor:
        r"""Sum over columns of log p(x_i given the other columns), (n,), densities of real ones.

        The sum is exact for bits and categories. For real columns it is computed by the trapezoidal
        rule: given the other columns, a real column has a mixture of normal distributions of known
        width. `log_sum` sums out hidden units of another kind than bits; it maps fields (..., H) to
        (...).
        """
        total, first = x.new_zeros(len(x)), 0
        for part in blocks_of(self.structure()):
            groups = columns_of(part.domain)
            d, real = part.domain.n_columns, n_real(part)
            if isinstance(part, Gaussian):
                total = total + self._of_real(x, part, range(first, first + d), log_sum)
            else:
                n_levels = len(groups) - real
                total = total + self._of_levels(x, first, groups[:n_levels], log_sum)
            if isinstance(part, LatentClasses):
                real_columns = range(first + d - real, first + d)
                total = total + self._of_classes(x, part, real_columns, log_sum)
            first += d
        return total

    def _of_levels(self, x: Tensor, first: int, groups: Sequence[int], log_sum: LogSum) -> Tensor:
        """Of bits, groups of one entry, and of one-hot columns."""

        def energy(x: Tensor) -> Tensor:
            return self.visible_energy(x) - log_sum(self.hidden_field(x))

        here, total = energy(x), x.new_zeros(len(x))
        for k in groups:
            column, gains = slice(first, first + k), [torch.zeros_like(here)]
            for shift in range(1, max(k, 2)):
                other = x.clone()
                other[:, column] = 1 - x[:, column] if k == 1 else x[:, column].roll(shift, 1)
                gains.append(here - energy(other))
            total = total - torch.stack(gains).logsumexp(0)
            first += k
        return total

    def _of_real(self, x: Tensor, q: Gaussian, columns: range, log_sum: LogSum) -> Tensor:
        """Of real columns with the distribution q of all widths."""
        factor, total = self.factor(), x.new_zeros(len(x))
        assert factor is not None
        field, score = self.hidden_field(x), q.score(x[:, columns])
        for place, i in enumerate(columns):
            variance = 1 / _precision(q, place)
            weight, bias = self.weight[:, i] * factor[i], self.visible_bias[i] * factor[i]
            # Along the column log q is quadratic, with this mean, which hidden units move.
            mean = x[:, i] + variance * (score[:, place] + bias)
            low, high = (variance * w.sum() for w in (weight.clamp(max=0), weight.clamp(min=0)))
            reach = N_WIDTHS * variance.sqrt()
            n_nodes = int(((high - low + 2 * reach) / variance.sqrt() * PER_WIDTH).clamp(max=2000))
            step = (high - low + 2 * reach) / n_nodes
            nodes = low - reach + step * torch.arange(n_nodes + 1).to(x)  # relative to the mean

            def log_weight(z: Tensor, mean=mean, weight=weight, variance=variance, i=i) -> Tensor:
                """Up to a constant, at z (n, k) relative to the mean."""
                moved = field.unsqueeze(1) + (mean[:, None] + z - x[:, i, None])[..., None] * weight
                return log_sum(moved) - z.square() / (2 * variance)

            log_norm = log_weight(nodes[None]).logsumexp(1) + step.log()
            total = total + log_weight((x[:, i] - mean)[:, None])[:, 0] - log_norm
        return total

    def _of_classes(self, x: Tensor, q: LatentClasses, columns: range, log_sum: LogSum) -> Tensor:
        """Of real columns that are independent in each class of the distribution q."""
        factor, total = self.factor(), x.new_zeros(len(x))
        assert factor is not None
        field, first = self.hidden_field(x), columns.stop - q.domain.n_columns
        row = x[:, first : columns.stop]
        for place, i in enumerate(columns):
            weight, bias = self.weight[:, i] * factor[i], self.visible_bias[i] * factor[i]
            others = torch.arange(first, columns.stop, device=x.device) != i
            clamp = Clamp(others.expand(len(x), -1), row)
            of_class = q.tilted(torch.zeros_like(row)).given(clamp).log_joint

            def log_weight(z: Tensor, c: int, weight=weight, bias=bias, place=place, i=i) -> Tensor:
                """Of class c without the other columns, up to a constant, at z (n, k)."""
                moved = field.unsqueeze(1) + (z - x[:, i, None])[..., None] * weight
                white = (z - q.mean[c, place]) / q.scale[c, place]
                log_q = -white.square() / 2 - q.scale[c, place].log()
                return log_sum(moved) + bias * z + log_q

            norms, own = [], []
            for c in range(q.n_classes):
                scale = q.scale[c, place]
                variance, reach = scale.square(), N_WIDTHS * scale
                low, high = (variance * w.sum() for w in (weight.clamp(max=0), weight.clamp(min=0)))
                width = high - low + 2 * reach
                n_nodes = int((width / scale * PER_WIDTH).clamp(max=2000))
                nodes = low - reach + width / n_nodes * torch.arange(n_nodes + 1).to(x)
                z = (q.mean[c, place] + variance * bias + nodes).expand(len(x), -1)
                norms.append(log_weight(z, c).logsumexp(1) + (width / n_nodes).log())
                own.append(log_weight(x[:, i, None], c)[:, 0])
            total = total + (of_class + torch.stack(own, 1)).logsumexp(1)
            total = total - (of_class + torch.stack(norms, 1)).logsumexp(1)
        return total

    def with_padding(self, multiple: int = 16) -> MixedRBM:
        """A copy with both layers filled up to a multiple by units that are never on.

        At such shapes BLAS rounds every row of a product alike, wherever it stands.
        """
        n_hidden, n_visible = self.weight.shape
        right, down = -n_visible % multiple, -n_hidden % multiple
        copy = self.annealed(1.0)
        copy._n_right = right
        weight = zero_pad(copy.weight.detach(), right, down)
        visible = nn.functional.pad(copy.visible_bias, (0, right))
        hidden = nn.functional.pad(copy.hidden_bias, (0, down), value=-1e4)
        for name, value in zip(TENSORS, (weight, visible, hidden), strict=True):
            setattr(copy, name, nn.Parameter(value, requires_grad=False))
        copy.hidden_domain = Binary((n_hidden + down,))
        return copy

    def annealed(self, beta: float, start: dict[str, Tensor] | None = None) -> MixedRBM:
        """The model whose parameters are on the line from those of a start, at 0, to these, at 1.

        A parameter without a start is multiplied by `beta`: at 0 the model is, by default, the base
        with free hidden units.
        """
        copy = object.__new__(MixedRBM)
        nn.Module.__init__(copy)
        copy.parts, copy.base, copy._kept = self.parts, self.base, None
        copy._n_right = self._n_right
        copy.domain, copy.hidden_domain = self.domain, self.hidden_domain
        copy._register_kinds(self.is_real)
        for name, own in self.named_parameters():
            value = beta * own.detach()
            if start is not None and name in start:
                value = value + (1 - beta) * start[name]
            setattr(copy, name, nn.Parameter(value, requires_grad=False))
        return copy

    def first_units(self, n: int) -> MixedRBM:
        """A copy with the first n hidden units, without the others."""
        copy = self.annealed(1.0)
        copy.weight = nn.Parameter(copy.weight[:n], requires_grad=False)
        copy.hidden_bias = nn.Parameter(copy.hidden_bias[:n], requires_grad=False)
        copy.hidden_domain = Binary((n,))
        return copy

    def wider_base(self) -> WiderColumns:
        """A start of annealing that covers modes far from the base: uniform levels, wide columns.

        The standard deviations of real columns are ten times those of the base; trees and the
        levels of latent classes do not change.
        """
        parts: list[Distribution] = []
        bias, first = torch.zeros_like(self.visible_bias), 0
        for part in self.parts:
            own = slice(first, first + part.domain.n_columns)
            first = own.stop
            if isinstance(part, Gaussian):
                part = part.with_precision(torch.full_like(part.mean, -2 * math.log(WIDER)))
            elif isinstance(part, IndependentBernoulli):
                bias[own] = -part.logits
                part = IndependentBernoulli(torch.zeros_like(part.logits))
            elif isinstance(part, IndependentCategorical):
                bias[own] = -part.logits
                part = IndependentCategorical(torch.zeros_like(part.logits), part.domain.groups)
            elif isinstance(part, LatentClasses):
                part = part.with_precision(torch.full_like(part.mean[0], -2 * math.log(WIDER)))
            parts.append(part)
        precision = torch.full_like(self.log_precision, -2 * math.log(WIDER))
        return WiderColumns(parts, {"visible_bias": bias, "log_precision": precision})


class WiderColumns(Columns):
    """A wider distribution of blocks, and the parameters of an RBM without weights that equals it.

    Parameters
    ----------
    parts : sequence of Distribution
    parameters : dict of str to Tensor
        ``"visible_bias"`` and ``"log_precision"`` of a :class:`MixedRBM`.
    """

    def __init__(self, parts: Sequence[Distribution], parameters: dict[str, Tensor]):
        super().__init__(parts)
        self.parameters = parameters
        if len(self.parts) == 1:
            self.domain = self.parts[0].domain  # type: ignore[assignment]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> WiderColumns:
        """A copy on a device, its floating-point tensors in the given precision."""
        moved = {name: value.to(device, dtype) for name, value in self.parameters.items()}
        return WiderColumns([part.to(device, dtype) for part in self.parts], moved)


class MixedGradient(RBMGradient):
    """Gradient of a contrast of free energies, including that of the precisions.

    With preconditioning, the gradient of the weights of a real column is divided by the factor of
    its statistic, the Fisher information of its mean: large precisions do not change the steps of
    the means.
    """

    energy: MixedRBM
    _product: Tensor | None = None  # memory that is used again

    def statistics(self, x: Tensor) -> Tensor:
        return self.energy.statistics(x)

    def relative_variance(self, mean: Tensor) -> Tensor:
        of_bits, factor = super().relative_variance(mean), self.energy.factor()
        if factor is None:
            return of_bits
        assert self.centering is not None
        own = 4 * factor.pow(1 / self.centering.precondition)
        return torch.where(self.energy.is_real, own, of_bits)

    def contrast_of_rest(self, sign: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, ...] | None:
        """Contrasts of d log q_s(x) / ds, (n_real,), of t(x), (d,), and of hidden means, (H,).

        None where no column is real.
        """
        energy = self.energy
        if not len(energy.log_precision):
            return None
        parts = blocks_of(energy.structure())
        blocks = zip(parts, x.split([p.domain.n_columns for p in parts], 1), strict=True)
        score = [sign @ part.precision_score(one) for part, one in blocks if n_real(part)]
        factor = energy.factor()
        assert factor is not None
        return torch.cat(score), (sign @ x) * factor, sign @ h

    def write_rest(
        self, rest: tuple[Tensor, ...] | None, gradient: Gradient, at: Offsets | None
    ) -> None:
        """Write the gradient of s: contrasts of d log q_s(x) / ds + t(x)'(b + W'h).

        The contrast of h t(x)' is the gradient of the weights, so that no row is multiplied again.
        """
        energy, real = self.energy, self.energy.real_columns
        if rest is None:
            energy.log_precision.grad = torch.zeros_like(energy.log_precision)
            return
        score, t, h = rest
        weight, bias = energy.weight, energy.visible_bias
        self._product = memory(self._product, weight.shape, weight)
        torch.mul(weight, gradient.weight, out=self._product)
        grad = self._product.sum(0) + bias * t
        if at is not None:
            grad += (at.hidden @ weight) * t + (h @ weight) * at.visible
        energy.log_precision.grad = score + (grad if len(real) == len(t) else grad[real])


TENSORS = ("weight", "visible_bias", "hidden_bias")
# Standard deviations of a wider start of annealing, in those of the base.
WIDER = 10.0
# Largest precision of a real column given the others and the hidden units, relative to the base's.
MAX_LOG_PRECISION = math.log(1e4)
# Standard deviations beyond the farthest mean that an integral over a column reaches, and its nodes
# for each: the trapezoidal rule is then exact to rounding.
N_WIDTHS, PER_WIDTH = 6.0, 2.0


def _precision(q: Gaussian, i: int) -> Tensor:
    """Precision of an entry given the others."""
    if q.scale is not None:
        return q.scale[i].reciprocal().square()
    assert q.scale_tril is not None
    unit = torch.zeros_like(q.mean)
    unit[i] = 1.0
    white = torch.linalg.solve_triangular(q.scale_tril, unit[:, None], upper=False)
    return white.square().sum()


def covers_tails(part: Distribution) -> bool:
    """Whether a distribution is to stay as wide as it is."""
    return isinstance(part, Gaussian) and part.covers_tails


def n_real(part: Distribution) -> int:
    """Number of real columns of a distribution."""
    return sum(kind.n_columns for kind in parts_of(part.domain) if isinstance(kind, Real))


def check_parts(parts: list[Any]) -> None:
    """Raise `ValueError` for distributions without exact tilts."""
    for part in parts:
        if not part.has_tilted or len(part.domain.row_shape) != 1:
            raise ValueError(
                f"{part!r} has no exact conditionals under unary fields: use independent bits or "
                "categories, trees, or a Gaussian of flat rows."
            )
