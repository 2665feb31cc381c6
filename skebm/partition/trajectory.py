"""log Z through the models of a training: along it, and afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skebm.base import BipartiteEnergy, Energy, LogPartition, Sampler, sampling
from skebm.base.torchtools import check_memory
from skebm.distributions._fitting import draw_index
from skebm.energies import TrajectoryEnergy, annealing_path
from skebm.energies.rbm.trajectory import between, with_weights
from skebm.partition.annealed import AIS
from skebm.partition.bracket import AISBracket
from skebm.samplers import Gibbs

# Conditional effective sample size, a draw, of each step of the draws that follow a training; and
# steps at most between two looks at it.
LEAST_CESS, MOST_MOVES = 0.95, 400
# Effective sample size, a draw, below which the draws are resampled.
LEAST_ESS = 0.5
# Batches between two looks, as a part of those so far.
PACE = 0.1
# Rate of exchanges above which two models are as good as one.
SAME = 0.98


class Draws(NamedTuple):
    """Weighted rows that follow a model: x (n, d), log weights (n,), log Z apart from these."""

    x: Tensor
    log_weight: Tensor
    log_z0: float

    @property
    def log_z(self) -> float:
        """Estimate of log Z, in nats."""
        n = len(self.log_weight)
        return self.log_z0 + float(torch.logsumexp(self.log_weight, 0)) - math.log(n)

    @property
    def weight(self) -> Tensor:
        """Weights that sum to 1, (n,)."""
        return self.log_weight.softmax(0)

    def reweighted(self, increment: Tensor) -> Draws:
        """With increments (n,) of the log weights."""
        return self._replace(log_weight=self.log_weight + increment)

    def resampled(self, generator: torch.Generator) -> Draws:
        """Of equal weights, by systematic draws, if the effective sample size is small."""
        n, weight = len(self.x), self.weight
        if 1 / float(weight.square().sum()) >= LEAST_ESS * n:
            return self
        start = torch.rand((), generator=generator, dtype=weight.dtype, device=weight.device)
        u = (torch.arange(n, dtype=weight.dtype, device=weight.device) + start) / n
        return Draws(self.x[draw_index(weight, u)], torch.zeros_like(weight), self.log_z)


class KeptModel(NamedTuple):
    """A model of a trajectory: its parameters, its temperature if it is hot, and draws of it."""

    weights: list[Tensor]
    beta: float
    draws: Draws


class Trail(NamedTuple):
    """Where a training has gone: models kept so far, and draws of the model of the last look.

    Tensors are never changed in place, so that an earlier trail is a snapshot.
    """

    kept: tuple[KeptModel, ...]
    last: KeptModel
    target: float


def exchange_rate(hot: Energy, cold: Energy, of_hot: Draws, of_cold: Draws) -> float:
    """Mean probability with which independent rows of two energies are exchanged.

    Over all pairs of a draw of each, by their weights: neighbouring draws are no independent pairs
    where those of one model descend from those of the other.
    """
    change_hot, change_cold = ((cold(d.x) - hot(d.x)).double() for d in (of_hot, of_cold))
    accepted = (change_cold[None, :] - change_hot[:, None]).clamp(max=0).exp()
    return float(of_hot.weight @ accepted @ of_cold.weight)


class TrajectoryRecorder:
    """Follows a training by weighted draws, and keeps models that exchange rows with each other.

    The draws begin at the base, and are annealed from each look at the weights to the next one,
    along the line between both, by steps of equal loss of their effective sample size. Where the
    rate at which the present model exchanges rows with the last one that was kept has fallen to
    `acceptance`, it is kept. If there are `n` of them, every other one is dropped, and the rate
    that is aimed at falls to that of the models that are left.

    The draws have a generator of their own, so that the training is the same without them.

    Parameters
    ----------
    n : int
        Models at most.
    acceptance : float
    n_chains, n_steps : int
        Draws, and Gibbs steps that they take after each change of the weights.
    seed : int
    """

    def __init__(self, n: int, acceptance: float, n_chains: int, n_steps: int, seed: int):
        self.n, self.acceptance = n, acceptance
        self.n_chains, self.n_steps, self.seed = n_chains, n_steps, seed
        self.n_batches, self.next_look = 0, 0
        self.trail: Trail | None = None

    def copy(self) -> TrajectoryRecorder:
        """A recorder that goes on from here."""
        return copy.copy(self)

    # ---------------------------------------------------------------- when

    def count(self) -> None:
        """Count a batch."""
        self.n_batches += 1

    @property
    def is_due(self) -> bool:
        """Whether the weights have to be looked at: after a tenth of the batches so far."""
        return self.n_batches >= self.next_look

    # ---------------------------------------------------------------- following

    @torch.no_grad()
    def follow(self, energy: BipartiteEnergy) -> None:
        """Anneal the draws to the present weights of an energy, and keep models on the way.

        Nothing changes where weights are not finite: training will go back from there.
        """
        self.next_look = self.n_batches + max(1, int(PACE * self.n_batches))
        weights = [p.detach().clone() for p in energy.parameters()]
        if not all(bool(one.isfinite().all()) for one in weights):
            return
        with sampling(energy):
            generator = self._generator(weights[0].device)
            if self.trail is None:
                self._begin(energy, weights, generator)
                return
            start = self.trail.last.weights
            for share in self._moves(energy, start, weights, 1.0, generator):
                self._move_to(energy, between(start, weights, share), 1.0, generator)

    def rewind(self, energy: BipartiteEnergy) -> None:
        """Forget the models behind the one that is nearest to the present weights of an energy.

        Training may have gone back to earlier weights.
        """
        if self.trail is None:
            return
        now = [p.detach() for p in energy.parameters()]

        def distance(one: KeptModel) -> float:
            pairs = zip(one.weights, now, strict=True)
            return sum(float((a - b).square().sum()) for a, b in pairs)

        cold = [one for one in self.trail.kept if one.beta == 1.0]
        nearest = min([self.trail.last, *reversed(cold)], key=distance)
        if nearest is not self.trail.last:
            number = next(k for k, one in enumerate(self.trail.kept) if one is nearest)
            kept = self.trail.kept[: number + 1]
            self.trail = self.trail._replace(kept=kept, last=nearest)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A generator of this look at the weights."""
        number = self.seed + 0x9E3779B9 * (self.n_batches + 1)
        return torch.Generator(device).manual_seed(number % 2**63)

    def _begin(
        self, energy: BipartiteEnergy, weights: list[Tensor], generator: torch.Generator
    ) -> None:
        """Draws of the base, annealed to the first weights through their temperatures."""
        base, like = energy.base, weights[0]
        x = base.sample(self.n_chains, generator).to(like)
        size = sum(one.numel() for one in weights) + x.numel()
        what = f"n={self.n} models of a trajectory, each with {self.n_chains} draws,"
        check_memory(what, self.n * size, like.dtype, like.device)
        log_z = annealing_path(energy, base).log_z0
        draws = Draws(x, torch.zeros(len(x), dtype=torch.float64, device=x.device), log_z)
        self.trail = Trail((), KeptModel(weights, 0.0, draws), self.acceptance)
        for beta in self._moves(energy, weights, weights, None, generator):
            self._move_to(energy, weights, beta, generator)
        trail = self.trail
        self.trail = trail._replace(kept=(*trail.kept, trail.last))

    def _model(self, energy: BipartiteEnergy, weights: Sequence[Tensor], beta: float) -> Any:
        found = with_weights(energy, weights)
        return found if beta == 1.0 else found.annealed(beta)

    def _moves(
        self,
        energy: BipartiteEnergy,
        start: list[Tensor],
        end: list[Tensor],
        beta: float | None,
        generator: torch.Generator,
    ) -> Any:
        """Places in (0, 1], one after the other, each as far as the draws can follow in a step.

        On the line between weights or, without `beta`, of temperatures of the same weights.
        """
        place, step = 0.0, 1.0
        for number in range(MOST_MOVES):
            assert self.trail is not None
            last = self.trail.last
            now, x = self._model(energy, last.weights, last.beta), last.draws.x
            before = now(x).double()
            step = min(2 * step, 1.0 - place)
            while number < MOST_MOVES - 1 and step > 1e-4:
                share = place + step
                new = (
                    self._model(energy, start, share)
                    if beta is None
                    else self._model(energy, between(start, end, share), beta)
                )
                if _conditional_ess(last.draws.weight, before - new(x).double()) >= LEAST_CESS:
                    break
                step /= 2
            place = 1.0 if number == MOST_MOVES - 1 or place + step > 1 - 1e-9 else place + step
            yield place
            if place == 1.0:
                return

    def _move_to(
        self,
        energy: BipartiteEnergy,
        weights: list[Tensor],
        beta: float,
        generator: torch.Generator,
    ) -> None:
        """Reweight the draws for a model, let them take steps of it, and keep it if it is due."""
        assert self.trail is not None
        last, target = self.trail.last, self.trail.target
        old, new = self._model(energy, last.weights, last.beta), self._model(energy, weights, beta)
        x = last.draws.x
        draws = last.draws.reweighted((old(x) - new(x)).double()).resampled(generator)
        if beta > 0:
            state, kernel = Gibbs().init(new, draws.x), Gibbs()
            for _ in range(self.n_steps):
                state, _ = kernel.step(new, state, generator)
            draws = draws._replace(x=state.x)
        here = KeptModel(weights, beta, draws)
        self.trail = self.trail._replace(last=here)
        kept = self.trail.kept
        before = kept[-1] if kept else self._base(energy, last)
        hot = self._model(energy, before.weights, before.beta)
        if exchange_rate(hot, new, before.draws, draws) <= target:
            self._keep(energy, here)

    def _base(self, energy: BipartiteEnergy, last: KeptModel) -> KeptModel:
        """The base as the rung before the first model: draws of it, without steps."""
        generator = torch.Generator(last.weights[0].device).manual_seed(self.seed)
        x = energy.base.sample(self.n_chains, generator).to(last.weights[0])
        even = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return KeptModel(last.weights, 0.0, Draws(x, even, 0.0))

    def _keep(self, energy: BipartiteEnergy, one: KeptModel) -> None:
        """Keep a model; of a full trajectory, drop every other one before."""
        assert self.trail is not None
        kept, target = self.trail.kept, self.trail.target
        if len(kept) >= self.n:
            hot, cold = ([k for k in kept if (k.beta < 1.0) == is_hot] for is_hot in (True, False))
            kept = (*hot[1::2], *cold[::2])  # with the first cold one, of which the others are hot
            rates = self.rates(energy, (*kept, one))
            target = min(target, sum(rates) / len(rates))
        self.trail = self.trail._replace(kept=(*kept, one), target=target)

    @torch.no_grad()
    def rates(self, energy: BipartiteEnergy, models: Sequence[KeptModel]) -> list[float]:
        """Rates at which neighbours exchange rows."""
        with sampling(energy):
            energies = [self._model(energy, one.weights, one.beta) for one in models]
            return [
                exchange_rate(energies[k], energies[k + 1], models[k].draws, models[k + 1].draws)
                for k in range(len(models) - 1)
            ]

    # ---------------------------------------------------------------- what was found

    def finish(self, energy: BipartiteEnergy) -> None:
        """Follow training to the weights that it ended with, from the nearest ones before."""
        self.rewind(energy)
        self.follow(energy)

    @property
    def log_z(self) -> float:
        """log Z of the model of the last look, in nats, by the draws that followed training."""
        assert self.trail is not None
        return self.trail.last.draws.log_z

    def energy(self, last: BipartiteEnergy) -> TrajectoryEnergy:
        """The energy of a model with those that led to it."""
        assert self.trail is not None
        kept = self.trail.kept
        models = [with_weights(last, one.weights) for one in kept if one.beta == 1.0]
        temperatures = [one.beta for one in kept if one.beta < 1.0]
        if len(models) > 1 and self.rates(last, (kept[-1], self.trail.last))[0] > SAME:
            models = models[:-1]  # the last model again
        return TrajectoryEnergy([*models, last], temperatures)

    def pack(self) -> dict[str, Any]:
        """Everything but the settings, as tensors and plain values."""
        trail = self.trail
        found: dict[str, Any] = {"n_batches": self.n_batches, "next_look": self.next_look}
        if trail is None:
            return found
        models = [[one.weights, one.beta, list(one.draws)] for one in (*trail.kept, trail.last)]
        return found | {"seed": self.seed, "target": trail.target, "models": models}

    def unpack(self, stored: dict[str, Any]) -> None:
        """Restore what :meth:`pack` returned."""
        self.n_batches, self.next_look = stored["n_batches"], stored["next_look"]
        if "models" not in stored:
            return
        *kept, last = [
            KeptModel(list(weights), beta, Draws(*draws))
            for weights, beta, draws in stored["models"]
        ]
        self.seed, self.trail = stored["seed"], Trail(tuple(kept), last, stored["target"])


