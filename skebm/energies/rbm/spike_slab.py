r"""Spike-and-slab restricted Boltzmann machines: hidden units that change covariances."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Centering,
    Clamp,
    Conditional,
    ContrastGradient,
    Offsets,
    Penalty,
    Real,
)
from skebm.base.domains import enumeration_cost
from skebm.base.units import Bernoulli
from skebm.distributions import Gaussian
from skebm.energies.rbm.gradient import memory
from skebm.energies.rbm.mixed import MAX_LOG_PRECISION, WIDER, WiderColumns

# Largest squared norm of a unit's weights, the precision that it adds in units of the base's, where
# training holds it.
MAX_PRECISION = math.exp(MAX_LOG_PRECISION)
# Least precision of a coordinate, in units of the base's: where all spikes are on rows are normal
# with these precisions, a state that chains near the data never visit, and of 1/100 training with
# large steps leaves thousands of nats there. On digits floors from 1/100 to 1/3 end alike.
MIN_LOG_PRECISION = math.log(0.1)
TENSORS = ("weight", "visible_bias", "hidden_bias", "slab_mean", "log_precision")


class Frame(NamedTuple):
    """Coordinates u in which a normal distribution is standard: x = centre + L u.

    Attributes
    ----------
    centre : Tensor of shape (d,)
    scale : Tensor of shape (d,) or (d, d)
        L: a diagonal or a lower triangular matrix.
    inverse : Tensor of shape (d,) or (d, d)
        Inverse of L; transposed if L is a matrix.
    """

    centre: Tensor
    scale: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, base: Gaussian) -> Frame:
        """The coordinates of a normal distribution of flat rows."""
        if base.scale is not None:
            return cls(base.mean, base.scale, base.scale.double().reciprocal().to(base.mean))
        assert base.scale_tril is not None
        one = torch.eye(len(base.mean), dtype=torch.float64, device=base.mean.device)
        inverse = torch.linalg.solve_triangular(base.scale_tril.double(), one, upper=False)
        return cls(base.mean, base.scale_tril, inverse.t().contiguous().to(base.mean))

    def white(self, x: Tensor) -> Tensor:
        """u of rows x, (n, d)."""
        x = x - self.centre
        return x * self.inverse if self.inverse.dim() == 1 else x @ self.inverse

    def rows(self, u: Tensor) -> Tensor:
        """x of rows u, (n, d)."""
        moved = u * self.scale if self.scale.dim() == 1 else u @ self.scale.t()
        return self.centre + moved

    def covector(self, field: Tensor) -> Tensor:
        """f with f' u = field' (x - centre), of the shape of `field`."""
        return field * self.scale if self.scale.dim() == 1 else field @ self.scale

    def pullback(self, covector: Tensor) -> Tensor:
        """f with f' (x - centre) = covector' u, of the shape of `covector`."""
        if self.inverse.dim() == 1:
            return covector * self.inverse
        return covector @ self.inverse.t()

    def matrix(self) -> Tensor:
        """L as a matrix, (d, d)."""
        return self.scale.diag() if self.scale.dim() == 1 else self.scale


class NormalRows(Conditional):
    r"""Normal distributions proportional to :math:`e^{-u^\top P u / 2 + f^\top u}`, one per row.

    Parameters
    ----------
    frame : Frame
        Coordinates u of the rows.
    factor : Tensor of shape (d, d) or (n, d, d)
        Lower Cholesky factor of P, the same for all rows or one for each.
    linear : Tensor of shape (n, d)
        f.
    known : Clamp or None, default=None
        Entries of x that are known; the others are distributed given them.
    """

    def __init__(self, frame: Frame, factor: Tensor, linear: Tensor, known: Clamp | None = None):
        self.frame, self.factor, self.linear, self.known = frame, factor, linear, known

    def given(self, clamp: Clamp) -> NormalRows:
        """Given known entries of x; `log_normaliser` integrates over the others."""
        return NormalRows(self.frame, self.factor, self.linear, clamp)

    @functools.cached_property
    def _half(self) -> Tensor:
        """C^-1 f with the Cholesky factor C, (n, d)."""
        return _solve_triangular(self.factor, self.linear)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Exact means, (n, d), the known entries as they are."""
        return self._condition_on_known(
            self.frame.rows(_solve_triangular(self.factor, self._half, transposed=True))
        )

    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw for each row, the known entries as they are."""
        white = torch.empty_like(self._half).normal_(generator=generator).add_(self._half)
        return self._condition_on_known(
            self.frame.rows(_solve_triangular(self.factor, white, transposed=True))
        )

    def _condition_on_known(self, x: Tensor) -> Tensor:
        """Rows without regard to what is known, moved by the regression on what they missed."""
        if self.known is None:
            return x
        _, missed = self._residual_terms(x)
        return self.known.apply(x + (self._covariance @ missed[..., None])[..., 0])

    @functools.cached_property
    def _covariance(self) -> Tensor:
        """Covariance of x, (d, d) or (n, d, d)."""
        half = torch.linalg.solve_triangular(self.factor, self.frame.matrix().t(), upper=False)
        return half.mT @ half

    def _residual_terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Known entries less those of x: log-density without constants, (n,), and their weights.

        The covariance of the known entries, with unit rows for the others, is factorised for each
        row.
        """
        assert self.known is not None
        mask = self.known.mask.to(x)
        difference = torch.where(self.known.mask, self.known.value - x, 0.0)
        blocks = self._covariance * mask[:, :, None] * mask[:, None, :]
        tril = cholesky(blocks + torch.diag_embed(1 - mask))
        white = _solve_triangular(tril, difference)
        log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = -white.square().sum(1) / 2 - log_det - mask.sum(1) * math.log(2 * math.pi) / 2
        return value, _solve_triangular(tril, white, transposed=True)

    @property
    def log_normaliser(self) -> Tensor:
        r"""log of the integral over u, less :math:`\tfrac d2 \log 2\pi`, (n,).

        The integral is over the rows x that agree with the known entries, times the ratio of the
        volume of u to that of x.
        """
        log_det = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = self._half.square().sum(1) / 2 - log_det
        if self.known is None:
            return value
        free = NormalRows(self.frame, self.factor, self.linear)
        return value + self._residual_terms(free.mean)[0]


