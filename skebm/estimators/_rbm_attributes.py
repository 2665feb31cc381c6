"""What a fitted RBM shows: its parameters as arrays, its chains, what "auto" became."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.objectives import ContrastiveState
from skebm.samplers import Gibbs


class RBMAttributes(BaseEstimator):
    """Learned attributes of an RBM; mixed into its estimator."""

    @property
    def components_(self) -> np.ndarray:
        """Weights W, (n_components, n_features)."""
        return self._parameter("weight")

    @components_.setter
    def components_(self, value: Any) -> None:
        self._set_parameter("weight", value)

    @property
    def intercept_hidden_(self) -> np.ndarray:
        """Hidden biases c, (n_components,)."""
        return self._parameter("hidden_bias")

    @intercept_hidden_.setter
    def intercept_hidden_(self, value: Any) -> None:
        self._set_parameter("hidden_bias", value)

    @property
    def intercept_visible_(self) -> np.ndarray:
        """Visible biases b, (n_features,)."""
        return self._parameter("visible_bias")

    @intercept_visible_.setter
    def intercept_visible_(self, value: Any) -> None:
        self._set_parameter("visible_bias", value)

    @property
    def h_samples_(self) -> np.ndarray:
        """Hidden units of the persistent chains, (n_chains, n_components).

        Drawn alike at every call where the chains keep none, and with chains drawn from the model
        where a rule has none.
        """
        x, state = self._chains(), self.net_.state_
        if x is not None and type(self.sampler_) is Gibbs and state.chain.aux is not None:
            return state.chain.aux.cpu().numpy()
        generator = torch.Generator(self.energy_.weight.device).manual_seed(self.net_.seed_)
        if x is None:
            x = self._draw(self.n_chains_, generator)
        with torch.no_grad():
            return self.energy_.hidden(x).sample(generator).cpu().numpy()

    def _parameter(self, name: str) -> np.ndarray:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"{type(self).__name__} is not fitted: call fit first.")
        value = getattr(self.energy_, name).detach().cpu().numpy()
        value.flags.writeable = False
        return value

    def _set_parameter(self, name: str, value: Any) -> None:
        check_is_fitted(self)
        old = getattr(self.energy_, name)
        new = torch.as_tensor(np.array(value), dtype=old.dtype, device=old.device)
        if new.shape != old.shape:
            raise ValueError(f"Expected an array of shape {tuple(old.shape)}, got {new.shape}.")
        with torch.no_grad():
            old.copy_(new)
        self._forget_log_partition()

    @property
    def learning_(self) -> str:
        """Learning rule that ``"auto"`` became."""
        return self._settings.learning

    @property
    def learning_rate_(self) -> float:
        """First learning rate; nan under L-BFGS."""
        return float("nan") if self._settings.line_search else self._settings.learning_rate

    @property
    def batch_size_(self) -> int:
        """Rows per step."""
        return self._settings.batch_size

    @property
    def n_chains_(self) -> int:
        """Persistent chains."""
        return self._settings.n_chains

    @property
    def centered_(self) -> bool:
        """Whether the gradient is centred."""
        return self._settings.centered

    @property
    def precondition_(self) -> float:
        """Exponent of the variances that the gradient is divided by."""
        return self._settings.precondition

    def _chains(self) -> Tensor | None:
        """Visible rows of the persistent chains, where there are any."""
        state = self.net_.state_
        if not isinstance(state, ContrastiveState) or not self.net_.module_.persistent:
            return None
        return None if state.chain is None else state.chain.x
