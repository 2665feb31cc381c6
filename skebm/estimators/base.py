"""The contract that every estimator keeps, whatever its energy, and that of densities."""

from __future__ import annotations

import abc
import math
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import DensityMixin, OutlierMixin
from torch import Tensor

from skebm._densities import upper_quantile
from skebm._validation import (
    check_is_fitted,
    check_random_state,
    check_weight,
    draw_seed,
    fit_context,
    resolve_device,
    validate_data,
)
from skebm.estimators._attempt import all_or_nothing
from skebm.estimators._params import NetParams, check_net_params
from skebm.estimators._partition import Normalised
from skebm.estimators._storage import Storable
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows

# How many training rows are kept to start reverse annealing from.
N_REFERENCE = 500


class BaseEBM(Normalised, Storable, NetParams, abc.ABC):
    """Estimator made of an energy, an objective and the engine.

    A subclass says how a table becomes rows of its domain (``_rows``), which energy and objective
    are trained and how (``_new_net``, ``_initialise``), and what log Z is found from
    (``_partition_inputs``).
    """

    net_: EnergyNet

    @abc.abstractmethod
    def _rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
        reset: bool = False,
    ) -> Rows:
        """Turn validated input into rows of the energy's domain; `reset` learns the scaling."""

    @abc.abstractmethod
    def _resolve(self, n_rows: int, *, streaming: bool) -> Any:
        """Hyper-parameters without ``"auto"``, for a table of `n_rows` or for a stream."""

    @abc.abstractmethod
    def _new_net(
        self,
        settings: Any,
        generator: torch.Generator,
        *,
        streaming: bool,
        validation: Rows | None = None,
    ) -> EnergyNet:
        """Build an untrained net from resolved settings."""

    @abc.abstractmethod
    def _initialise(self, energy: Any, rows: Rows) -> None:
        """Set those initial parameters that the data tell."""

    # ---------------------------------------------------------------- fitting

    @all_or_nothing
    def _fit(self, X: Any, sample_weight: Any, *, streaming: bool, y: Any = None) -> Any:
        check_net_params(self.net_params or {})
        go_on = self.__sklearn_is_fitted__() and (streaming or self.warm_start)
        X = self._validate(X, reset=not go_on, min_samples=1 if streaming else 2)
        weight = check_weight(sample_weight, X)
        y = self._targets(X, y, going_on=go_on)
        if weight is not None:
            live = weight > 0
            X, y, weight = X[live], None if y is None else y[live], weight[live]
        device = self._device_at_hand() if go_on else resolve_device(self.device)
        dtype = getattr(torch, self.dtype)
        rows = self._rows(X, device=device, dtype=dtype, weight=weight, reset=not go_on)
        rows.y = None if y is None else torch.as_tensor(y, device=device)
        self._check_inside(rows)
        if not go_on:
            self.random_state_ = check_random_state(self.random_state)
        net, train = (self.net_, rows) if go_on else (None, rows)
        if net is None or not (streaming and net.streaming and net.fits(rows)):
            net, train = self._start(rows, net, streaming=streaming)
        self.net_ = net.partial_fit(train)
        net.report()
        self._settle(rows)
        return self

    def _start(
        self, rows: Rows, before: EnergyNet | None, *, streaming: bool
    ) -> tuple[EnergyNet, Rows]:
        """Build a net that goes on from another one, or starts at the data; and what it fits."""
        generator = torch.Generator(rows.device).manual_seed(draw_seed(self.random_state_))
        train, held_out = rows, None
        if self.early_stopping and not streaming:
            order = torch.randperm(len(rows), generator=generator, device=rows.device)
            if len(rows) < 2:
                raise ValueError("early_stopping needs two rows: validation_fraction takes one.")
            n_held = min(len(rows) - 1, max(1, round(self.validation_fraction * len(rows))))
            train, held_out = rows.subset(order[n_held:]), rows.subset(order[:n_held])
        self._prepare(train, going_on=before is not None)
        settings = self._resolve(len(train), streaming=streaming)
        net = self._new_net(settings, generator, streaming=streaming, validation=held_out)
        net.initialize()
        if held_out is None and not streaming:
            train, withheld = self._withhold(train, generator)
            net.hold_out(withheld)
        if before is None:
            self._initialise(net.module_.energy, train)
        else:
            net.load_state(before)
        self._settings = settings
        return net, self._condense(train)

    def _targets(self, X: Any, y: Any, *, going_on: bool) -> np.ndarray | None:
        """Targets of the rows as numbers; of densities none."""
        return None

    def _check_inside(self, rows: Rows) -> None:
        """Refuse rows that training cannot take; by default none."""
        return

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        """Learn what the network is built on, such as its base; by default nothing."""
        return

    def _withhold(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        """Rows to train on, and others to watch training by; by default none."""
        return rows, None

    def _condense(self, rows: Rows) -> Rows:
        """Rows equivalent to those given but cheaper to train on; by default the same."""
        return rows

    def _settle(self, rows: Rows) -> None:
        """Set what is learned besides the weights."""
        self.history_, self.n_restarts_ = self.net_.history.to_list(), self.net_.n_restarts_
        self.n_iter_ = len(self.history_)
        n_reference = min(len(rows), N_REFERENCE, max(2, 1_000_000 // rows.n_columns))
        keep = torch.linspace(0, len(rows) - 1, n_reference).long()
        self._reference = rows.take(keep.to(rows.device)).cpu().numpy()
        self._forget_log_partition()

    def __sklearn_is_fitted__(self) -> bool:
        return "net_" in self.__dict__

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        return validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            accept_sparse="csr",
            ensure_min_samples=min_samples,
            **kwargs,
        )

    def _fitted_rows(self, X: Any) -> Rows:
        check_is_fitted(self)
        return self._rows_like_energy(self._validate(X))

    def _rows_like_energy(self, X: Any) -> Rows:
        like = next(self.energy_.parameters())
        return self._rows(X, device=like.device, dtype=like.dtype)

    @property
    def energy_(self) -> Any:
        """The trained energy, a torch module in ``eval`` mode."""
        return self.net_.module_.energy.eval()

    def _scoring_energy(self) -> Any:
        """The energy in a form whose products round every row alike."""
        return self.energy_

    def _map(self, rows: Rows, function: Any) -> Tensor:
        """Apply ``function(energy, x)`` to rows, each independent of the others."""
        energy = self._scoring_energy()
        return rows.map(lambda x: function(energy, x), energy.domain.n_columns)

    def _energies(self, rows: Rows) -> np.ndarray:
        return self._map(rows, lambda energy, x: energy(x)).double().numpy()

    def _generator(self, random_state: Any) -> torch.Generator:
        device = next(self.energy_.parameters()).device
        return torch.Generator(device).manual_seed(draw_seed(random_state))

    # ---------------------------------------------------------------- densities

    def energy(self, X: Any) -> np.ndarray:
        """Energy of each row, in nats: lower is more likely.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._energies(self._fitted_rows(X))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row, log p(x) = -E(x) - log Z, in nats.

        Exact when log Z is; with an estimated log Z off by the same unknown constant for all rows
        (see `log_partition_bounds_`). With ``partition=None`` it is -E(x). To rank rows
        :meth:`energy` does without log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        rows = self._fitted_rows(X)
        return -self._likely_energies(rows) - self.log_partition_

    def _likely_energies(self, rows: Rows) -> np.ndarray:
        """Energies of rows whose likelihood is asked for."""
        return self._energies(rows)


class BaseDensity(OutlierMixin, DensityMixin, BaseEBM, abc.ABC):
    """Density estimator: fitted to rows alone, and a detector of outliers besides."""

    @abc.abstractmethod
    def _proper_score(self, rows: Rows) -> Tensor:
        """Proper scoring rule that needs no log Z, (n,), higher is better."""

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model to the rows of X.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight 0 is as if it were not there.

        Returns
        -------
        self : object
        """
        return self._fit(X, sample_weight, streaming=False)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Make one pass over the rows of X, in mini-batches, going on from the present state.

        Chains, offsets, momentum and the scaling of the columns persist between calls. The
        threshold of `predict` becomes that of the rows given.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows, with the columns of the first call.
        y : None
            Not used; present by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights.

        Returns
        -------
        self : object
        """
        return self._fit(X, sample_weight, streaming=True)

    def _settle(self, rows: Rows) -> None:
        super()._settle(rows)
        share = 0.1 if self.contamination == "auto" else self.contamination
        self.threshold_ = upper_quantile(self._energies(rows), share, rows.counts.cpu().numpy())

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows in nats, by the largest credible log Z.

        Exact when log Z is, pessimistic when it is estimated, so that a search never rewards bad
        mixing; nan, with a warning, where the method knows no such end. With ``partition=None`` a
        proper rule that needs no log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : None
            Not used; present by convention.

        Returns
        -------
        float
        """
        rows = self._fitted_rows(X)
        if self.partition is None:
            return float(self._proper_score(rows).double().mean())
        found = self._log_partition()
        if math.isnan(found.pessimistic):
            warnings.warn(
                f"score is nan, because log Z has no credible upper end: {found.reason}. Use "
                'partition="auto", or score_samples for what the estimate says.',
                stacklevel=2,
            )
        return -float(self._likely_energies(rows).mean()) - found.pessimistic

    # ---------------------------------------------------------------- anomalies

    @property
    def offset_(self) -> float:
        """Threshold of `predict` in the units of `score_samples`."""
        return -self.threshold_ - self.log_partition_

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-likelihood above the threshold: negative for outliers. Needs no log Z.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        energy = self.energy(X)  # checks that the model is fitted
        return self.threshold_ - energy

    def predict(self, X: Any) -> np.ndarray:
        """Tell inliers (+1) from outliers (-1).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return np.where(self.decision_function(X) >= 0, 1, -1)
