"""The rows of a table on the device, dense, sparse or in a file, and mini-batches of them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skebm.base import Batch
from skebm.training.mapped import (
    SHUFFLED_WHOLE,
    BlockOrder,
    MappedArray,
    distinct_numbers,
    sample_size,
)


class Rows(torch.utils.data.Dataset):
    """The rows of a table: a tensor on the device, or what batches are read from.

    Parameters
    ----------
    x : Tensor, CSR or MappedArray of shape (n, d)
        Batches of a tensor on another device than `device` are moved to it, those of a CSR matrix
        are made dense, and those of a memory map are read from the file.
    weight : Tensor of shape (n,) or None
        Non-negative; scaled to mean 1. `total_weight` is the sum before scaling.
    y : Tensor of shape (n,) or None
        Targets of the rows.
    convert : callable or None
        Applied to the dense blocks of a CSR matrix or a memory map.

    Attributes
    ----------
    known : Tensor of shape (n, d) or None
        Which entries are data; the others are imputations, drawn anew whenever a row is trained on.
        None if all entries are data.
    n_copies : int
        Number of copies of each row, which are completed in different ways.
    left_out : float
        Weight of rows of the table that are too far from these to be trained on.
    """

    def __init__(
        self,
        x: Tensor | sp.csr_array | MappedArray,
        weight: Tensor | None = None,
        *,
        y: Tensor | None = None,
        dtype: torch.dtype,
        device: torch.device,
        convert: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.x, self.convert, self.dtype, self.device = x, convert, dtype, device
        self.weight = None if weight is None else (weight / weight.mean()).to(device, dtype)
        self.total_weight = float(x.shape[0]) if weight is None else float(weight.sum())
        self.y = None if y is None else y.to(device)
        self.n_columns = x.shape[1]
        self.known: Tensor | None = None
        self.n_copies = 1
        self.left_out = 0.0
        self._sampled_from: Rows | None = None
        self._sample: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        X: Any,
        convert: Callable[[np.ndarray], np.ndarray],
        *,
        dtype: torch.dtype,
        device: torch.device,
        weight: np.ndarray | None = None,
    ) -> Rows:
        """Rows of a validated array, map or CSR matrix; `convert` is applied to dense blocks.

        Dense data that take more than a quarter of a GPU's free memory stay on the host.
        """
        w = None if weight is None else tensor_of(weight, torch.float64)
        if isinstance(X, MappedArray):
            return cls(X, w, dtype=dtype, device=device, convert=convert)
        if sp.issparse(X):
            return cls(X.tocsr(), w, dtype=dtype, device=device, convert=convert)
        x = tensor_of(convert(X), dtype)
        fits = True
        if device.type == "cuda":
            fits = x.numel() * x.element_size() <= torch.cuda.mem_get_info(device)[0] / 4
        return cls(x.to(device) if fits else x, w, dtype=dtype, device=device)

    @property
    def is_mapped(self) -> bool:
        """Whether the rows are in a file."""
        return isinstance(self.x, MappedArray)

    def subsample(self, seed: int) -> Rows:
        """Rows in memory: these rows, or a uniform sample of the rows of a file."""
        n = sample_size(self.n_columns)
        if not self.is_mapped or len(self) <= n:
            return self
        self._sample = distinct_numbers(len(self), n, seed)
        found = self.subset(torch.from_numpy(self._sample).to(self.device))
        found._sampled_from = self
        return found

    @property
    def whole(self) -> Rows:
        """The rows of a file that these are a sample of; these rows if they are not a sample."""
        return self if self._sampled_from is None else self._sampled_from

    @property
    def n_table(self) -> int:
        """Number of rows of the table that these are a sample of, or else of these rows."""
        return len(self.whole)

    @property
    def counts(self) -> Tensor:
        """The weight of each row as it was given, or 1 without weights; float64 (n,)."""
        if self.weight is None and self.is_mapped:  # without memory of its own
            return torch.ones((), dtype=torch.float64, device=self.device).expand(len(self))
        if self.weight is None:
            return torch.ones(len(self), dtype=torch.float64, device=self.device)
        return self.weight.double() * (self.total_weight / len(self))

    def share_of_kept(self, share: float) -> float:
        """The farthest share of a table, which `left_out` is a part of, as one of these rows."""
        left_out = self.left_out / self.total_weight
        return share if not left_out else max(0.0, share - (1 - share) * left_out)

    def subset(self, index: Tensor) -> Rows:
        """Rows of the given numbers, with their weights and targets."""
        weight = None if self.weight is None else self.counts[index]
        kind: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "convert": self.convert}
        kind["y"] = None if self.y is None else self.y[index]
        if isinstance(self.x, Tensor):
            found = Rows(self.x[index.to(self.x.device)], weight, **kind)
            found.known = None if self.known is None else self.known[index.to(self.x.device)]
            return found
        number = index.cpu().numpy()
        if isinstance(self.x, MappedArray):
            few = len(number) <= sample_size(self.n_columns)
            return Rows(
                self._dense(self.x[number]) if few else self.x.subset(number), weight, **kind
            )
        return Rows(self.x[number], weight, **kind)

    def with_weights(self, weight: Tensor) -> Rows:
        """The same rows with other weights (n,), whose total is the same as before."""
        kind: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "convert": self.convert}
        found = Rows(self.x, weight, y=self.y, **kind)
        found.known = self.known
        return found

    def split(self, n: int, generator: torch.Generator) -> tuple[Rows, Rows]:
        """All rows except for `n` rows drawn at random, and these `n` rows.

        Rows of a file are drawn from those that are in no earlier sample, if there are enough of
        them, so that what was fitted to a sample is judged by new rows.
        """
        if self.is_mapped:
            device = generator.device
            seed = int(torch.randint(2**62, (), generator=generator, device=device))
            return self.without(torch.from_numpy(self._others(n, seed)))
        order = torch.randperm(len(self), generator=generator, device=self.device)
        return self.subset(order[n:]), self.subset(order[:n])

    def _others(self, n: int, seed: int) -> np.ndarray:
        """Numbers of `n` rows, of those that are in no sample if there are so many."""
        seen = self._sample
        if seen is None or len(self) - len(seen) < n:
            return distinct_numbers(len(self), n, seed)
        rank = distinct_numbers(len(self) - len(seen), n, seed)
        # The r-th of the others comes after those of the sample of which fewer others are before.
        return rank + np.searchsorted(seen - np.arange(len(seen)), rank, side="right")

    def without(self, index: Tensor) -> tuple[Rows, Rows]:
        """All rows except for those with the given numbers, and those rows."""
        rest = np.ones(len(self), dtype=bool)
        rest[index.cpu().numpy()] = False
        left = torch.from_numpy(np.flatnonzero(rest)).to(self.device)
        return self.subset(left), self.subset(index.to(self.device))

    def without_duplicates(self) -> Rows:
        """Distinct rows weighted by their total weight, for binary rows of up to 62 columns.

        Other rows, and those in a file, are returned unchanged.
        """
        if self.n_columns > 62 or self.known is not None or self.is_mapped:
            return self
        x = self.block(0, len(self))
        if not bool(((x == 0) | (x == 1)).all()):
            return self
        code = x.long() @ (1 << torch.arange(x.shape[1], device=x.device))
        distinct, member = torch.unique(code, return_inverse=True)
        first = torch.empty_like(distinct).scatter_(
            0, member, torch.arange(len(x), device=x.device)
        )
        total = torch.zeros(len(distinct), dtype=torch.float64, device=x.device)
        total.index_add_(0, member, self.counts)
        return Rows(x[first], total, dtype=self.dtype, device=self.device)

    def complete(self, groups: Sequence[int]) -> None:
        """Fill in missing entries, nan, by the values of their column in other rows, at random.

        `groups` holds the number of entries of each column. A column without any value is filled
        with zeros, or with its first level if it has several entries. Rows without missing entries
        are unchanged.
        """
        if not self.has_missing():
            return
        x = self.block(0, len(self)).clone()
        known = ~x.isnan()
        generator = torch.Generator(x.device).manual_seed(0)
        first = 0
        for k in groups:
            column, here = slice(first, first + k), known[:, first]
            first += k
            donors, missing = here.nonzero().ravel(), (~here).nonzero().ravel()
            if not len(donors):
                x[:, column] = torch.eye(k)[0].to(x) if k > 1 else 0.0
            elif len(missing):
                size = (len(missing),)
                pick = torch.randint(len(donors), size, generator=generator, device=x.device)
                x[missing, column] = x[donors[pick], column]
        self.x, self.known, self.convert = x, known, None

    def has_missing(self) -> bool:
        """Whether there are missing entries, nan; memory maps are known to have none."""
        if isinstance(self.x, MappedArray):
            return False
        if isinstance(self.x, Tensor):
            return bool(self.x.isnan().any())
        return bool(np.isnan(self.x.data).any())

    def present_entries(self) -> Tensor | None:
        """Which entries of rows are data, (n, d); None if all are."""
        if self.known is not None:
            return self.known.to(self.device)
        return ~self.block(0, len(self)).isnan() if self.has_missing() else None

    def impute(self, batch: Batch) -> None:
        """Replace completed rows by those of a batch, which have the same data."""
        assert isinstance(self.x, Tensor)
        assert batch.row_index is not None
        self.x.index_copy_(0, batch.row_index.to(self.x.device), batch.x.to(self.x))

    def with_own_imputations(self) -> Rows:
        """The same rows, whose imputations are not drawn anew where these are trained on."""
        found = copy.copy(self)
        if self.known is not None and isinstance(self.x, Tensor):
            found.x = self.x.clone()
        return found

    def imputations(self) -> Tensor | None:
        """The entries that are no data, in the order of rows and columns; None if all are."""
        if self.known is None or not isinstance(self.x, Tensor):
            return None
        return self.x[~self.known]

    def restore(self, imputations: Tensor | None) -> None:
        """Return to the entries that :meth:`imputations` returned."""
        if self.known is not None and imputations is not None and isinstance(self.x, Tensor):
            self.x[~self.known] = imputations.to(self.x)

    def copies(self, n: int) -> Rows:
        """Each row `n` times in succession; the copies together have the weight of one row."""
        index = torch.arange(len(self), device=self.device).repeat_interleave(n)
        found = self.subset(index)
        found.total_weight, found.n_copies = self.total_weight, n
        return found

    def one_copy(self) -> Rows:
        """The first copy of each row."""
        if self.n_copies == 1:
            return self
        return self.subset(torch.arange(0, len(self), self.n_copies, device=self.device))

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, index: int) -> Tensor:
        return self.block(index, index + 1)[0]

    def _dense(self, X: Any) -> Tensor:
        X = X.toarray() if sp.issparse(X) else X
        block = X if self.convert is None else self.convert(X)
        return torch.from_numpy(np.ascontiguousarray(block)).to(self.device, self.dtype)

    def take(self, index: Tensor) -> Tensor:
        """Rows of the given numbers, (len(index), d) on the device."""
        return self.taker()(index)

    def taker(self) -> Callable[[Tensor], Tensor]:
        """The function that takes rows, chosen once for many batches."""
        x = self.x
        if not isinstance(x, Tensor):
            return lambda index: self._dense(x[index.cpu().numpy()])
        if x.device != self.device:
            return lambda index: x.index_select(0, index.to(x.device)).to(self.device)
        return functools.partial(x.index_select, 0)

    def block(self, start: int, stop: int) -> Tensor:
        """Rows number `start` to `stop - 1`."""
        if isinstance(self.x, Tensor):
            return self.x[start:stop].to(self.device)
        return self._dense(self.x[start:stop])

    def map(
        self, function: Callable[[Tensor], Tensor], width: int | None = None, size: int = 256
    ) -> Tensor:
        """Apply a row-wise function in chunks of a fixed shape, (n, ...) on the host.

        The rounding of a matrix product depends on its shape. With a fixed shape, (`size`, `width`)
        padded with zeros, the result of a row is independent of the other rows, bit for bit.
        """
        extra = 0 if width is None else width - self.n_columns
        result: Tensor | None = None
        with torch.no_grad():
            for start in range(0, max(len(self), 1), size):
                block = self.block(start, min(start + size, len(self)))
                full = torch.nn.functional.pad(block, (0, extra, 0, size - block.shape[0]))
                part = function(full)[: block.shape[0]]
                if result is None:
                    # Allocated whole: small results between large temporaries would fragment the
                    # memory, by as much as a third of a dense copy of the table.
                    result = torch.empty(len(self), *part.shape[1:], dtype=part.dtype)
                result[start : start + block.shape[0]] = part
        assert result is not None
        return result


# Entries (rows times columns) taken from a table at once.
BLOCK = 2**16
# Rows whose missing entries are drawn at once, by weights that are up to so many rows old.
MOST_COMPLETED = 1000


class Batches:
    """Mini-batches of rows on the device, shuffled if there is a generator and more than one batch.

    There are as few batches as possible with at most `batch_size` rows each, and their sizes differ
    by at most one.

    Attributes
    ----------
    part : tuple of (int, int) or None
        Rank of a process and number of processes among which each batch is divided; None for whole
        batches.
    complete : callable or None
        ``complete(x, index)``: rows x of the given numbers with their missing entries drawn anew.
        It is asked once for several small batches, as a call for few rows takes about as long.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        generator: torch.Generator | None,
        subset: Tensor | None = None,
    ):
        self.rows, self.batch_size, self.generator = rows, batch_size, generator
        self.subset = subset
        self.part: tuple[int, int] | None = None
        self.complete: Callable[[Tensor, Tensor], Tensor] | None = None
        self.n_rows = len(rows) if subset is None else len(subset)

    def __len__(self) -> int:
        return math.ceil(self.n_rows / self.batch_size)

    def divisible(self, n: int) -> bool:
        """Whether each of n processes gets rows of every batch."""
        return self.n_rows // len(self) >= n

    def _own(self, n: int) -> slice:
        """Which of the n rows of a batch are this process's: parts differ by at most one."""
        rank, size = (0, 1) if self.part is None else self.part
        return slice(n * rank // size, n * (rank + 1) // size)

    def _mine(self, index: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
        """What this process has of batches of so many rows, of the given numbers."""
        if self.part is None:
            return index, sizes
        mine = [batch[self._own(len(batch))] for batch in index.split(sizes)]
        return torch.cat(mine), [len(batch) for batch in mine]

    @functools.cached_property
    def monitoring_batch(self) -> Batch:
        """A fixed, representative batch of 100 rows, evenly spaced in cumulative weight.

        It contains all rows if there is only one batch.
        """
        rows = self.rows
        if len(self) == 1 and self.subset is None:
            return self._whole()
        # Rows of the monitoring batch.
        n_monitor = 100
        n = min(n_monitor, self.n_rows)
        fraction = torch.arange(n, dtype=torch.float64, device=rows.device).add_(0.5).div_(n)
        if rows.weight is None and self.subset is None:
            return self._batch_of((fraction * self.n_rows).long())
        index = torch.arange(self.n_rows, device=rows.device)
        if self.subset is not None:
            index = self.subset.to(rows.device)
        if rows.weight is None:
            return self._batch_of(index[(fraction * self.n_rows).long()])
        cumulative = rows.weight[index].double().cumsum(0)
        place = torch.searchsorted(cumulative, fraction * cumulative[-1])
        return self._batch_of(index[place.clamp_(max=self.n_rows - 1)])

    def _batch_of(self, index: Tensor) -> Batch:
        y = self.rows.y
        return Batch(self.rows.take(index), None if y is None else y[index], row_index=index)

    def _whole(self) -> Batch:
        rows = self.rows
        index = torch.arange(self.n_rows, device=rows.device)
        return Batch(rows.block(0, self.n_rows), rows.y, rows.weight, index)

    def __iter__(self) -> Iterator[Batch]:
        rows, n = self.rows, self.n_rows
        if len(self) == 1 and self.subset is None:
            own = self._own(n)
            whole: list[Any] = [None if part is None else part[own] for part in self._whole()]
            batch = Batch(*whole)
            yield batch._replace(x=self._complete(batch.x, batch.row_index))
            return
        # Even sizes, because a last batch of one row would make a large and noisy step.
        size, longer = divmod(n, len(self))
        sizes = [size + 1] * longer + [size] * (len(self) - longer)
        if rows.is_mapped and n > SHUFFLED_WHOLE and self.subset is None:
            yield from self._by_windows(sizes)
            return
        order = torch.arange(n, device=rows.device)
        if self.generator is not None:
            order = torch.randperm(n, generator=self.generator, device=rows.device)
        if self.subset is not None:
            order = self.subset.to(rows.device)[order]
        # Several small batches are taken at once and split: views are cheaper than small copies.
        most = BLOCK // rows.n_columns
        most = most if self.complete is None else min(most, MOST_COMPLETED)
        together = max(1, most // (size + 1))
        for first in range(0, len(sizes), together):
            cut = sizes[first : first + together]
            index, order = order.tensor_split([sum(cut)])
            index, cut = self._mine(index, cut)
            yield from self._cut(self._complete(rows.take(index), index), index, cut)

    def _complete(self, x: Tensor, index: Any) -> Tensor:
        """Rows x of the given numbers, with missing entries drawn anew where that is asked for."""
        return x if self.complete is None else self.complete(x, index)

    def _by_windows(self, sizes: list[int]) -> Iterator[Batch]:
        """Batches of so many rows of a file, of which some blocks are in memory at a time.

        Blocks come in random order, and rows of those in memory are shuffled with each other.
        """
        rows, at = self.rows, 0
        order = BlockOrder(self.n_rows, rows.n_columns, self.generator)
        together = max(1, order.window // sizes[0])
        for first in range(0, len(sizes), together):
            cut = sizes[first : first + together]
            index = order.numbers(at, at + sum(cut)).to(rows.device)
            at += len(index)
            if self.generator is not None:
                mixed = torch.randperm(len(index), generator=self.generator, device=rows.device)
                index = index[mixed]
            index, cut = self._mine(index, cut)
            place = index.argsort()  # read in the order of the file
            yield from self._cut(rows.take(index[place])[place.argsort()], index, cut)

    def _cut(self, x: Tensor, index: Tensor, sizes: list[int]) -> Iterator[Batch]:
        """Batches of so many of the rows x, which have the given numbers."""
        rows = self.rows
        weight = repeat(None) if rows.weight is None else rows.weight[index].split(sizes)
        target = repeat(None) if rows.y is None else rows.y[index].split(sizes)
        parts = zip(x.split(sizes), target, weight, index.split(sizes), strict=False)
        for block, y, w, i in parts:
            yield Batch(block, y, w, i)


def tensor_of(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Tensor of an array, sharing its memory if possible; a copy of a read-only array.

    >>> import numpy as np, torch
    >>> from skebm.training.rows import tensor_of
    >>> tensor_of(np.broadcast_to(1.0, 2), torch.float32)  # read-only
    tensor([1., 1.])
    """
    if not array.flags.writeable:
        return torch.tensor(array, dtype=dtype)
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