class SpikeSlabEnergy(BipartiteEnergy):
    r"""Restricted Boltzmann machine whose hidden units change the covariance of real rows.

    With u the coordinates in which the base q is a standard normal distribution and
    :math:`z_i = W_i^\top u`, each hidden unit has a spike :math:`h_i \in \{0, 1\}` and a slab
    :math:`s_i \in \mathbb R`:

    .. math::
        E(x, h, s) = -\log q_\tau(x) - b^\top u + \sum_i \Bigl[\tfrac12 z_i^2 - h_i z_i s_i
            + \tfrac12 s_i^2 - h_i (c_i + \mu_i z_i)\Bigr] + \tfrac H2 \log 2\pi .

    The slabs are integrated out and the spikes summed out in closed form:

    .. math::
        E(x, h) = -\log q_\tau(x) - b^\top u
            + \sum_i \Bigl[\tfrac{1 - h_i}2 z_i^2 - h_i (c_i + \mu_i z_i)\Bigr], \qquad
        F(x) = -\log q_\tau(x) - b^\top u
            - \sum_i \log\Bigl(e^{-z_i^2 / 2} + e^{c_i + \mu_i z_i}\Bigr).

    A unit that is off adds the precision :math:`W_i W_i^\top`; a unit that is on adds none, and
    moves the mean along :math:`\mu_i W_i`. In the coordinates u, the precision of x given h is
    :math:`e^\tau + \sum_{i: h_i = 0} W_i W_i^\top`. Given h and the slabs it is
    :math:`P = e^\tau + W^\top W`, which does not depend on h.

    **Proper by construction**: both precisions are positive definite for all parameters, so that
    x given h is normal and the model is a finite mixture of normal distributions. (Courville et al.
    have :math:`+ h_i z_i s_i` without the :math:`z_i^2`: their precision given h loses
    :math:`W_i W_i^\top` of each unit that is on, and the weights must be bounded.)

    Here :math:`-\log q_\tau` is :math:`-\log q` with the precisions of u multiplied by
    :math:`e^\tau`, but with the same constant; if all parameters are 0 the model is q, with free
    spikes. At small W, :math:`\mu_i W_i` has the role of the weights of a unit of a Gaussian RBM.

    Parameters
    ----------
    base : Gaussian
        q, of flat rows, with independent entries or a covariance. Not trained. Annealing,
        tempering and chains start from it.
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
    weight : Parameter of shape (n_hidden, d)
        W, for the coordinates u.
    visible_bias : Parameter of shape (d,)
        b, 0 at first.
    hidden_bias, slab_mean : Parameter of shape (n_hidden,)
        c and mu, 0 at first. A slab has the mean z_i in a row where its spike is on, and
        :math:`\mu_i + z_i` in the notation of Courville et al.
    log_precision : Parameter of shape (d,)
        tau, 0 at first.

    Raises
    ------
    ValueError
        For a base that is no normal distribution of flat rows.

    References
    ----------
    Courville, Bergstra and Bengio (2011), "A spike and slab restricted Boltzmann machine", AISTATS,
    equations 1 to 4; (2011), "Unsupervised models of images by spike-and-slab RBMs", ICML (means of
    the slabs).

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import Gaussian
    >>> from skebm.energies import SpikeSlabEnergy
    >>> from skebm.partition import Exact
    >>> q = Gaussian(torch.zeros(4), 1.0)
    >>> energy = SpikeSlabEnergy(q, 2, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> round(Exact().estimate(energy).value, 4)  # 2 log 2, as q is normalised
    1.3863
    """

    domain: Real
    always_proper = True  # a finite mixture of normal distributions
    hidden_domain: Binary
    weight: nn.Parameter
    visible_bias: nn.Parameter
    hidden_bias: nn.Parameter
    slab_mean: nn.Parameter
    log_precision: nn.Parameter

    def __init__(
        self,
        base: Gaussian,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        if not isinstance(base, Gaussian) or base.mean.dim() != 1:
            raise ValueError(f"The base must be a Gaussian of flat rows, not {base!r}.")
        d = len(base.mean)
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        weight = torch.randn(n_hidden, d, generator=generator, **new)
        values = (scale * weight, *(torch.zeros(k, **new) for k in (d, n_hidden, n_hidden, d)))
        self._set(base, Frame.of(base), values, trained=True)

    def _set(self, base: Gaussian, frame: Frame, values: Any, *, trained: bool) -> None:
        self.base, self.domain = base, Real((len(base.mean),))
        for name, value in zip(Frame._fields, frame, strict=True):
            self.register_buffer(f"_{name}", value, persistent=False)
        for name, value in zip(TENSORS, values, strict=True):
            setattr(self, name, nn.Parameter(value, requires_grad=trained))
        self.hidden_domain = Binary((len(self.hidden_bias),))
        self._kept: tuple[Any, Tensor] | None = None

    def _with(self, values: Any, frame: Frame | None = None) -> SpikeSlabEnergy:
        """The same base with other parameters, which are not trained."""
        copy = object.__new__(SpikeSlabEnergy)
        nn.Module.__init__(copy)
        frame = self.frame if frame is None else frame
        copy._set(self.base, frame, [value.detach() for value in values], trained=False)
        return copy.train(self.training)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Weights, visible and hidden biases, means of the slabs, logarithms of precisions."""
        return tuple(getattr(self, name) for name in TENSORS)

    @property
    def frame(self) -> Frame:
        """Coordinates of the base."""
        return Frame(*(getattr(self, f"_{name}") for name in Frame._fields))

    @property
    def log_volume(self) -> float:
        """-log q at its mean."""
        return self.base.log_normaliser

    @property
    def is_real(self) -> Tensor:
        """Which entries of a row are real: all of them, (d,)."""
        return torch.ones(self.domain.n_columns, dtype=torch.bool, device=self.weight.device)

    @property
    def terms_of_hidden_state(self) -> int:
        """Terms of the covariance and its factorisation, which every state has of its own."""
        d, n_hidden = self.domain.n_columns, max(len(self.hidden_bias), 1)
        return d * d + d**3 // (3 * n_hidden)

    # ---------------------------------------------------------------- energies

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u (n, d) and z (n, H) of rows."""
        extra = self.weight.shape[1] - self.domain.n_columns
        x = nn.functional.pad(x, (0, extra)) if extra else x
        u = self.frame.white(x)
        return u, u @ self.weight.t()

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log of the sum over h of exp(-beta E(x, h)), (n,); `beta` (k, 1) gives (k, n)."""
        u, z = self.projections(x)
        squares = u.square() @ self.log_precision.exp() / 2
        visible = squares - u @ self.visible_bias + self.log_volume
        factor = beta.unsqueeze(-1) if isinstance(beta, Tensor) else beta
        on = factor * (self.hidden_bias + self.slab_mean * z)
        return beta * visible - torch.logaddexp(factor * (z.square() / -2), on).sum(-1)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of log p with respect to x, and its second derivatives by column, (n, d)."""
        u, z = self.projections(x)
        p, frame, width = self.spike_logits(z).sigmoid(), self.frame, self.log_precision.exp()
        reach = self.slab_mean + z
        of_z = p * reach - z
        gradient = frame.pullback(self.visible_bias - width * u + of_z @ self.weight)
        of_zz = p * (1 - p) * reach.square() - (1 - p)
        patterns = frame.pullback(self.weight)  # W_i for x instead of u, (H, d)
        second = of_zz @ patterns.square() - frame.pullback(width.sqrt().diag()).square().sum(0)
        return gradient, second

    def spike_logits(self, z: Tensor) -> Tensor:
        """Log-odds of the spikes at projections z, (n, H)."""
        return torch.addcmul(self.hidden_bias, z, self.slab_mean + z / 2)

    def hidden_field(self, x: Tensor) -> Tensor:
        """c + mu z + z^2 / 2, log-odds of the spikes, (n, H)."""
        return self.spike_logits(self.projections(x)[1])

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_i = 1 given x), the slabs integrated out, mean of shape (n, H)."""
        return Bernoulli((beta * self.hidden_field(x)).sigmoid())

    def slabs(self, x: Tensor) -> Tensor:
        """Means of the slabs of Courville et al. times spikes, p(h_i = 1) (mu_i + z_i), (n, H)."""
        z = self.projections(x)[1]
        return self.spike_logits(z).sigmoid_() * (self.slab_mean + z)

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> NormalRows:
        """p(x given h), the slabs integrated out, proportional to exp(-beta E(x, h) + field' x).

        It takes a factorisation for each row, which :meth:`next_visible` avoids. A `beta` of 0, for
        which there is no distribution, raises `ValueError`.
        """
        self._check_beta(beta)
        off = (1 - h).clamp_min(0)
        added = torch.einsum("nh,hi,hj->nij", off, self.weight, self.weight)
        precision = beta * (added + self.log_precision.exp().diag())
        linear = self._linear(h * self.slab_mean, beta, field)
        return NormalRows(self.frame, cholesky(precision), linear)

    def _linear(self, pulls: Tensor, beta: float, field: Tensor | None) -> Tensor:
        """beta (b + W' pulls) and the field, in the coordinates u, (n, d)."""
        linear = torch.addmm(self.visible_bias, pulls, self.weight)
        linear = linear if beta == 1.0 else beta * linear
        return linear if field is None else linear + self.frame.covector(field)

    def next_visible(
        self, x: Tensor, h: Tensor, beta: float, generator: torch.Generator
    ) -> NormalRows:
        """p(x given h and slabs), which are drawn given x and h: one factorisation for all rows."""
        self._check_beta(beta)
        z = self.projections(x)[1]
        slab = torch.empty_like(z).normal_(generator=generator)
        if beta != 1.0:
            slab /= math.sqrt(beta)
        pulls = h * (slab + z + self.slab_mean)
        return self._rows_given_slabs(pulls, beta)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Mean of rows given the means of spikes and slabs, (n, d)."""
        return self._rows_given_slabs(self.slabs(x), 1.0).mean

    def _rows_given_slabs(self, pulls: Tensor, beta: float) -> NormalRows:
        factor = self._factor() if beta == 1.0 else math.sqrt(beta) * self._factor()
        return NormalRows(self.frame, factor, self._linear(pulls, beta, None))

    def _factor(self) -> Tensor:
        """Cholesky factor of P = e^tau + W'W, computed once as long as the parameters stay."""
        parts = self.weight, self.log_precision
        now = tuple((part.data_ptr(), part._version) for part in parts)
        if self._kept is None or self._kept[0] != now or torch.is_grad_enabled():
            precision = torch.mm(self.weight.t(), self.weight)
            precision.diagonal().add_(self.log_precision.exp())
            self._kept = now, cholesky(precision)
        return self._kept[1]

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log of the integral over x of exp(-beta E(x, h) + field' x), x as clamped, (n,)."""
        rows = self.visible(h, beta, field)
        if clamp is not None:
            rows = rows.given(clamp)
        constant = (1 - beta) * self.log_volume
        value = -beta * (h @ self.hidden_bias) - rows.log_normaliser - constant
        return value if field is None else value - field @ self.frame.centre

    @staticmethod
    def _check_beta(beta: float) -> None:
        if not beta > 0:
            raise ValueError("At beta=0 real rows have no distribution: anneal from the base.")

    def enumeration_cost(self) -> float:
        """Number of spikes' states times columns."""
        return enumeration_cost(self.domain, self.hidden_domain)

    # ---------------------------------------------------------------- other parameters

    def annealed(self, beta: float, start: dict[str, Tensor] | None = None) -> SpikeSlabEnergy:
        """-(1 - beta) log q(x) + beta E(x, h): the base with free spikes at 0, the model at 1.

        With a wider start, the path begins there instead of at the base.
        """
        weight, visible, hidden, mean, log_precision = self.tensors
        wide = 1.0 if start is None else start["log_precision"].exp()
        precision = (1 - beta) * wide + beta * log_precision.exp()
        root = math.sqrt(beta)
        return self._with(
            (root * weight, beta * visible, beta * hidden, root * mean, precision.log())
        )

    def wider_base(self) -> WiderColumns:
        """A start of annealing that covers modes far from the base: ten times as wide."""
        log_precision = torch.full_like(self.log_precision, -2 * math.log(WIDER))
        return WiderColumns(
            [self.base.with_covariance_times(WIDER**2)], {"log_precision": log_precision}
        )

    def with_padding(self, multiple: int = 16) -> SpikeSlabEnergy:
        """A copy with both layers filled up to a multiple by units that are never on.

        At such shapes BLAS rounds every row of a product alike, wherever it stands.
        """
        n_hidden, d = self.weight.shape
        right, down = -d % multiple, -n_hidden % multiple
        weight, visible, hidden, mean, log_precision = self.tensors
        pad = nn.functional.pad
        values = (
            pad(weight, (0, right, 0, down)),
            pad(visible, (0, right)),
            pad(hidden, (0, down), value=-1e4),
            pad(mean, (0, down)),
            pad(log_precision, (0, right)),
        )
        centre, scale, inverse = self.frame
        sides = (0, right) if inverse.dim() == 1 else (0, right, 0, right)
        frame = Frame(pad(centre, (0, right)), pad(scale, sides), pad(inverse, sides))
        return self._with(values, frame)

    @torch.no_grad()
    def hold_within_limits(self) -> None:
        """Hold the precisions of coordinates, and those that units add, within their limits."""
        self.log_precision.clamp_(MIN_LOG_PRECISION, MAX_LOG_PRECISION)
        size = self.weight.square().sum(1, keepdim=True)
        self.weight.mul_((MAX_PRECISION / size).clamp_max(1.0).sqrt())

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> SpikeSlabGradient:
        """The gradient by hand, from three matrix products over data and chains."""
        return SpikeSlabGradient(self, centering, penalty)


class SpikeSlabGradient(ContrastGradient):
    r"""Gradient of a contrast of free energies, in the coordinates of the base.

    .. math::
        \partial F / \partial W_i = \bigl(z_i - p_i (\mu_i + z_i)\bigr) u^\top , \quad
        \partial F / \partial c_i = -p_i , \quad
        \partial F / \partial \mu_i = -p_i z_i , \quad
        \partial F / \partial b = -u , \quad
        \partial F / \partial \tau = e^\tau u^2 / 2

    with :math:`p_i` the probability that spike i is on. Rows are white under the base, so that
    there is nothing to centre.

    Parameters
    ----------
    energy : SpikeSlabEnergy
    centering : None
    penalty : Penalty or None
    """

    def __init__(
        self, energy: SpikeSlabEnergy, centering: Centering | None, penalty: Penalty | None
    ):
        if centering is not None:
            raise ValueError(
                "Rows of a spike-and-slab RBM are centred by its base: pass centering=None."
            )
        self.energy, self.penalty = energy, penalty
        self._rows: Tensor | None = None

    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        """None: there are no offsets."""
        return None

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
        energy, n = self.energy, len(x)
        self._rows = memory(self._rows, (n + len(chain), x.shape[1]), x)
        u, z = energy.projections(torch.cat([x, chain], out=self._rows))
        p = energy.spike_logits(z).sigmoid_()
        layer = None if generator is None else Bernoulli(p[n:]).sample(generator)
        of_z = torch.addcmul(-z, p, energy.slab_mean + z).mul_(sign[:, None])
        grads = [of_z.t() @ u, sign @ u, sign @ p, sign @ (p * z)]
        grads.append(energy.log_precision.exp() * (sign @ u.square()) / -2)
        if self.penalty is not None:
            self._add_penalty(grads, u[:n], z[:n], p[:n], share)
        for parameter, grad in zip(energy.tensors, grads, strict=True):
            parameter.grad = grad
        return None, layer

    def _add_penalty(
        self, grads: list[Tensor], u: Tensor, z: Tensor, p: Tensor, share: Tensor
    ) -> None:
        assert self.penalty is not None
        energy = self.energy
        grads[0] += self.penalty.l1 * energy.weight.sign() + self.penalty.l2 * energy.weight
        of_logits = self.penalty.gradient_of_logits(p, share)
        if of_logits is None:
            return
        grads[0] += (of_logits * (energy.slab_mean + z)).t() @ u
        grads[2] += of_logits.sum(0)
        grads[3] += (of_logits * z).sum(0)


def cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor; in float64 where single precision is not enough.

    It is nan if there is none, as for weights that have diverged: training checks for that.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()):
        exact, failed = torch.linalg.cholesky_ex(matrix.double())
        factor = exact.masked_fill((failed > 0)[..., None, None], torch.nan).to(matrix)
    return factor


def _solve_triangular(tril: Tensor, rows: Tensor, *, transposed: bool = False) -> Tensor:
    """C^-1 r or C^-T r of each row r (n, d), for a factor C (d, d), or one for each row."""
    tril = tril.mT if transposed else tril
    if tril.dim() == 2:
        return torch.linalg.solve_triangular(tril, rows.t(), upper=transposed).t()
    return torch.linalg.solve_triangular(tril, rows[..., None], upper=transposed)[..., 0]
