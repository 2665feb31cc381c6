"""Neural densities trained by score matching."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from skebm._engine import EnergyNet
from skebm._rows import Rows
from skebm._validation import draw_seed
from skebm.base import Objective
from skebm.energies import NeuralEnergy, Spec, build_network, whitening_of
from skebm.estimators._density_settings import (
    CONSTRAINTS,
    Settings,
    default_network,
    levels_of,
    net_kwargs,
    resolve,
)
from skebm.estimators._real_bases import fit_real_bases, training_noise
from skebm.estimators._real_methods import RealMethods
from skebm.estimators._real_rows import RealRows
from skebm.estimators.base import BaseEBM
from skebm.objectives import (
    DenoisingScoreMatching,
    ExactScoreMatching,
    MultiscaleScoreMatching,
    SlicedScoreMatching,
)


class ScoreMatchingDensity(RealRows, RealMethods, BaseEBM):
    r"""Neural density of continuous columns, trained by score matching: no sampling in training.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad E(x) = -\log q(x) + f(x)

    with a base q that is fitted first and a network f that corrects it.
    """

    _parameter_constraints: dict = CONSTRAINTS
    _levels: tuple[float, float] | None

    def __init__(
        self,
        network=None,
        *,
        objective="denoising",
        base="auto",
        n_components="auto",
        sigma="auto",
        deconvolve=False,
        n_projections=1,
        projection="rademacher",
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        learning_rate_decay="cosine",
        batch_size="auto",
        n_iter="auto",
        weight_decay=0.0,
        averaging=0.0,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        contamination="auto",
        partition="auto",
        sampler=None,
        max_restarts=10,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.objective = objective
        self.base = base
        self.n_components = n_components
        self.sigma = sigma
        self.deconvolve = deconvolve
        self.n_projections = n_projections
        self.projection = projection
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.weight_decay = weight_decay
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.sampler = sampler
        self.max_restarts = max_restarts
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        return resolve(self, n_rows, streaming=streaming)

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        if going_on:
            return
        seed = draw_seed(self.random_state_)
        self._noise = training_noise(self, rows)
        self._levels = levels_of(self, rows.n_columns)
        self._noisy_base, self.base_ = fit_real_bases(self, rows, self._noise, seed)

    def _new_net(
        self,
        settings: Settings,
        generator: torch.Generator,
        *,
        streaming: bool,
        validation: Rows | None = None,
    ) -> EnergyNet:
        dtype = getattr(torch, settings.dtype)
        base = self._noisy_base
        base = None if base is None else base.to(generator.device, dtype)
        several = self._levels is not None
        whitening = None if several or self._image_shape is not None else whitening_of(base)
        spec = Spec(self.row_shape_, generator, dtype, several, whitening)
        energy = NeuralEnergy(
            build_network(default_network(self.network), spec),
            self.units_.domain,
            base,
            image_shape=self._image_shape,
            noise_levels=self._levels,
        )
        return EnergyNet(
            self._objective(energy),
            generator=generator,
            averaging=0.0 if streaming else self.averaging,
            max_restarts=self.max_restarts,
            validation=validation,
            stop_on=None if validation is None else "valid_loss",
            patience=self.n_iter_no_change,
            tol=self.tol,
            streaming=streaming,
            **net_kwargs(self, settings) | {"device": generator.device} | (self.net_params or {}),
        )

    def _objective(self, energy: NeuralEnergy) -> Objective:
        noise: Any = self._noise
        if noise is not None:
            noise = noise.to(next(energy.parameters()))
        if self.objective == "denoising":
            return DenoisingScoreMatching(energy, noise)
        if self._levels is not None:
            return MultiscaleScoreMatching(energy, *self._levels)
        if self.objective == "exact":
            return ExactScoreMatching(energy, noise)
        return SlicedScoreMatching(energy, self.n_projections, self.projection, noise)

    def _initialise(self, energy: Any, rows: Rows) -> None:
        """Networks start at zero, which is the base."""

    def _partition_inputs(self) -> dict[str, Any]:
        energy = self.energy_
        like = next(energy.parameters())
        x = torch.as_tensor(self._reference, dtype=like.dtype, device=like.device)
        generator = torch.Generator(like.device).manual_seed(self.net_.seed_)
        return {"base": energy.base, "sampler": self.sampler_, "x": x, "generator": generator}

    @property
    def energy_(self) -> NeuralEnergy:
        """The trained energy, a torch module in ``eval`` mode; of standardised rows."""
        trained = self._noisy_energy
        if not self.deconvolve or self.base_ is None:
            return trained
        like = next(trained.parameters())
        base = self.base_.to(like.device, like.dtype)
        domain, shape = self.units_.domain, self._image_shape
        clean = NeuralEnergy(trained.network, domain, base, image_shape=shape)
        return clean.eval()

    @property
    def _noisy_energy(self) -> NeuralEnergy:
        """The energy of rows with the noise of training."""
        return self.net_.module_.energy.eval()

    @property
    def _trained_noise(self) -> Tensor | None:
        if self._levels is not None:
            return torch.tensor(self._levels[0], dtype=torch.float64)
        return self._noise if self.objective == "denoising" else None
