"""Tables of real numbers, of bits or of one-hot columns, and the bases of discrete ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from skebm._validation import draw_seed
from skebm.base import Binary, Categorical, Domain, Real
from skebm.distributions import Distribution, IndependentCategorical
from skebm.distributions.flow import FLOWS
from skebm.estimators._bases import BY_NAME, fit_base
from skebm.estimators._contrastive_settings import DISCRETE_BASES, REAL_BASES
from skebm.estimators._real_bases import Bases, fit_real_bases, noise_level
from skebm.estimators._real_rows import RealRows, Units
from skebm.training.rows import Rows


class AnyRows(RealRows):
    """Rows of whatever kind `domain` says, or the table looks like."""

    domain: Any
    sampler: Any
    sigma: Any
    random_state_: Any
    base_: Distribution | None
    _noisy_base: Distribution | None
    _noise: np.ndarray | None

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        kwargs.setdefault("accept_sparse", "csr" if self._takes_sparse(reset) else False)
        return super()._validate(X, reset=reset, min_samples=min_samples, **kwargs)

    def _takes_sparse(self, reset: bool) -> bool:
        if not reset:
            return isinstance(self.units_.domain, Binary)
        return self.domain in ("auto", "binary") or isinstance(self.domain, Binary)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.domain == "binary" or isinstance(self.domain, Binary)
        return tags

    def _rows(
        self, X: Any, *, weight: np.ndarray | None = None, reset: bool = False, **kind: Any
    ) -> Rows:
        if not reset and self._discrete:
            check_discrete(X, self.units_.domain)
        if not sp.issparse(X):
            return super()._rows(X, weight=weight, reset=reset, **kind)
        if reset:
            self.units_ = self._learn_units(X, weight)
        return Rows.of(X, lambda x: x, weight=weight, **kind)

    @property
    def _discrete(self) -> bool:
        return not isinstance(self.units_.domain, Real)

    def _learn_units(self, X: Any, weight: np.ndarray | None) -> Units:
        domain = self._domain_of(X)
        if isinstance(domain, Real):
            return super()._learn_units(X, weight)
        check_discrete(X, domain)
        for name, default in (("bounds", None), ("sigma", "auto")):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value == default):
                raise ValueError(f"{name}={value!r} is for real columns, and X is {domain}.")
        n = X.shape[1]
        return Units(np.zeros(n), np.ones(n), domain)

    def _learn_base(self, rows: Rows, base: Any, *, smooth: bool = True) -> None:
        """Fit what the network corrects; `smooth` training adds noise to real rows."""
        domain, noise = self.units_.domain, None
        seed = draw_seed(self.random_state_)
        check_base_kind(base, domain)
        if isinstance(domain, Real):
            noise = self._training_noise(rows, smooth)
            found = fit_real_bases(self, base, rows, noise, seed)
        else:
            fitted = fit_discrete_base(base, rows, domain)
            found = Bases(fitted, fitted)
        self._noise = None if noise is None else noise.cpu().numpy()
        self._noisy_base, self.base_ = found

    def _training_noise(self, rows: Rows, smooth: bool) -> Tensor | None:
        without = self.sigma is None or (isinstance(self.sigma, str) and self.sigma == "auto")
        if self.bounds is None and smooth:
            return None if self.sigma is None else noise_level(self.sigma, rows)
        if without:
            return None
        cause = "leaves the walls of `bounds`"
        if self.bounds is None:
            cause = 'objective="discrepancy" has of its own'
        raise ValueError(f"sigma={self.sigma!r} is noise that {cause}: use sigma=None.")

    def _domain_of(self, X: Any) -> Domain:
        """What rows are."""
        n, domain = X.shape[1], self.domain
        if isinstance(domain, Domain):
            if isinstance(domain, Real) and domain != Real(domain.shape):
                raise ValueError(f"Pass the walls of {domain} as bounds=, in units of X.")
            if domain.n_columns != n:
                raise ValueError(f"domain={domain} has {domain.n_columns} columns, X has {n}.")
            if isinstance(domain, Binary | Categorical | Real):
                return domain if not isinstance(domain, Binary) else Binary((n,))
            raise ValueError(f"domain={domain} is not offered: real, binary or one-hot rows are.")
        if domain == "binary" or sp.issparse(X):
            return Binary((n,))
        if domain == "real" or self.bounds is not None:
            return Real((n,))
        if self.sampler is not None:
            kinds = self.sampler.kernel.domains
            real, bits = (any(issubclass(k, d) for d in kinds) for k in (Real, Binary))
            if real != bits:
                return Real((n,)) if real else Binary((n,))
        return Binary((n,)) if bool(np.isin(X, (0, 1)).all()) else Real((n,))


def check_discrete(X: Any, domain: Domain) -> None:
    """Raise `ValueError` for entries that are no states; nan is unknown."""
    values = X.data if sp.issparse(X) else X
    known = ~np.isnan(values)
    wrong = known & (values != 0) & (values != 1)
    if wrong.any():
        columns = "" if sp.issparse(X) else f", first in column {int(wrong.any(0).argmax())}"
        kind = "Sparse X, which is one of bits," if sp.issparse(X) else "X"
        raise ValueError(
            f"{kind} holds {int(wrong.sum())} values other than 0 and 1{columns}, but the model is "
            f'one of {type(domain).__name__.lower()} rows: binarise X, or use domain="real".'
        )
    if not isinstance(domain, Categorical):
        return
    first = 0
    for group, size in enumerate(domain.groups):
        part = X[:, first : first + size]
        first += size
        missing = np.isnan(part)
        odd = (missing.any(1) & ~missing.all(1)) | (~missing.any(1) & (part.sum(1) != 1))
        if odd.any():
            raise ValueError(
                f"Row {int(odd.argmax())} of X is not one-hot in group {group}, columns "
                f"{first - size} to {first - 1}: each group needs one 1, or nan throughout."
            )


def fit_discrete_base(base: Any, rows: Rows, domain: Domain) -> Distribution | None:
    """Fit the base of discrete rows that is named, or check the one that is given."""
    if base is None:
        return None
    if base in (*REAL_BASES, *FLOWS, "classes"):
        here = DISCRETE_BASES if isinstance(domain, Binary) else DISCRETE_BASES[:1]
        names = ", ".join(map(repr, here))
        raise ValueError(f"{base!r} is a distribution of real columns; on {domain} use {names}.")
    if isinstance(base, Distribution):
        if base.domain != domain:
            raise ValueError(f"The base is one of {base.domain}, and rows are {domain}.")
        base = base.to(rows.device, rows.dtype)
        lost = ~rows.map(base.log_prob).isfinite()
        if lost.any():
            raise ValueError(
                f"The base gives {int(lost.sum())} rows of X no probability, first row "
                f"{int(lost.nonzero()[0, 0])}: no energy on top of it can repair that. Smooth it."
            )
        return base
    if isinstance(domain, Categorical):
        if base not in ("auto", "independent"):
            raise ValueError(
                f"{base!r} is a distribution of bits; on one-hot rows use 'independent'."
            )
        x = rows.block(0, len(rows))
        return IndependentCategorical.fit(x, domain.groups, rows.counts)
    return fit_base("chow-liu" if base == "auto" else base, rows)


def check_base_kind(base: Any, domain: Domain) -> None:
    """Raise `ValueError` for the name of a discrete base where rows are real."""
    if isinstance(base, str) and base in BY_NAME and isinstance(domain, Real):
        names = ", ".join(map(repr, REAL_BASES))
        raise ValueError(f"{base!r} is a distribution of bits; on real rows use {names}.")
    if (
        isinstance(base, Distribution)
        and isinstance(domain, Real)
        and not isinstance(base.domain, Real)
    ):
        raise ValueError(f"The base is one of {base.domain}, and rows are {domain}.")
