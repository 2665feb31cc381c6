"""A checkpoint from which an interrupted fit goes on as if nothing had happened."""

from __future__ import annotations

import io
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch.callbacks import Callback
from torch import Tensor

from skebm._validation import warn
from skebm.training.rows import Rows
from skebm.training.statefile import StateFile

# Relative difference of the moments of two tables that rounding on another machine may explain.
SAME = 1e-4
# What reading a file of others may raise.
UNREADABLE = (RuntimeError, TypeError, LookupError, EOFError, ValueError, AttributeError)


class Resume(Callback):
    """Store the state of a fit after its epochs; if the file exists, continue from it.

    The result is that of a fit that was never interrupted, bit for bit on the same machine:
    weights and their average, chains, the optimizer's state, the learning rate's schedule, the
    random generator, the best weights so far, early stopping and the history are stored. The state
    is written to a second file, which then replaces the first, so that the file is complete
    whenever the process dies; the state of the epoch before is kept as ``<path>.previous``. Files
    are readable by you only, and hold tensors and plain values, rows of missing entries among them:
    reading one executes no code. A damaged file raises `ValueError`. The file remains after the fit
    has ended; the same fit then returns at once.

    While a fit runs, its file is locked (``<path>.lock``): a second one gets `BlockingIOError`,
    which names the process. The lock of a process that was killed is free. A fitted model that is
    stored or copied does not take `Resume` along, so that no file names a path that the next fit
    writes to.

    If several processes train together, rank 0 writes the file, and any rank may hold it: the first
    rank that does reads it for all. A fit continues with as many processes as it began with.

    A fit that continues needs the same rows, parameters and integer `random_state` as the fit
    before; otherwise `ValueError` is raised. The state of your own callbacks is not stored.

    Parameters
    ----------
    path : path-like
        The file; one for each fit.
    seconds : float, default=0
        Least time between two writes, in seconds; 0 writes after every epoch.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from skebm import RBMEstimator
    >>> from skebm.training import Resume
    >>> X = (np.random.default_rng(0).random((100, 6)) < 0.3).astype(float)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.state"
    >>> rbm = RBMEstimator(2, n_iter=5, random_state=0)
    >>> rbm = rbm.set_params(net__callbacks=[("resume", Resume(path))]).fit(X)
    >>> path.exists()
    True
    """

    def __init__(self, path: Any, seconds: float = 0.0):
        self.path = path
        self.seconds = seconds

    def on_train_begin(self, net: Any, X: Any = None, **kwargs: Any) -> None:
        if net.streaming:
            warn(
                "Resume has no effect on partial_fit, which makes one pass: store the model after "
                "each call instead.",
                UserWarning,
            )
            return
        if not self.seconds >= 0:
            raise ValueError(f"seconds of Resume must be 0 or larger, got {self.seconds!r}.")
        self.file_ = Path(self.path)
        if not self.file_.parent.is_dir():
            raise ValueError(f"There is no folder {self.file_.parent} for the file of Resume.")
        ranks, self.stored_ = net.group_, StateFile(self.file_)
        if ranks.rank == 0:  # who writes
            self.stored_.lock()
        settings = settings_of(net) | {"the number of processes": ranks.size}
        self.fit_ = settings, moments_of(X, net.validation, net.held_out_)
        self.written_, self.rows_ = time.monotonic(), X
        there = ranks.gather(self.file_.exists())
        if not any(there):
            return
        source = there.index(True)
        content = ranks.broadcast(self._content() if ranks.rank == source else None, source)
        try:
            if content is None:
                raise ValueError("its checksum is wrong")
            stored = torch.load(
                io.BytesIO(content), map_location=net.generator.device, weights_only=True
            )
            before, moments, state = stored["settings"], stored["moments"], stored["state"]
        except (*UNREADABLE, pickle.UnpicklingError) as error:
            remedy = "Delete it to start again."
            if self.stored_.has_previous():
                remedy = (
                    f"The state of the epoch before is whole: rename {self.stored_.previous} to it "
                    "to go on from there, or delete both to start again."
                )
            raise ValueError(
                f"{self.file_} is not a file that Resume wrote, or is damaged. {remedy}"
            ) from error
        self._check(before, moments.cpu())
        net.load_fit_state(state, X)

    def _content(self) -> bytes | None:
        """What is in the file; None if it is damaged."""
        try:
            return self.stored_.read()
        except ValueError:
            return None

    def release(self) -> None:
        """Unlock the file, at the end of a fit, however it ends."""
        if hasattr(self, "stored_"):
            self.stored_.release()
        self.rows_ = None

    def _check(self, settings: dict[str, Any], moments: Tensor) -> None:
        mine, table = self.fit_
        settings = {"the number of processes": 1} | settings  # of files of older versions
        other = [name for name in mine if settings.get(name) != mine[name]]
        if not other and not (
            moments.shape == table.shape and torch.allclose(moments, table, rtol=SAME, atol=1e-12)
        ):
            other = ["the rows"]
        if other:
            raise ValueError(
                f"{self.file_} belongs to another fit, which differs in {', '.join(other)}. "
                "Give each fit a file of its own, or delete this one to start again; "
                "random_state must be an integer."
            )

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        if net.streaming:
            return
        last = len(net.history) - net.n_before_ == net.max_epochs
        if last or time.monotonic() - self.written_ >= self.seconds:
            if net.group_.rank == 0:  # all have the same state
                self._write(net)
            self.written_ = time.monotonic()

    def _write(self, net: Any) -> None:
        settings, moments = self.fit_
        stored = {
            "settings": settings,
            "moments": moments,
            "state": plain(net.fit_state(self.rows_)),
        }
        content = io.BytesIO()
        try:
            torch.save(stored, content)
            self.stored_.write(content.getvalue())
        except (OSError, RuntimeError) as error:  # torch may raise the latter
            whole = "is that of an earlier epoch" if self.file_.exists() else "does not exist yet"
            raise OSError(f"Resume could not write {self.file_}, which {whole}: {error}") from error


