"""Latent class models: mixtures of independent bits, categories and real numbers."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Clamp, Domain, Real
from skebm.base.domains import parts_of
from skebm.base.sampler import whole_number
from skebm.base.torchtools import softplus
from skebm.distributions._fitting import (
    check_row_weights,
    distinct_weights,
    draw_index,
    k_means,
    map_chunks,
    share_of_a_row,
    usable_scale,
    varies,
)
from skebm.distributions.base import Distribution, Tilt
from skebm.distributions.conditionals.column import NormalMixtures
from skebm.distributions.independent import CategoricalTilt, Levels, by_column

# Numbers of classes among which held-out rows choose; two that are no better end the search.
N_CLASSES = (1, 2, 3, 5, 8, 12, 20, 30, 50)
# Held-out rows of all, and rows that take part in the choice at most.
HELD_OUT, MOST_ROWS = 0.2, 10_000
# Entries of the rows that a model is fitted to at most (the others are left out at random, but a
# thousand rows stay), and times the number of classes, where that may be chosen.
MOST_ENTRIES, MOST_WORK, FEWEST_ROWS = 1_000_000, 3e7, 1000
# Rows that the prior of the parameters of a class is worth, among which held-out rows choose, too:
# less of it where columns have spikes, as counts have at 0.
PRIOR_ROWS = (1.0, 0.1)
# Largest eigenvalue of the correlations from which on a second broad class covers rows along them.
CORRELATED = 1.1
# Least variance of a real column in a class, relative to that of the column, and shrinkage of
# levels towards equal probabilities.
LEAST_VARIANCE, SHRINKAGE = 1e-3, 1e-3
# Iterations of k-means, from which EM goes on; its steps at most, and nats a row that a step adds
# at least, in a fit and where numbers of classes are compared.
KMEANS_STEPS, MAX_ITER, TOLERANCE, ROUGH = 20, 500, 1e-5, 1e-3


class LatentClasses(Distribution):
    r"""A latent class model: within each class, all columns are independent.

    .. math::
        q(x) = \sum_{c=1}^{K} \pi_c \prod_{bits} p_{ci}^{x_i} (1 - p_{ci})^{1 - x_i}
        \prod_{levels} p_{ci}^{x_i} \prod_{real} N(x_i; \mu_{ci}, \sigma_{ci}^2)

    Tilts are exact, because a class under unary fields is again a class of this kind.

    Parameters
    ----------
    log_weights : Tensor of shape (K,)
        :math:`\log \pi`, up to a constant.
    domain : Domain
        Binary, categorical and real columns, in this order (or only some of them).
    logits : Tensor of shape (K, number of entries of bits and levels)
        Log-odds of bits, and log-probabilities of levels up to a constant for each column.
    mean, scale : Tensor of shape (K, number of real columns)
        Means and standard deviations.

    Attributes
    ----------
    log_weights, logits, mean, scale : Tensor
        Normalised.

    References
    ----------
    Lazarsfeld and Henry (1968), "Latent structure analysis". Dempster, Laird and Rubin (1977),
    "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39(1).

    Examples
    --------
    A bit and a number that are independent given one of two classes:

    >>> import torch
    >>> from skebm.base import Binary, Mixed, Real
    >>> from skebm.distributions import LatentClasses
    >>> q = LatentClasses(
    ...     torch.zeros(2),
    ...     Mixed((Binary((1,)), Real((1,)))),
    ...     logits=torch.tensor([[-9.0], [9.0]]),
    ...     mean=torch.tensor([[-3.0], [3.0]]),
    ...     scale=torch.ones(2, 1),
    ... )
    >>> [round(value, 1) for value in q.log_prob(torch.tensor([[1.0, 3.0], [0.0, 3.0]])).tolist()]
    [-1.6, -10.6]
    """

    def __init__(
        self, log_weights: Tensor, domain: Domain, *, logits: Tensor, mean: Tensor, scale: Tensor
    ):
        kinds = _kinds(domain)
        n_classes, n_discrete, n_real = len(log_weights), *entries_by_kind(domain)
        shapes = (n_classes, n_discrete), (n_classes, n_real), (n_classes, n_real)
        for name, value, shape in zip(
            ("logits", "mean", "scale"), (logits, mean, scale), shapes, strict=True
        ):
            if tuple(value.shape) != shape:
                raise ValueError(f"{name} must be of shape {shape}, got {tuple(value.shape)}.")
        if not (scale > 0).all() or not (mean.isfinite().all() and scale.isfinite().all()):
            raise ValueError("Means must be finite, and scales finite and positive.")
        self.domain = domain
        self.groups: tuple[int, ...] = sum((p.groups for p in kinds[1]), ())
        self.n_bits = sum(part.n_columns for part in kinds[0])
        self.log_weights = log_weights.log_softmax(0)
        bits, levels = logits[:, : self.n_bits], logits[:, self.n_bits :]
        levels = by_column(levels, self.groups) if self.groups else levels
        self.logits = torch.cat([bits, levels], 1)
        self.mean, self.scale = mean, scale

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.log_weights)

    @property
    def n_discrete(self) -> int:
        """Number of entries of bits and levels, which come first in a row."""
        return self.logits.shape[1]

    # ---------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        x: Tensor,
        domain: Domain,
        weight: Tensor | None = None,
        n_classes: int | str = "auto",
        *,
        known: Tensor | None = None,
        prior_rows: float | str = "auto",
        generator: torch.Generator | None = None,
    ) -> LatentClasses:
        """Maximise the penalised likelihood of rows by expectation-maximisation, from k-means.

        The prior of a class is worth one row or a fraction of one, with the mean levels of all rows
        and the variance within the classes. Columns may have any units. If the rows have more than
        1e6 entries, the model is fitted to a random part of them.

        Parameters
        ----------
        x : Tensor of shape (n, d)
            Rows of `domain`.
        domain : Domain
            Binary, categorical and real columns, in this order (or only some of them).
        weight : Tensor of shape (n,) or None, default=None
            Of rows of bits and levels, a row of weight 2 counts as two rows. Of rows with numbers,
            equal ones are one row of their total weight, and all rows together count for at most
            the number of distinct ones.
        n_classes : int >= 1 or "auto", default="auto"
            K. ``"auto"`` chooses from 1, 2, 3, 5, 8, 12, 20, 30 and 50 the number with the largest
            likelihood of a fifth of the rows under a model of the others. Numbers for which EM
            would take long are left out.
        known : Tensor of shape (n, d), bool, or None, default=None
            Which entries are known, all levels of a column or none; None is all. The likelihood is
            that of the known entries, which is exact: within a class, columns are independent.
        prior_rows : float > 0 or "auto", default="auto"
            Rows that the prior is worth. ``"auto"`` is 1; if K is chosen, too, it is the better one
            of 1 and 0.1.
        generator : torch.Generator or None, default=None
            Draws the initial clusters and the held-out rows; None is one of seed 0.
        """
        rows = ScaledRows.of(x, domain, weight, known)
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(0)
        n_most = max(FEWEST_ROWS, MOST_ENTRIES // x.shape[1])
        if len(rows.w) > n_most:
            order = torch.randperm(len(rows.w), generator=generator, device=generator.device)
            rows = rows.subset(order[:n_most].to(rows.w.device))
        priors = PRIOR_ROWS if prior_rows == "auto" else (prior_rows,)
        if not all(isinstance(one, RealNumber) and one > 0 for one in priors):
            raise ValueError(f'prior_rows must be positive or "auto", got {prior_rows!r}.')
        prior = float(priors[0])
        if n_classes == "auto":
            n_classes, prior = _likeliest_size(rows, [float(one) for one in priors], generator)
        whole_number("n_classes", n_classes, 1)
        return rows.fit_model(int(n_classes), prior, generator).to(x.device, x.dtype)

    def with_broad_class(
        self, x: Tensor, weight: Tensor | None = None, known: Tensor | None = None
    ) -> LatentClasses:
        """The model and one class more, with the moments of rows and the weight of one row.

        Rows between and beside narrow classes are then at most log(n + 1) nats less likely than
        under independent columns. Of correlated numbers half of that weight is another class whose
        variances are as many times as large as the largest eigenvalue of the correlations: it
        covers rows far out along them. Rows without numbers, and a model of one class, need none.

        Parameters
        ----------
        x, weight, known
            As in :meth:`fit`.
        """
        if self.n_classes == 1 or not self.mean.shape[1]:
            return self
        rows = ScaledRows.of(x, self.domain, weight, known)
        p, share = rows.overall(), share_of_a_row(len(rows.w))
        logits = torch.cat([torch.logit(p[: rows.n_bits]), p[rows.n_bits :].log()])
        wider = [1.0, rows.largest_correlation()]
        wider = wider if wider[1] >= CORRELATED else wider[:1]
        own = self.log_weights + math.log1p(-share), self.logits, self.mean, self.scale
        n = len(wider)
        broad = (
            p.new_full((n,), math.log(share / n)),
            logits.expand(n, -1),
            rows.centre.expand(n, -1),
            torch.stack([math.sqrt(factor) * rows.scale for factor in wider]),
        )
        both = [torch.cat([a, b.to(a)]) for a, b in zip(own, broad, strict=True)]
        return LatentClasses(both[0], self.domain, logits=both[1], mean=both[2], scale=both[3])

    # ---------------------------------------------------------------- the distribution

    def log_prob(self, x: Tensor) -> Tensor:
        return map_chunks(
            lambda rows: self._log_joint(rows).logsumexp(1), x, self.n_classes * x.shape[1]
        )

    def _log_joint(self, x: Tensor) -> Tensor:
        """log pi_c p(x given c), (n, K)."""
        discrete, real = x[:, : self.n_discrete], x[:, self.n_discrete :]
        value = self.log_weights - softplus(self.logits[:, : self.n_bits]).sum(1)
        if self.logits.isinf().any():  # the product of minus infinity and 0 is nan
            never = self.logits.isinf() & (discrete[:, None] == 0)
            value = value + torch.where(never, 0.0, discrete[:, None] * self.logits).sum(2)
        else:
            value = value + discrete @ self.logits.t()
        return value + self._log_normal(real).sum(2)

    def _log_normal(self, x: Tensor) -> Tensor:
        """Log-densities of real entries in each class, (n, K, number of real columns)."""
        z = (x[:, None] - self.mean) / self.scale
        return -z.square() / 2 - self.scale.log() - math.log(math.tau) / 2

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and its gradient (n, d), class scores weighted by their probabilities.

        Bits and levels are taken as the numbers 0 and 1.
        """
        log_joint = self._log_joint(x)
        value = log_joint.logsumexp(1)
        of_class = (log_joint - value[:, None]).exp()
        pull = (self.mean - x[:, None, self.n_discrete :]) / self.scale.square()
        real = (of_class[:, :, None] * pull).sum(1)
        return value, torch.cat([of_class @ self.logits, real], 1)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log-density, (n, d)."""
        return self.log_prob_and_score(x)[1]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.log_weights
        field = torch.zeros(n, self.domain.n_columns, dtype=like.dtype, device=generator.device)
        return self.tilted(field).sample(generator)

    def tilted(self, field: Tensor, power: float = 1.0) -> LatentClassTilt:
        """Latent class models with other weights, levels and means; `ValueError` for powers."""
        if power != 1.0:
            raise ValueError(
                "Powers of a latent class model have no closed form: temper another base, or use "
                "a sampler without temperatures."
            )
        return LatentClassTilt(self, field)

    @property
    def has_powers(self) -> bool:
        return False

    def flip_log_ratio(self, x: Tensor) -> Tensor:
        """log q(x with entry i set to 1 - x_i) - log q(x), (n, d), for rows of bits alone."""
        if not isinstance(self.domain, Binary):
            raise TypeError(f"Only bits can be flipped, not entries of {self.domain}.")
        of_class = self._log_joint(x).log_softmax(1)[:, :, None]
        return (of_class + (1 - 2 * x[:, None]) * self.logits).logsumexp(1)

    def given(self, clamp: Clamp) -> Any:
        """Exact conditionals, one for each row."""
        return self.tilted(torch.zeros_like(clamp.value)).given(clamp)

    @property
    def has_given(self) -> bool:
        return True

    # ---------------------------------------------------------------- precisions of real columns

    def with_precision(self, log_factor: Tensor) -> LatentClasses:
        """The model whose precisions within the classes are multiplied by exp(log_factor).

        Means do not change. The result is differentiable with respect to `log_factor`, of shape
        (number of real columns,).
        """
        model = copy.copy(self)
        model.scale = self.scale * (-log_factor / 2).exp()
        return model

    def precision_score(self, x: Tensor) -> Tensor:
        """Derivative of the log-density by the log of the precision of each real column."""
        of_class = self._log_joint(x).softmax(1)
        z = (x[:, None, self.n_discrete :] - self.mean) / self.scale
        return 0.5 - (of_class[:, :, None] * z.square()).sum(1) / 2

    def __repr__(self) -> str:
        return f"LatentClasses({self.n_classes} classes, {self.domain.n_columns} columns)"


class LatentClassTilt(Tilt):
    """Latent class models proportional to q(x) exp(f'x), for each row of f.

    Parameters
    ----------
    distribution : LatentClasses
        q.
    field : Tensor of shape (n, d)
    known : Clamp or None
        Entries that are known; the others are distributed given them.
    log_evidence : Tensor of shape (n, K) or None, default=None
        What other columns of a row say of its class, up to a constant for each row.
    """

    def __init__(
        self,
        distribution: LatentClasses,
        field: Tensor,
        known: Clamp | None = None,
        log_evidence: Tensor | None = None,
    ):
        self.distribution, self.field, self.known = distribution, field, known
        self.log_evidence = log_evidence

    def given(self, clamp: Clamp) -> LatentClassTilt:
        """The tilt given known entries; `log_normaliser` sums over rows that agree."""
        return LatentClassTilt(self.distribution, self.field, clamp, self.log_evidence)

    @functools.cached_property
    def log_joint(self) -> Tensor:
        """log of the sum over all rows of class c that agree with the known entries, (n, K)."""
        rows = torch.arange(len(self.field), device=self.field.device)
        size = self.distribution.n_classes * self.field.shape[1]
        found: Tensor = map_chunks(self._log_joint, rows, size)
        return found if self.log_evidence is None else found + self.log_evidence.to(found)

    def _log_joint(self, rows: Tensor) -> Tensor:
        """Of some rows, by products with the classes instead of terms for each row and class.

        In float64, in which the differences of squares cancel no digits that matter.
        """
        q, field = self.distribution, self.field[rows].double()
        known = None if self.known is None else Clamp(*(part[rows] for part in self.known))
        first, second = q.n_bits, q.n_discrete
        value = q.log_weights.double() - softplus(q.logits[:, :first].double()).sum(1)
        if first:
            logits = q.logits[:, :first].double() + field[:, None, :first]
            terms = softplus(logits)
            if known is not None:
                mask, x = known.mask[:, None, :first], known.value[:, None, :first]
                terms = torch.where(mask, logits * x, terms)
            value = value + terms.sum(2)
        if second > first:
            value = value + self._over_levels(field[:, first:second], known)
        return (value + self._over_numbers(field[:, second:], known)).to(self.field)

    def _over_levels(self, field: Tensor, known: Clamp | None) -> Tensor:
        """Log of the sum over the levels of all columns in each class, (n, K)."""
        q, levels = self.distribution, slice(self.distribution.n_bits, self.distribution.n_discrete)
        places = Levels.of(q.groups, field.device)
        tilt = CategoricalTilt(field, places)
        if known is not None:
            tilt = tilt.given(Clamp(*(part[:, levels] for part in known)))
        f = places.apart(tilt.logits, -math.inf)
        top = f.amax(2, keepdim=True)
        top = torch.where(top.isfinite(), top, 0.0)  # of columns without a possible level
        p = places.apart(q.logits[:, levels].double().exp(), 0.0)
        sums = torch.bmm((f - top).exp().transpose(0, 1), p.permute(1, 2, 0))  # (columns, n, K)
        return sums.log().sum(0) + top.sum(1)

    def _over_numbers(self, field: Tensor, known: Clamp | None) -> Tensor:
        """Log of the integral over the numbers in each class, or of their density, (n, K)."""
        q = self.distribution
        mean, variance = q.mean.double(), q.scale.double().square()
        free = field
        value = field.new_zeros(len(field), q.n_classes)
        if known is not None:
            mask = known.mask[:, q.n_discrete :]
            x = torch.where(mask, known.value[:, q.n_discrete :].double(), 0.0)
            free = torch.where(mask, 0.0, field)
            each = (variance.log() + math.log(math.tau) + mean.square() / variance) / 2
            value = (field * x).sum(1, keepdim=True) - mask.double() @ each.t()
            value = value + x @ (mean / variance).t() - x.square() @ (0.5 / variance).t()
        return value + free @ mean.t() + free.square() @ (variance / 2).t()

    @property
    def log_normaliser(self) -> Tensor:  # type: ignore[override]
        """log of the sum over all rows that agree with the known entries, (n,)."""
        return self.log_joint.logsumexp(1)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Exact means, (n, d), the known entries as they are."""
        q, field, of_class = self.distribution, self.field, self.log_joint.softmax(1)
        classes = torch.arange(q.n_classes, device=field.device)
        if field.any():
            mean = torch.zeros_like(field)
            for c in classes:
                mean += of_class[:, c, None] * self._of_classes(c.expand(len(field)))[0]
        else:  # what is not known has the same means in all rows of a class
            plain = LatentClassTilt(q, field.new_zeros(q.n_classes, field.shape[1]))
            mean = of_class @ plain._of_classes(classes)[0]
        return mean if self.known is None else self.known.apply(mean)

    def column(self, entry: int) -> NormalMixtures | None:
        """The distribution of an unknown entry of numbers; None of bits and levels."""
        q, place = self.distribution, entry - self.distribution.n_discrete
        if place < 0:
            return None
        scale = q.scale[:, place].double()
        shift = self.field[:, entry, None].double() * scale.square()
        means = q.mean[:, place].double() + shift
        return NormalMixtures(self.log_joint.double(), means, scale)

    def _of_classes(self, classes: Tensor) -> tuple[Tensor, Any]:
        """Means of rows (n, d) of the given classes (n,), and the tilts of their categories."""
        q, field, c = self.distribution, self.field, classes
        bits, levels = slice(0, q.n_bits), slice(q.n_bits, q.n_discrete)
        logits, tilt = q.logits[c] + field[:, : q.n_discrete], None
        parts = [logits[:, bits].sigmoid()]
        if q.groups:
            tilt = CategoricalTilt(logits[:, levels], Levels.of(q.groups, field.device))
            if self.known is not None:
                tilt = tilt.given(Clamp(*(part[:, levels] for part in self.known)))
            parts.append(tilt.mean)
        parts.append(q.mean[c] + q.scale[c].square() * field[:, q.n_discrete :])
        return torch.cat(parts, 1), tilt

    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw for each row, the known entries as they are."""
        q = self.distribution
        kind: dict[str, Any] = {"generator": generator, "device": self.field.device}
        u = torch.rand(len(self.field), dtype=torch.float64, **kind)
        classes = draw_index(self.log_joint.double().softmax(1), u)
        x, tilt = self._of_classes(classes)
        bits, levels, real = x.tensor_split([q.n_bits, q.n_discrete], 1)
        bits = torch.rand(bits.shape, dtype=x.dtype, **kind).lt(bits).to(x.dtype)
        if tilt is not None:
            levels = tilt.sample(generator)
        noise = torch.randn(real.shape, dtype=x.dtype, **kind)
        x = torch.cat([bits, levels, real + noise * q.scale[classes]], 1)
        return x if self.known is None else self.known.apply(x)


# ------------------------------------------------------------------------------
# Expectation-maximisation
# ------------------------------------------------------------------------------


def _data_rows(x: Tensor, w: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
    """Rows and their weights: distinct rows where there are numbers, which recur as copies alone.

    Rows of bits and levels recur as states of a few columns do, and are taken as they are.
    """
    if not any(isinstance(part, Real) for part in parts_of(domain)):
        return x, w
    index, w = distinct_weights(x, w)
    return x[index], w


class ScaledRows:
    """Rows of float64, real columns standardised, and their weights: the input of EM.

    Entries that are missing, nan, are 0 here, and are told from others by `known`.
    """

    def __init__(self, x: Tensor, w: Tensor, domain: Domain):
        self.domain, self.w = domain, w
        self.n_bits = sum(part.n_columns for part in _kinds(domain)[0])
        n_discrete, _ = entries_by_kind(domain)
        known, x = ~x.isnan(), x.nan_to_num()
        self.known = None if known.all() else known.double()
        self.discrete, real = x[:, :n_discrete], x[:, n_discrete:]
        share = w[:, None] * known[:, n_discrete:]
        total = share.sum(0).clamp_min(1e-300)
        self.centre = (share * real).sum(0) / total
        real = torch.where(known[:, n_discrete:], real, self.centre)
        varying = varies(real, x.dtype)
        self.scale = usable_scale((share * (real - self.centre).square()).sum(0) / total, varying)
        self.real = torch.where(varying, (real - self.centre) / self.scale, 0.0)
        self.varying = varying
        self.least = torch.where(varying, LEAST_VARIANCE, 1.0)

    @classmethod
    def of(
        cls, x: Tensor, domain: Domain, weight: Tensor | None, known: Tensor | None
    ) -> ScaledRows:
        """The rows of positive weight; `ValueError` for unusable ones."""
        _kinds(domain)
        x = x.detach() if known is None else torch.where(known, x.detach(), 0.0)
        w = check_row_weights(x, weight)
        x = x.double() if known is None else torch.where(known, x.double(), math.nan)
        return cls(*_data_rows(x[w > 0], w[w > 0], domain), domain)

    def subset(self, index: Tensor) -> ScaledRows:
        """Some of the rows, in the same units."""
        subset = copy.copy(self)
        subset.discrete, subset.real, subset.w = (
            self.discrete[index],
            self.real[index],
            self.w[index],
        )
        subset.known = None if self.known is None else self.known[index]
        # A column that is constant among these rows gets the variance that it has in the table.
        subset.least = torch.where(varies(subset.real, subset.real.dtype), LEAST_VARIANCE, 1.0)
        return subset

    def counts(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the known entries of discrete and of real columns in classes, (K, .) each.

        `weight` (n, K) is that of the rows in the classes.
        """
        n_discrete = self.discrete.shape[1]
        if self.known is None:
            total = weight.sum(0)[:, None]
            return total.expand(-1, n_discrete), total.expand(-1, self.real.shape[1])
        by_column = weight.t() @ self.known
        return by_column[:, :n_discrete], by_column[:, n_discrete:]

    def largest_correlation(self) -> float:
        """Largest eigenvalue of the correlations of the real columns: 1 of independent ones."""
        products = (self.real * self.w[:, None]).t() @ self.real / self.w.sum()
        return float(torch.linalg.eigvalsh(products)[-1])

    def overall(self) -> Tensor:
        """Mean levels of all rows, shrunk so that none is 0."""
        mean = self.w @ self.discrete / self.counts(self.w[:, None])[0][0].clamp_min(1e-300)
        return (1 - SHRINKAGE) * mean + SHRINKAGE * _even_levels(self.domain, mean)

    def clusters(self, n_classes: int, generator: torch.Generator) -> Tensor:
        """Labels by k-means, one-hot (n, K); missing entries are the mean of their column."""
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        discrete = self.discrete
        if self.known is not None:
            gaps = 1 - self.known[:, : discrete.shape[1]]
            discrete = discrete + gaps * self.overall()
        x = torch.cat([discrete, self.real], 1)
        labels = k_means(x, self.w, n_classes, seed, max_iter=KMEANS_STEPS)
        labels = torch.as_tensor(labels, device=self.w.device).unique(return_inverse=True)[1]
        return torch.nn.functional.one_hot(labels).double()

    def em(
        self, n_classes: int, prior: float, generator: torch.Generator, tol: float = TOLERANCE
    ) -> LatentClasses:
        """A model of the standardised rows, with a prior worth so many rows."""
        of_class, before = self.clusters(n_classes, generator), -math.inf
        for _ in range(MAX_ITER):
            model = self.m_step(of_class, prior)
            log_joint = self.log_joint(model)
            log_prob = log_joint.logsumexp(1, keepdim=True)
            value = float(self.w @ log_prob[:, 0] / self.w.sum())
            if value - before < tol:
                break
            before, of_class = value, (log_joint - log_prob).exp()
        return model

    def m_step(self, of_class: Tensor, prior: float) -> LatentClasses:
        """The M-step: a model from the probabilities of the classes, (n, K)."""
        weight = self.w[:, None] * of_class
        of_discrete, of_real = self.counts(weight)
        mean = weight.t() @ self.real / of_real.clamp_min(1e-12)
        # Of standardised columns: the differences of squares cancel no digits that matter.
        scatter = (weight.t() @ self.real.square() - of_real * mean.square()).clamp_min(0)
        within = scatter.sum(0) / of_real.sum(0).clamp_min(1e-12)
        variance = (scatter + prior * within) / (of_real + prior)
        return LatentClasses(
            (weight.sum(0) + 1).log(),
            self.domain,
            logits=self._logits(weight, of_discrete, prior),
            mean=mean,
            scale=torch.maximum(variance, self.least).sqrt(),
        )

    def logits(self, of_class: Tensor, prior: float) -> Tensor:
        """Log-odds of bits and log-probabilities of levels in classes, (K, .); part of the M-step.

        Rows of the overall mean levels are added, as many as the prior is worth.
        """
        weight = self.w[:, None] * of_class
        return self._logits(weight, self.counts(weight)[0], prior)

    def _logits(self, weight: Tensor, of_discrete: Tensor, prior: float) -> Tensor:
        """The same by the weights of the rows (n, K) and of the known entries in the classes."""
        p = (weight.t() @ self.discrete + prior * self.overall()) / (of_discrete + prior)
        return torch.cat([torch.logit(p[:, : self.n_bits]), p[:, self.n_bits :].log()], 1)

    def log_joint(self, q: LatentClasses) -> Tensor:
        """log pi_c p(x given c), (n, K), by matrix products."""
        off, each = softplus(q.logits[:, : q.n_bits]), q.scale.log() + math.log(math.tau) / 2
        each = each + (q.mean / q.scale).square() / 2
        value = q.log_weights + self.discrete @ q.logits.t()
        if self.known is None:
            value = value - off.sum(1) - each.sum(1)
        else:
            n_discrete = self.discrete.shape[1]
            value = value - self.known[:, : q.n_bits] @ off.t()
            value = value - self.known[:, n_discrete:] @ each.t()
        precision = q.scale.pow(-2)
        return value + self.real @ (precision * q.mean).t() - self.real.square() @ precision.t() / 2

    def fit_model(self, n_classes: int, prior: float, generator: torch.Generator) -> LatentClasses:
        """A model in the units of the rows."""
        q = self.em(n_classes, prior, generator)
        mean, scale = q.mean * self.scale + self.centre, q.scale * self.scale
        return LatentClasses(q.log_weights, self.domain, logits=q.logits, mean=mean, scale=scale)


def _likeliest_size(
    rows: ScaledRows, priors: Sequence[float], generator: torch.Generator
) -> tuple[int, float]:
    """Number of classes, and prior, with which held-out rows are most likely."""
    n = len(rows.w)
    n_held_out = round(HELD_OUT * min(n, MOST_ROWS))
    if n_held_out < 1 or n - n_held_out < 2:
        return 1, priors[0]
    order = torch.randperm(n, generator=generator, device=generator.device).to(rows.w.device)
    held_out, train = rows.subset(order[:n_held_out]), rows.subset(order[n_held_out:MOST_ROWS])
    best, choice, since = -math.inf, (1, priors[0]), 0
    for n_classes in N_CLASSES:
        work = float(n_classes) * len(train.w) * (train.discrete.shape[1] + train.real.shape[1])
        if n_classes > len(train.w) or work > MOST_WORK:
            break
        since += 1
        for prior in priors:
            log_prob = held_out.log_joint(train.em(n_classes, prior, generator, ROUGH)).logsumexp(1)
            value = float(held_out.w @ log_prob / held_out.w.sum())
            if value > best:
                best, choice, since = value, (n_classes, prior), 0
        if since == 2:
            break
    return choice


def _kinds(domain: Domain) -> tuple[list[Any], list[Any], list[Any]]:
    """Binary, categorical and real parts; `ValueError` for others and other orders."""
    parts = parts_of(domain)
    order = [Binary, Categorical, Real]
    place = [next((i for i, kind in enumerate(order) if isinstance(p, kind)), -1) for p in parts]
    flat = all(len(part.row_shape) == 1 for part in parts)
    bounded = any(isinstance(p, Real) and p != Real(p.shape) for p in parts)
    if -1 in place or place != sorted(place) or bounded or not flat:
        raise ValueError(
            f"A latent class model is of flat bits, categories and unbounded numbers, in this "
            f"order, not of {domain}."
        )
    kinds: tuple[list[Any], ...] = [], [], []
    for i, part in zip(place, parts, strict=True):
        kinds[i].append(part)
    return kinds[0], kinds[1], kinds[2]


def entries_by_kind(domain: Domain) -> tuple[int, int]:
    """Numbers of entries of bits and levels, which come first, and of real columns."""
    bits, levels, real = (sum(p.n_columns for p in parts) for parts in _kinds(domain))
    return bits + levels, real


def _even_levels(domain: Domain, like: Tensor) -> Tensor:
    """Equal probabilities of the values of bits and of levels."""
    bits, levels, _ = _kinds(domain)
    even = [like.new_full((sum(p.n_columns for p in bits),), 0.5)]
    even += [like.new_full((k,), 1 / k) for part in levels for k in part.groups]
    return torch.cat(even)
