"""Mixtures of linear regressions: tractable distributions of real rows given conditions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Conditional
from skebm.base.processes import own_modes
from skebm.distributions._fitting import draw_index
from skebm.distributions.mixture import GaussianMixture


class RegressionMixture:
    r"""A mixture of linear regressions with normal errors, whose weights depend on the condition.

    .. math::
        q(x \mid c) = \sum_k \pi_k(c) \, N\bigl(x;\, b_k + B_k c,\, S_k\bigr), \qquad
        \pi_k(c) \propto w_k \, N(c; \mu_k, C_k)

    It is the conditional distribution of x given c in a joint mixture of normal distributions of
    (c, x) [1]_, so that it is fitted by EM and has exact densities, scores and draws.

    Parameters
    ----------
    joint : GaussianMixture
        Distribution of rows (c, x) side by side, or of x alone, which then does not depend on c.
    n_columns : int
        Number of columns of x, the last ones of the joint distribution.

    Attributes
    ----------
    joint : GaussianMixture
    n_columns, n_conditions : int
        Number of columns of x, and of the columns of c on which x depends (0 if the joint
        distribution is one of x alone).

    References
    ----------
    .. [1] Sung (2004), "Gaussian mixture regression and classification", Rice University, chapter
       2.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> pair = torch.tensor([[[1.0, 0.5], [0.5, 1.0]]])
    >>> joint = GaussianMixture(torch.ones(1), torch.zeros(1, 2), pair)
    >>> RegressionMixture(joint, 1).given(torch.tensor([[2.0]])).mean
    tensor([[1.]])
    """

    def __init__(self, joint: GaussianMixture, n_columns: int):
        d = joint.domain.n_columns
        if not 1 <= n_columns <= d:
            raise ValueError(
                f"n_columns must be between 1 and the {d} columns of the joint distribution, got "
                f"{n_columns!r}."
            )
        self.joint, self.n_columns, self.n_conditions = joint, n_columns, d - n_columns
        k, like = self.n_conditions, joint.means
        log_weight, means, covariances = joint.components()
        tril = torch.linalg.cholesky(covariances)
        # With the columns of c first, the lower blocks of a Cholesky factor are the regression on
        # the whitened c and the factor of the covariance of the errors.
        top, errors = tril[:, :k, :k], tril[:, k:, k:]
        eye = torch.eye(d, dtype=tril.dtype, device=tril.device)
        white = torch.linalg.solve_triangular(top, eye[:k, :k].expand_as(top), upper=False)
        inverse = torch.linalg.solve_triangular(errors, eye[k:, k:].expand_as(errors), upper=False)
        constant = log_weight - top.diagonal(dim1=1, dim2=2).log().sum(1)
        self._gate_constant = constant.to(like)
        self._centre = (joint.weights.to(means) @ means[:, :k]).to(like)
        self._gate_mean = (means[:, :k] - self._centre.double()).to(like)
        self._gate_white, self._regression = white.to(like), (tril[:, k:, :k] @ white).to(like)
        self._mean, self._tril = means[:, k:].to(like), errors.to(like)
        self._inverse = inverse.to(like)

    @property
    def covariances(self) -> Tensor:
        """Covariances of the errors S_k, (K, n_columns, n_columns)."""
        return self._tril @ self._tril.mT

    def given(self, c: Tensor) -> RowMixtures:
        """The distributions of x given each of the conditions c, (n, n_conditions).

        If x does not depend on c, all are the same, and only the number of rows of c matters.
        """
        if not self.n_conditions:
            log_weight = self._gate_constant.log_softmax(0).expand(len(c), -1)
            means = self._mean.expand(len(c), -1, -1)
            return RowMixtures(log_weight, means, self._tril, self._inverse)
        off = (c - self._centre)[:, None] - self._gate_mean  # (n, K, k)
        white = torch.einsum("kij,nkj->nki", self._gate_white, off)
        logits = self._gate_constant - white.square().sum(2) / 2
        means = self._mean + torch.einsum("kij,nkj->nki", self._regression, off)
        return RowMixtures(logits.log_softmax(1), means, self._tril, self._inverse)

    def convolved(self, sigma: Tensor) -> RegressionMixture:
        """The distribution of x with independent normal noise of standard deviations (n_columns,).

        The conditions get no noise, so that the weights and the regressions do not change.
        """
        log_weight, means, covariances = self.joint.components()
        noise = torch.zeros_like(means[0])
        noise[self.n_conditions :] = sigma.to(noise).square()
        like = self.joint.means
        noisy = GaussianMixture(log_weight.exp(), means, covariances + noise.diag())
        return RegressionMixture(noisy.to(like.device, like.dtype), self.n_columns)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> RegressionMixture:
        """A copy on a device, in the given precision."""
        return RegressionMixture(self.joint.to(device, dtype), self.n_columns)

    def __repr__(self) -> str:
        kind = "" if self.n_conditions else ", whatever the condition"
        return f"RegressionMixture({len(self._mean)} components{kind})"

    def __getstate__(self) -> dict[str, Any]:
        return {"joint": self.joint, "n_columns": self.n_columns}

    @own_modes()  # in which pickle may call it
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["joint"], state["n_columns"])  # type: ignore[misc]


class RowMixtures(Conditional):
    """A mixture of normal distributions for each of n rows, with covariances in common.

    Methods take m n rows, m for each distribution: rows number i, n + i, 2 n + i, ... belong to
    distribution i.

    Parameters
    ----------
    log_weight : Tensor of shape (n, K)
        Log-weights of the components, normalised.
    means : Tensor of shape (n, K, d)
    scale_tril, inverse_tril : Tensor of shape (K, d, d)
        Lower Cholesky factors of the covariances, and their inverses.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import RowMixtures
    >>> one = torch.ones(1, 1, 1)
    >>> two_rows = RowMixtures(torch.zeros(2, 1), torch.tensor([[[0.0]], [[5.0]]]), one, one)
    >>> two_rows.log_prob(torch.tensor([[0.0], [5.0], [1.0], [6.0]]))
    tensor([-0.9189, -0.9189, -1.4189, -1.4189])
    """

    def __init__(self, log_weight: Tensor, means: Tensor, scale_tril: Tensor, inverse_tril: Tensor):
        self.log_weight, self.means = log_weight, means
        self.scale_tril, self.inverse_tril = scale_tril, inverse_tril
        d = means.shape[2]
        log_scale = inverse_tril.diagonal(dim1=1, dim2=2).log().sum(1)
        self._constant = log_weight + log_scale - d / 2 * math.log(math.tau)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Mean of each distribution, (n, d)."""
        return (self.log_weight.exp()[..., None] * self.means).sum(1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of rows (m n, d), (m n,)."""
        return self._logits(x)[0].logsumexp(2).flatten()

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (m n,) of rows (m n, d) and its gradient with respect to x, (m n, d)."""
        logits, white = self._logits(x)
        log_q = logits.logsumexp(2)
        share = (logits - log_q[..., None]).exp()
        score = -torch.einsum("mnk,mnki,kij->mnj", share, white, self.inverse_tril)
        return log_q.flatten(), score.flatten(0, 1)

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-densities of the joint of row and component, (m, n, K), and whitened differences."""
        n = len(self.means)
        off = x.view(len(x) // max(1, n), n, 1, x.shape[1]) - self.means
        white = torch.einsum("kij,mnkj->mnki", self.inverse_tril, off)
        return self._constant - white.square().sum(3) / 2, white

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw a row of each distribution, (n, d)."""
        return self.draws(1, generator)

    def draws(self, n_draws: int, generator: torch.Generator) -> Tensor:
        """Draw `n_draws` rows of each distribution, (n_draws n, d)."""
        n, _, d = self.means.shape
        kind: dict[str, Any] = {"generator": generator, "device": generator.device}
        u = torch.rand(n_draws * n, dtype=self.means.dtype, **kind)
        z = torch.randn(n_draws * n, d, dtype=self.means.dtype, **kind)
        return self.of_noise(u, z)

    def of_noise(self, u: Tensor, z: Tensor) -> Tensor:
        """Draws by uniform numbers u (m n,) and standard normal ones z (m n, d), (m n, d)."""
        n = len(self.means)
        copies = len(u) // n
        k = draw_index(self.log_weight.exp().double().repeat(copies, 1), u.double())
        place = torch.arange(n, device=u.device).repeat(copies)
        step = torch.matmul(self.scale_tril[k], z[..., None])[..., 0]
        return self.means[place, k] + step
