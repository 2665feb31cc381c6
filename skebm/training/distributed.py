"""Data-parallel training: one fit on several processes that `torch.distributed` connects.

Every process runs the same script on the same rows. Of each batch it takes a part, gradients are
averaged, and so all of them have the same weights after every step. This module is the only one
that communicates.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
from torch import Tensor, nn

from skebm._validation import draw_seed
from skebm.base import Batch, Loss, Objective, SamplingError
from skebm.base.processes import reducing
from skebm.training.rows import Rows

# Seconds in which processes answer after one of them has gone.
ROLL_CALL = 5.0
# Characters of an error that other processes are told.
LONGEST = 500
WHAT_NOW = (
    "Start all processes again with the same command; where skebm.training.Resume is among the "
    "callbacks, training goes on after the last epoch that it stored."
)


class RankStoppedError(RuntimeError):
    """Another process of a data-parallel fit has stopped, or does not answer.

    Examples
    --------
    >>> from skebm.training import RankStoppedError
    >>> issubclass(RankStoppedError, RuntimeError)
    True
    """


class Group:
    """A single process, which communicates with no other: its averages are its own values.

    Attributes
    ----------
    rank, size : int
        Number of this process, counted from 0, and number of processes.
    """

    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        return [value]

    def broadcast(self, value: Any, source: int) -> Any:
        """The value of one process."""
        return value

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """Means over the processes of named numbers; the names are the same on all."""
        return values

    def total(self, *values: float) -> list[float]:
        """Sums of numbers over the processes."""
        return list(values)

    def mean_of(self, value: Any) -> Any:
        """Mean of a tensor or number over the processes; integers are returned unchanged."""
        return value

    def part(self, values: Tensor) -> Tensor:
        """The rows of a tensor that belong to this process."""
        return values

    def whole(self, values: Tensor) -> Tensor:
        """The rows of all processes, one after the other: undoes :meth:`part`."""
        return values

    def meet(self, place: str) -> None:
        """Raise `RankStoppedError` unless all processes are at the same place of a fit."""

    def jointly(self, compute: Callable[[], Any], failure: str | None = None) -> Any:
        """Result of a computation.

        If it raises a `SamplingError` on any process, or if any process reports an earlier
        `failure`, all processes raise a `SamplingError`.
        """
        return compute()

    def leave(self, error: BaseException) -> None:
        """Tell the others why this process no longer takes part."""


class Ranks(Group):
    """All processes of `torch.distributed`, connected by a communicator of skebm's own.

    A process that leaves a fit closes the communicator, so that no other process waits in vain; the
    next fit makes a new one.

    Parameters
    ----------
    number : int
        Number of communicators that were made before.

    Raises
    ------
    RankStoppedError
        If a process does not begin the fit within the timeout of `torch.distributed`.
    """

    def __init__(self, number: int):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.world = dist.group.WORLD
        # There is no public way to the store that connects the processes.
        everyone: Any = dist.distributed_c10d._get_default_store()
        self.timeout = everyone.timeout
        self.store = dist.PrefixStore(f"skebm/{number}", everyone)
        # NCCL reduces tensors on GPUs alone.
        self.device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        absent = self._absent("begun", self.timeout.total_seconds())
        if absent:
            raise RankStoppedError(
                f"{_ranks(absent)} of {self.size} did not begin a fit within "
                f"{self.timeout.total_seconds():.0f} seconds, the timeout of init_process_group: "
                "every process has to call fit. To train in one process alone, call it within "
                "skebm.training.single_process()."
            )
        self.processes: Any = dist.new_group(timeout=self.timeout)

    # ---------------------------------------------------------------- what goes wrong

    def _absent(self, place: str, seconds: float) -> list[int]:
        """Ranks that do not sign in at a place in time; this process does."""
        found = []
        self.store.set(f"{place}/{self.rank}", "")
        for rank in range(self.size):
            try:
                self.store.wait([f"{place}/{rank}"], timedelta(seconds=seconds))
            except RuntimeError:
                found.append(rank)
                seconds = 0.1  # the others have had their time
        return found

    def _close(self) -> None:
        """Close the connections, at which the others wake up."""
        processes, self.processes = self.processes, None
        # Threads of the last operation may still need the interpreter to free its tensors. The end
        # of the group in torch 2.6 waits for them without releasing it, and so never comes.
        time.sleep(0.01)
        with contextlib.suppress(RuntimeError, ValueError):  # not of a world that is destroyed
            dist.destroy_process_group(processes)

    def leave(self, error: BaseException) -> None:
        if self.processes is None:
            return
        reason = f"{type(error).__name__}: {error}".rstrip(": ")[:LONGEST]
        with contextlib.suppress(RuntimeError):  # the process that holds the store may be gone
            self.store.set(f"reason/{self.rank}", reason)
            self.store.set(f"after/{self.rank}", "")
        self._close()

    def _together(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a collective operation."""
        if self.processes is None:
            raise RankStoppedError(f"The processes of this fit have parted. {WHAT_NOW}")
        try:
            collective(*args, group=self.processes, **kwargs)
        except RuntimeError as error:
            self._close()
            raise RankStoppedError(f"{self._what_happened(error)} {WHAT_NOW}") from error

    def _what_happened(self, error: RuntimeError) -> str:
        try:
            absent = self._absent("after", ROLL_CALL)
            others = [rank for rank in range(self.size) if rank != self.rank]
            left = [rank for rank in others if self.store.check([f"reason/{rank}"])]
            reasons = [self.store.get(f"reason/{rank}").decode() for rank in left]
        except RuntimeError:
            return (
                "The process that holds the store of torch.distributed has stopped: rank 0, unless "
                f"another program, such as torchrun, started the processes ({error})."
            )
        said = [
            f"Rank {rank} of {self.size} has stopped ({reason})."
            for rank, reason in zip(left, reasons, strict=True)
        ]
        if absent:
            said.append(
                f"{_ranks(absent)} of {self.size} has stopped or hangs: it was killed, its machine "
                "is gone, or it took longer than the timeout of init_process_group."
            )
        return " ".join(said) or f"The connection between the processes broke ({error})."

    # ---------------------------------------------------------------- collective operations

    def sum_(self, values: Tensor, operation: str = "SUM") -> Tensor:
        """Sum a tensor over all processes, in place; all get the same result, bit for bit."""
        there = self._reachable(values)
        self._together(dist.all_reduce, there, op=getattr(dist.ReduceOp, operation))
        return values if there is values else values.copy_(there)

    def _reachable(self, values: Tensor) -> Tensor:
        """A tensor where the backend can read it."""
        return values.to(self.device) if self.device.type == "cuda" else values

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._together(dist.all_gather_object, found, value)
        return found

    def broadcast(self, value: Any, source: int) -> Any:
        held = [value]
        self._together(dist.broadcast_object_list, held, src=source)
        return held[0]

    def total(self, *values: float) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        found: list[float] = self.sum_(tensor).tolist()
        return found

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        total = self.total(*values.values())
        return {name: t / self.size for name, t in zip(values, total, strict=True)}

    def mean_of(self, value: Any) -> Any:
        if isinstance(value, float):
            return self.total(value)[0] / self.size
        if isinstance(value, Tensor) and value.is_floating_point():
            return self.sum_(value.contiguous().clone()) / self.size
        return value

    def part(self, values: Tensor) -> Tensor:
        n = len(values)
        return values[n * self.rank // self.size : n * (self.rank + 1) // self.size].clone()

    def whole(self, values: Tensor) -> Tensor:
        sizes = torch.zeros(self.size, dtype=torch.int64, device=values.device)
        sizes[self.rank] = len(values)
        counts = self.sum_(sizes).tolist()
        mine = self._reachable(values.new_zeros(max(counts), *values.shape[1:]))
        mine[: len(values)] = values
        found = [torch.empty_like(mine) for _ in counts]
        self._together(dist.all_gather, found, mine)
        rows = torch.cat([part[:n] for part, n in zip(found, counts, strict=True)])
        return rows.to(values.device)

    def meet(self, place: str) -> None:
        code = zlib.crc32(place.encode())
        ends = torch.tensor([code, -code], dtype=torch.int64, device=self.device)
        highest, lowest = self.sum_(ends, "MAX").tolist()
        if highest != -lowest:
            places = "; ".join(f"rank {r}: {p}" for r, p in enumerate(self.gather(place)))
            raise RankStoppedError(
                f"The processes are at different places of a fit ({places}). Something decides "
                "alone, such as a callback that stops training after a time: what a callback "
                "decides must be the same on all ranks."
            )

    def jointly(self, compute: Callable[[], Any], failure: str | None = None) -> Any:
        found = None
        if failure is None:
            try:
                found = compute()
            except SamplingError as error:
                failure = str(error)
        if self.total(float(failure is not None))[0]:
            first = next(reason for reason in self.gather(failure) if reason is not None)
            raise SamplingError(first)
        return found


def _ranks(numbers: list[int]) -> str:
    return f"Rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


# ------------------------------------------------------------------------------
# Which processes
# ------------------------------------------------------------------------------

ALONE = Group()
_SINGLE: ContextVar[bool] = ContextVar("single", default=False)


class Known:
    """The communicator of this process, its number, and a world that belongs to its parent."""

    ranks: Ranks | None = None
    numbers = itertools.count()
    inherited: Any = None


def _after_fork() -> None:
    """A forked process has no part in the world of its parent."""
    Known.ranks = None
    Known.inherited = dist.group.WORLD if dist.is_initialized() else None


if dist.is_available() and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current_group() -> Group:
    """The processes that fit together: those of `torch.distributed`, or this one alone.

    If they have no communicator yet, all of them have to call this function.
    """
    if not dist.is_available() or not dist.is_initialized() or _SINGLE.get():
        return ALONE
    if dist.get_world_size() == 1 or dist.group.WORLD is Known.inherited:
        return ALONE
    known = Known.ranks
    if known is None or known.processes is None or known.world is not dist.group.WORLD:
        known = Known.ranks = Ranks(next(Known.numbers))
    return known


def shows_progress(verbose: Any) -> bool:
    """Whether this process draws bars: rank 0 does, if asked. Does not wait for the others."""
    if not dist.is_available() or not dist.is_initialized() or _SINGLE.get():
        return bool(verbose)
    return bool(verbose) and (dist.group.WORLD is Known.inherited or not dist.get_rank())


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Fit in this process alone within the block, although `torch.distributed` is initialised.

    It is for programs whose processes fit different models, or in which one process fits a model
    that the others do not need.

    Examples
    --------
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.training import single_process
    >>> X = (np.random.default_rng(0).random((50, 6)) < 0.3).astype(float)
    >>> with single_process():
    ...     rbm = RBMEstimator(2, n_iter=2, random_state=0).fit(X)
    """
    token = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(token)


Method = TypeVar("Method", bound=Callable[..., Any])


def collective(method: Method) -> Method:
    """Decorate a method in which all processes take part: if one fails, it tells the others."""

    @functools.wraps(method)
    def attending(*args: Any, **kwargs: Any) -> Any:
        ranks = current_group()
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            ranks.leave(error)
            raise

    found: Any = attending
    return found


def common_seed(random_state: Any) -> Any:
    """A ``random_state`` that is the same on all processes; None becomes a seed drawn by rank 0."""
    ranks = current_group()
    if random_state is not None or ranks.size == 1:
        return random_state
    return ranks.broadcast(draw_seed(None), 0)


def map_over_ranks(rows: Rows, compute: Callable[[Rows], np.ndarray]) -> np.ndarray:
    """A number for each row, (n,), of which each process of a fit computes a part."""
    ranks = current_group()
    if len(rows) < ranks.size or ranks.size == 1:
        return compute(rows)
    index = ranks.part(torch.arange(len(rows), device=rows.device))
    found: np.ndarray = ranks.whole(torch.from_numpy(compute(rows.subset(index)))).numpy()
    return found


# ------------------------------------------------------------------------------
# The same on all processes
# ------------------------------------------------------------------------------


def check_same(ranks: Group, values: dict[str, Any]) -> None:
    """Raise `ValueError` on every process unless the named values are the same on all."""
    if ranks.size == 1:
        return
    everywhere = ranks.gather(values)
    said = []
    for rank, theirs in enumerate(everywhere):
        for name, first in everywhere[0].items():
            if theirs.get(name) != first:
                said.append(_difference(name, first, rank, theirs.get(name)))
    if said:
        raise ValueError(
            f"The processes would train different models: {'; '.join(said)}. Every process has to "
            "fit the same estimator to the same rows in the same order, with an integer as "
            "random_state; of each batch it then trains on a part. To fit different models, call "
            "fit within skebm.training.single_process()."
        )


def _difference(name: str, first: Any, rank: int, other: Any) -> str:
    shown = [str(value) for value in (first, other)]
    if max(map(len, shown)) > LONGEST or name.startswith("the entries"):
        return f"{name} of rank {rank} are not those of rank 0"
    return f"{name} ({shown[0]} on rank 0, {shown[1]} on rank {rank})"


def check_same_estimator(estimator: Any, X: Any) -> None:
    """Compare class, parameters and shape of X on all processes before anything is computed."""
    ranks = current_group()
    if ranks.size == 1:
        return
    # What rank 0 alone may print or record is its own business.
    params = estimator.get_params(deep=False) | {"verbose": None}
    net = params.get("net_params") or {}
    params["net_params"] = {k: v for k, v in net.items() if not k.startswith(("callb", "verb"))}
    found = {
        "the estimator": type(estimator).__name__,
        "its parameters": re.sub(r" at 0x[0-9a-f]+", "", repr(params)),  # addresses differ
        "the shape of X": tuple(getattr(X, "shape", ())),
    }
    check_same(ranks, found)


def checksum(rows: Rows | None) -> dict[str, int]:
    """Checksums of the entries, weights and targets of rows."""
    if rows is None:
        return {}
    sums = {"X": 0, "sample_weight": _crc(rows.weight), "y": _crc(rows.y)}
    for start in range(0, len(rows), 4096):
        sums["X"] = _crc(rows.block(start, start + 4096), sums["X"])
    return sums


def _crc(values: Tensor | None, start: int = 0) -> int:
    if values is None:
        return start
    # Adding 0 makes one number of the two zeros.
    return zlib.crc32((values + 0).detach().cpu().contiguous().numpy().tobytes(), start)


def check_same_input(
    X: Any, weight: np.ndarray | None, y: np.ndarray | None, names: dict[str, Any]
) -> None:
    """Compare validated X, weights and targets, in the units of users, on all processes.

    Rows of the energy are standardised: metres and kilometres are the same there. `names` are the
    columns, levels and classes that numbers in X and y stand for.
    """
    ranks = current_group()
    if ranks.size == 1:
        return
    found: dict[str, Any] = {name: repr(value) for name, value in names.items()}
    for name, values in (("X", X), ("sample_weight", weight), ("y", y)):
        if values is not None:
            found[f"the entries of {name}"] = _crc_of_input(values)
    check_same(ranks, found)


def _crc_of_input(values: Any) -> int:
    """Checksum of an array, a sparse matrix or a table on disk, by blocks of its rows."""
    if sp.issparse(values):
        rows = values.tocsr().sorted_indices()
        total = 0
        for part in (rows.indptr, rows.indices, rows.data):
            total = zlib.crc32(np.ascontiguousarray(part + 0).tobytes(), total)
        return total
    total = 0
    for start in range(0, len(values), 4096):
        block = np.asarray(values[start : start + 4096])
        block = block + 0 if block.dtype.kind in "biuf" else block.astype(str)
        total = zlib.crc32(np.ascontiguousarray(block).tobytes(), total)
    return total


def of_rows(*tables: Rows | None) -> dict[str, Any]:
    """Values by which processes compare their training rows and held-out rows."""
    found: dict[str, Any] = {}
    for kind, rows in zip(("", "validation ", "held-out "), tables, strict=True):
        found[f"the number of {kind}rows"] = None if rows is None else len(rows)
        for name, value in checksum(rows).items():
            found[f"the entries of {kind}{name}"] = value
    return found


# ------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------


class Step:
    """The reductions of one step, which every process requests in the same order.

    Parameters
    ----------
    ranks : Ranks
    n_rows : int
        Number of rows of this process, by which its means are weighted.
    buffer : Buffer
        Memory for the gradients.
    pattern : list of int
        Lengths of the reductions of a step, in their order; the first step fills the list.
    """

    def __init__(self, ranks: Ranks, n_rows: int, buffer: Buffer, pattern: list[int]):
        self.ranks, self.n_rows, self.buffer, self.pattern = ranks, n_rows, buffer, pattern
        self.n_means, self.complete = 0, False

    def mean(self, *values: Tensor) -> list[Tensor]:
        """Means over the processes, of all rows of the batch."""
        parts = [*(v.reshape(-1) for v in values), values[0].new_ones(1)]
        flat = torch.cat(parts).mul_(self.n_rows)
        if self.n_means == len(self.pattern):
            self.pattern.append(len(flat))
        self.n_means += 1
        flat = self.ranks.sum_(flat)
        means = flat[:-1].div_(flat[-1].clone()).split([v.numel() for v in values])
        return [mean.view_as(v) for mean, v in zip(means, values, strict=True)]

    def gradients(self, value: Tensor | None) -> None:
        """Average the gradients of all trained parameters, and the loss, once per step."""
        if not self.complete:
            self.buffer.fill(value)
            self.buffer.average(self.ranks, self.n_rows)
            self.complete = True

    def spoil(self) -> None:
        """Make the step nan on all processes, by the reductions that this one has yet to make."""
        for length in self.pattern[self.n_means :]:
            self.ranks.sum_(torch.full_like(self.buffer.flat[:1], torch.nan).expand(length).clone())
        if not self.complete:
            self.buffer.flat.fill_(torch.nan)
            self.buffer.average(self.ranks, self.n_rows)
            self.complete = True


class Buffer:
    """Gradients of all trained parameters side by side, with the loss and the number of rows.

    A single reduction averages all of them, and the ``.grad`` tensors are views of this memory. A
    parameter without a gradient on this process counts as zero.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes) + 2).detach()
        views = self.flat[:-2].split(sizes)
        self.views = [view.view_as(p) for view, p in zip(views, parameters, strict=True)]

    def fill(self, value: Tensor | None) -> None:
        """Copy the gradients and the loss into the buffer."""
        self.flat[-2] = 0.0 if value is None else value.detach()
        for p, view in zip(self.parameters, self.views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
                p.grad = view

    def average(self, ranks: Ranks, n_rows: int) -> None:
        """Average over the processes, weighted by their numbers of rows."""
        flat = self.flat
        flat[-1] = 1.0
        ranks.sum_(flat.mul_(n_rows))
        flat[:-1].div_(flat[-1].clone())


class DataParallel:
    """What a process does with its part of the rows and of the chains.

    Chains are divided at the beginning of an epoch and united at its end, so that between epochs
    all processes hold the same state, that of a single process. Random numbers of the steps come
    from a separate generator on each process, seeded by the seed of the fit, the number of the
    epoch and the rank. The order of the rows comes from the generator of the fit, which is the same
    on all processes.

    Parameters
    ----------
    ranks : Ranks
    objective : Objective
    parameters : list of Parameter
        The parameters that the optimizer trains.
    """

    def __init__(self, ranks: Ranks, objective: Objective, parameters: list[nn.Parameter]):
        self.ranks, self.objective = ranks, objective
        self.buffer = Buffer(parameters)
        self.pattern: list[int] = []
        self.failure: str | None = None

    def begin(self, state: Any, device: torch.device, *numbers: int) -> Any:
        """Chains of this process for the epoch that `numbers` identify."""
        self.failure = None
        name = "/".join(map(str, (*numbers, self.ranks.rank)))
        digest = hashlib.sha256(name.encode()).digest()
        self.generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
        return self.objective.over_ranks(state, self.ranks.part, lambda value: value)

    def end(self, state: Any) -> Any:
        """Chains of all processes."""
        return self.objective.over_ranks(state, self.ranks.whole, self.ranks.mean_of)

    def gradients(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        """The gradient of all rows of a batch, of which this process holds a part.

        If an energy becomes nan in the chains of one process, the step becomes nan on all
        processes. They receive the reason at the next check only, so that no step has to wait for
        the host.
        """
        step = Step(self.ranks, len(batch.x), self.buffer, self.pattern)
        loss = Loss(None, state)
        if self.failure is None:
            try:
                with reducing(step):
                    loss = self.objective.gradients_with_random_layers(batch, state, self.generator)
                step.gradients(loss.value)
            except SamplingError as error:
                self.failure = str(error)
        if self.failure is not None:
            step.spoil()
        value = None if loss.value is None else self.buffer.flat[-2].clone()
        return loss._replace(value=value)

    def n_rows(self) -> int:
        """Rows of the last batch on all processes."""
        return round(float(self.buffer.flat[-1]))