def _conditional_ess(weight: Tensor, increment: Tensor) -> float:
    """Conditional effective sample size, a draw, of log increments for weights that sum to 1."""
    w = (increment - increment.max()).exp()
    second = float(weight @ w.square())
    return float(weight @ w) ** 2 / second if second > 0 else 0.0


class TrajectoryAIS(AISBracket):
    r"""AIS through the models that training has gone through, and back from the last one.

    The path leads from the base through the models of a :class:`~skebm.energies.TrajectoryEnergy`,
    and on lines between their parameters, instead of through temperatures of the last model. Where
    these pass a transition of first order, which annealing crosses late if at all, training has
    added the modes of the model one after the other, and neighbours on its path are near each
    other. Everything else is as in :class:`AISBracket`, but for annealing from a wider base, which
    would join the same path: ``value`` and ``std_error`` are those of forward annealing, ``lower``
    its probabilistic bound, ``upper`` the heuristic end.

    Direction: :math:`\hat Z` of the forward runs is unbiased, so ``value`` is on average below log
    Z. ``lower`` holds with probability at least :math:`1 - \delta`. Reverse runs start from rows
    that are no exact samples, so that ``upper`` is heuristic. Without rows `x` there are forward
    runs alone, and no ``upper`` (``nan``), as in :class:`AIS`.

    Parameters
    ----------
    n_chains : int, default=100
        Forward runs, and the largest number of rows in a reverse run.
    n_betas : int, default=1000
        Places on the path, base and model included.
    n_steps : int, default=100
        Sampler steps that lead from the rows of `x` to an additional reverse start; 0 for none.
    delta : float in (0, 1], default=0.05
        Probability with which the lower bound may fail.
    tol : float or None, default=0.05
        Standard error, in nats, at which a part of the places is enough, as in `AISBracket`.
    verbose : int, default=0
        1 shows a progress bar for each run that takes over two seconds.
    max_evaluations, max_seconds : float or None, default=None
        Limits, as in :class:`AISBracket`.

    References
    ----------
    Bereux, Decelle, Furtlehner and Seoane (2024), "Fast training and sampling of restricted
    Boltzmann machines", arXiv 2405.15376, section 4. Neal (2001), Statistics and Computing 11(2).

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import BernoulliRBM, TrajectoryEnergy
    >>> from skebm.partition import Exact, TrajectoryAIS
    >>> generator = torch.Generator().manual_seed(0)
    >>> models = [BernoulliRBM(8, 4, generator=generator, scale=s) for s in (0.01, 0.3, 0.6)]
    >>> energy = TrajectoryEnergy(models)
    >>> estimate = TrajectoryAIS(n_betas=200).estimate(energy)
    >>> abs(estimate.value - Exact().estimate(energy).value) < 0.1
    True
    """

    along_training = True

    def __init__(
        self,
        n_chains: int = 100,
        n_betas: int = 1000,
        n_steps: int = 100,
        delta: float = 0.05,
        tol: float | None = 0.05,
        verbose: int = 0,
        max_evaluations: float | None = None,
        max_seconds: float | None = None,
    ):
        super().__init__(
            n_chains, n_betas, n_steps, delta, tol, verbose, max_evaluations, max_seconds
        )

    def check(self, energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
        """Raise `TypeError` for an energy without the models that led to it."""
        super().check(energy, x)
        if not isinstance(energy, TrajectoryEnergy):
            raise TypeError(
                "TrajectoryAIS anneals through models kept along training, and "
                f"{type(energy).__name__} has none: fit with "
                "optimizer=SGD(trajectory=Trajectory()), or use AISBracket."
            )

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Estimate log Z of the last model, and an interval for it where there are rows `x`."""
        self.check(energy)
        given: dict[str, Any] = {"base": base, "sampler": sampler, "generator": generator}
        if x is None:
            settings = self.n_chains, self.n_betas, self.delta, self.verbose, self.max_seconds
            return AIS(*settings).estimate(energy, **given)
        return super().estimate(energy, x=x, **given)

    def _wide_base(self, energy: Energy, base: Any) -> None:
        return None
