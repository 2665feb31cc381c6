"""Domains: the set a row belongs to, with enumeration, uniform draws and a membership test."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Domain(abc.ABC):
    """The set a row belongs to: its shape, its states, uniform draws and membership."""

    @property
    @abc.abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row as a tensor, without the leading batch axis."""

    @property
    @abc.abstractmethod
    def log_n_states(self) -> float:
        """Natural logarithm of the number of states; ``inf`` for a continuous domain."""

    @abc.abstractmethod
    def states(self, start: int, stop: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        """States number ``start`` to ``stop - 1`` as rows; `ValueError` on a continuous domain."""

    @abc.abstractmethod
    def uniform(self, n: int, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
        """Draw ``n`` rows uniformly over the domain, on the generator's device."""

    @abc.abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Boolean (n,): whether each row is a state of the domain."""

    @abc.abstractmethod
    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Add uniform noise of one level's width to the discrete parts; a real row is unchanged.

        The width is 1, so no Jacobian is needed: the mean log-density of the noisy rows is a lower
        bound on the log-probability of the discrete ones (Theis et al., 2016).
        """

    @property
    def n_columns(self) -> int:
        """Number of tensor entries in a row."""
        return math.prod(self.row_shape)

    @property
    @abc.abstractmethod
    def n_states(self) -> float:
        """Number of states, ``inf`` for a continuous domain or beyond a float's range."""

    def enumerate(
        self, chunk: int = 65536, *, dtype: torch.dtype = torch.float64, device: Any = "cpu"
    ) -> Iterator[Tensor]:
        """Yield all states in chunks of rows."""
        total = round(self.n_states) if self.n_states < 2**62 else None
        if total is None:
            raise ValueError(f"{self} has too many states to enumerate.")
        for start in range(0, total, chunk):
            yield self.states(start, min(start + chunk, total), dtype=dtype, device=device)


@dataclass(frozen=True)
class Real(Domain):
    """Real rows, optionally bounded to a box.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row.
    lower, upper : float or None, default=None
        Bounds shared by all entries, in the units of the row; ``None`` is unbounded on that side.
    """

    shape: tuple[int, ...]
    lower: float | None = None
    upper: float | None = None

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def n_states(self) -> float:
        return math.inf

    @property
    def log_n_states(self) -> float:
        return math.inf

    def states(self, start: int, stop: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        raise ValueError("A real domain has no states to enumerate.")

    def uniform(self, n: int, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
        if self.lower is None or self.upper is None:
            raise ValueError("Uniform draws need a box: give the domain both `lower` and `upper`.")
        u = torch.rand(n, *self.shape, generator=generator, dtype=dtype, device=generator.device)
        return self.lower + (self.upper - self.lower) * u

    def contains(self, x: Tensor) -> Tensor:
        inside = torch.isfinite(x)
        if self.lower is not None:
            inside = inside & (x >= self.lower)
        if self.upper is not None:
            inside = inside & (x <= self.upper)
        return inside.flatten(1).all(1)

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x


@dataclass(frozen=True)
class Binary(Domain):
    """Rows of zeros and ones.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row.
    """

    shape: tuple[int, ...]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def n_states(self) -> float:
        return 2.0**self.n_columns if self.n_columns < 1024 else math.inf

    @property
    def log_n_states(self) -> float:
        return self.n_columns * math.log(2)

    def states(self, start: int, stop: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        index = torch.arange(start, stop, device=device)
        bit = torch.arange(self.n_columns, device=device)
        return ((index[:, None] >> bit) & 1).to(dtype).reshape(len(index), *self.shape)

    def uniform(self, n: int, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
        u = torch.rand(n, *self.shape, generator=generator, dtype=dtype, device=generator.device)
        return (u < 0.5).to(dtype)

    def contains(self, x: Tensor) -> Tensor:
        return ((x == 0) | (x == 1)).flatten(1).all(1)

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)


@dataclass(frozen=True)
class Categorical(Domain):
    """Columns with a finite number of levels, each one-hot in the row.

    Parameters
    ----------
    groups : tuple of int
        Number of levels of each column; a row has ``sum(groups)`` entries.
    """

    groups: tuple[int, ...]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (sum(self.groups),)

    @property
    def n_states(self) -> float:
        return math.prod(float(k) for k in self.groups)

    @property
    def log_n_states(self) -> float:
        return sum(math.log(k) for k in self.groups)

    def one_hot(self, levels: Tensor, dtype: torch.dtype) -> Tensor:
        """Turn levels (n, n_groups) into one-hot rows (n, sum(groups))."""
        parts = [
            nn.functional.one_hot(level, k)
            for level, k in zip(levels.unbind(1), self.groups, strict=True)
        ]
        return torch.cat(parts, 1).to(dtype)

    def levels(self, x: Tensor) -> Tensor:
        """Turn one-hot rows into levels (n, n_groups)."""
        return torch.stack([part.argmax(1) for part in x.split(self.groups, 1)], 1)

    def states(self, start: int, stop: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        index, levels = torch.arange(start, stop, device=device), []
        for k in self.groups:
            levels.append(index % k)
            index = index // k
        return self.one_hot(torch.stack(levels, 1), dtype)

    def uniform(self, n: int, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
        draw = [
            torch.randint(k, (n,), generator=generator, device=generator.device)
            for k in self.groups
        ]
        return self.one_hot(torch.stack(draw, 1), dtype)

    def contains(self, x: Tensor) -> Tensor:
        ok = ((x == 0) | (x == 1)).all(1)
        for part in x.split(self.groups, 1):
            ok = ok & (part.sum(1) == 1)
        return ok

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return (n, n_groups): each column's level plus uniform noise in [0, 1)."""
        levels = self.levels(x).to(x.dtype)
        return levels + torch.rand(
            levels.shape, generator=generator, dtype=x.dtype, device=x.device
        )


@dataclass(frozen=True)
class Mixed(Domain):
    """Blocks of columns of different kinds, side by side in one flat row.

    Parameters
    ----------
    parts : tuple of Domain
        The blocks, in the order of their columns.
    """

    parts: tuple[Domain, ...]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (sum(part.n_columns for part in self.parts),)

    @property
    def n_states(self) -> float:
        return math.prod(part.n_states for part in self.parts)

    @property
    def log_n_states(self) -> float:
        return sum(part.log_n_states for part in self.parts)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Cut rows into the blocks, each in its part's own shape."""
        blocks = x.split([part.n_columns for part in self.parts], 1)
        return tuple(
            block.reshape(-1, *part.row_shape)
            for block, part in zip(blocks, self.parts, strict=True)
        )

    def states(self, start: int, stop: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        index, blocks = torch.arange(start, stop, device=device), []
        for part in self.parts:
            if math.isinf(part.n_states):
                raise ValueError(f"The part {part} has no states to enumerate.")
            count = round(part.n_states)
            table = part.states(0, count, dtype=dtype, device=device).flatten(1)
            blocks.append(table[index % count])
            index = index // count
        return torch.cat(blocks, 1)

    def uniform(self, n: int, generator: torch.Generator, *, dtype: torch.dtype) -> Tensor:
        draws = [part.uniform(n, generator, dtype=dtype).flatten(1) for part in self.parts]
        return torch.cat(draws, 1)

    def contains(self, x: Tensor) -> Tensor:
        blocks = zip(self.parts, self.split(x), strict=True)
        return torch.stack([part.contains(block) for part, block in blocks]).all(0)

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        blocks = zip(self.parts, self.split(x), strict=True)
        return torch.cat([part.dequantise(b, generator).flatten(1) for part, b in blocks], 1)


def parts_of(domain: Domain) -> tuple[Domain, ...]:
    """Blocks of columns of one kind."""
    return domain.parts if isinstance(domain, Mixed) else (domain,)


def columns_of(domain: Domain) -> tuple[int, ...]:
    """Entries of a row for each column: the levels of a category, 1 for others."""
    entries: list[int] = []
    for part in parts_of(domain):
        entries += part.groups if isinstance(part, Categorical) else (1,) * part.n_columns
    return tuple(entries)


def enumeration_cost(one: Domain, other: Domain) -> float:
    """Cost of summing over both layers: states of the cheaper one times units of the other."""
    return min(one.n_states * other.n_columns, other.n_states * one.n_columns)