def settings_of(net: Any) -> dict[str, Any]:
    """Settings that must be equal in a fit that continues, by their names in a message."""
    groups = net.optimizer_.state_dict()["param_groups"]
    return {
        "random_state": net.seed_,
        "n_iter": net.max_epochs,
        "batch_size": net.batch_size,
        "learning_rate": net.lr,
        "the objective": type(net.module_).__name__,
        "the optimizer": type(net.optimizer_).__name__,
        "the settings of the optimizer": plain(groups),
        "averaging": net.averaging,
        "the schedule": getattr(net.schedule, "__name__", None),
        "the epochs before": len(net.history),
        "the shapes of the weights": {
            name: list(value.shape) for name, value in net.module_.state_dict().items()
        },
    }


def moments_of(*tables: Rows | None) -> Tensor:
    """Weighted moments of the columns of tables, by which their rows are compared."""
    found = []
    for rows in tables:
        if rows is None:
            continue
        n, total = len(rows), torch.zeros(3, rows.n_columns, dtype=torch.float64)
        counts = rows.counts
        for start in range(0, n, 4096):
            x = rows.block(start, start + 4096).double()
            i = torch.arange(start, start + len(x), device=x.device)
            w = counts[i][:, None] / n
            place = (i[:, None] + 1) / n
            total += torch.stack([(w * t).sum(0) for t in (x, x**2, x * place)]).cpu()
        found.append(total.flatten())
        if rows.y is not None:
            y = rows.y.double().reshape(n, -1)
            place = torch.arange(1, n + 1, device=y.device)[:, None] / n
            found.append((y * place).mean(0).cpu())
    return torch.cat(found)


def plain(tree: Any) -> Any:
    """Nested containers with NumPy scalars as Python numbers, readable without executing code."""
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    return tree
