"""What estimators of a network on top of a base share: building it, training it, showing it."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skebm._validation import check_is_fitted
from skebm.base import Objective
from skebm.distributions import Affine, Distribution, NormalizingFlow
from skebm.energies import Confined, NeuralEnergy, Spec, build_network, whitening_of
from skebm.estimators._density_settings import Settings, net_kwargs
from skebm.estimators._real_rows import Units
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows

# Rows that the network is not trained on but watched by, and of how many.
N_WITHHELD, FEWEST_ROWS = 100, 200

# Share of the rows that a network on top of a flow reaches: the last ones are too rare among draws
# of the flow to hold its value there down.
REACH = 0.99


def withheld(rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
    """Rows to train on, and a tenth, at most a hundred, which only the base has seen."""
    n = min(N_WITHHELD, len(rows) // 10)
    if len(rows) < FEWEST_ROWS:
        return rows, None
    order = torch.randperm(len(rows), generator=generator, device=rows.device)
    return rows.subset(order[n:]), rows.subset(order[:n])


class Neural(BaseEstimator):
    """Builds the energy and the net of an estimator; mixed into it."""

    averaging: float
    deconvolve: bool
    max_restarts: int
    n_iter_no_change: int
    net_params: dict[str, Any] | None
    tol: float
    net_: EnergyNet
    base_: Distribution | None
    units_: Units
    row_shape_: tuple[int, ...]
    _noisy_base: Distribution | None
    _noise: np.ndarray | None  # of training
    _image_shape: tuple[int, ...] | None
    _reach: float | None = None  # of the network, from the centre of the rows
    _levels: tuple[float, float] | None = None  # of noise, where the energy knows of several

    def _new_energy(
        self,
        settings: Settings,
        generator: torch.Generator,
    ) -> NeuralEnergy:
        """The network that settings ask for, on the base of noisy rows."""
        dtype = getattr(torch, settings.dtype)
        base, levels = self._noisy_base, self._levels
        base = None if base is None else base.to(generator.device, dtype)
        plain = levels is None and self._image_shape is None
        whitening = whitening_of(base) if plain else None
        spec = Spec(self.row_shape_, generator, dtype, levels is not None, whitening)
        return NeuralEnergy(
            self._network(settings, spec),
            self.units_.domain,
            base,
            image_shape=self._image_shape,
            noise_levels=levels,
        )

    def _network(self, settings: Settings, spec: Spec) -> nn.Module:
        """What is trained on top of the base; on a flow, whose tails are heavy, within reach."""
        network = build_network(settings.network, spec)
        return network if self._reach is None else Confined(network, self._reach)

    def _learn_reach(self, rows: Rows) -> None:
        """How far most rows lie from the centre, where the base is a flow."""
        base: Any = self._noisy_base
        base = base.distribution if isinstance(base, Affine) else base
        norms = rows.map(lambda x: x.norm(dim=1)).sort().values
        far = float(norms[int(REACH * (len(norms) - 1))])
        self._reach = far if isinstance(base, NormalizingFlow) and far > 0 else None

    @abc.abstractmethod
    def _objective(self, settings: Settings, energy: NeuralEnergy) -> Objective:
        """What is minimised."""

    def _new_net(
        self,
        settings: Settings,
        generator: torch.Generator,
        *,
        streaming: bool,
        validation: Rows | None = None,
    ) -> EnergyNet:
        return EnergyNet(
            self._objective(settings, self._new_energy(settings, generator)),
            generator=generator,
            averaging=0.0 if streaming else self.averaging,
            max_restarts=self.max_restarts,
            validation=validation,
            stop_on=None if validation is None else "valid_loss",
            patience=self.n_iter_no_change,
            tol=self.tol,
            streaming=streaming,
            **self._net_kwargs(settings) | {"device": generator.device} | (self.net_params or {}),
        )

    def _net_kwargs(self, settings: Settings) -> dict[str, Any]:
        """Arguments of the engine."""
        return net_kwargs(self, settings)

    def _initialise(self, energy: Any, rows: Rows) -> None:
        """Networks start at zero, which is the base."""

    @property
    def sigma_(self) -> np.ndarray | None:
        """Noise of training, in the units of `sigma`."""
        check_is_fitted(self)
        return None if self._noise is None else self._noise.astype(np.float64)

    @property
    def _trained_noise(self) -> Tensor | None:
        return None if self._noise is None else torch.as_tensor(self._noise)

    @property
    def energy_(self) -> NeuralEnergy:
        """The trained energy, a torch module in ``eval`` mode; of standardised rows."""
        trained = self._noisy_energy
        if not self.deconvolve or self.base_ is None:
            return trained
        like = next(trained.parameters())
        base = self.base_.to(like.device, like.dtype)
        domain, shape = self.units_.domain, self._image_shape
        return NeuralEnergy(trained.network, domain, base, image_shape=shape).eval()

    @property
    def _noisy_energy(self) -> NeuralEnergy:
        """The energy of rows with the noise of training."""
        energy: Any = self.net_.module_.energy.eval()
        return energy
