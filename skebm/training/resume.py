"""A checkpoint from which an interrupted fit goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch.callbacks import Callback
from torch import Tensor

from skebm._validation import warn
from skebm.base import SettingWarning
from skebm.training.rows import Rows

# Relative difference of the moments of two tables that rounding on another machine may explain.
SAME = 1e-4
# First bytes of a file, before the checksum of the rest.
MAGIC = b"skebm.Resume 2\n"
# What reading a file that is damaged, or of somebody else, may raise.
DAMAGED = (RuntimeError, TypeError, LookupError, EOFError, ValueError)


def resume(path: Any, seconds: float) -> Resume:
    """A `Resume` that was pickled or copied, with its file; see `Resume.__reduce__`."""
    return Resume(path, seconds)


class Resume(Callback):
    """Store the state of a fit after its epochs; if the file exists, continue from it.

    The result is that of a fit that was never interrupted, bit for bit on the same machine:
    weights and their average, chains, imputations of missing entries, the optimizer's state, the
    learning rate's schedule, the random generator, the best weights so far, early stopping and the
    history are stored. The file remains after the fit has ended; the same fit then returns at once.

    The state is written to a new file, which then replaces the old one, so that the file is
    complete whenever the process dies; the state of the write before is kept beside it, with
    ``.previous`` behind its name. A checksum finds damaged files, which raise `ValueError`. Files
    hold tensors and plain values only, so that reading them executes no code, and only their owner
    may read them. If another process or thread writes the same file, the fit says so in a warning,
    goes on without writing, and writes as soon as the other has ended.

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

    def __reduce__(self) -> Any:
        # Copies and pickles keep the path. skops takes an object apart by the two methods below: a
        # model of somebody else must not name a file that the next fit writes to.
        return resume, (self.path, self.seconds)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": None, "seconds": self.seconds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.seconds = None, state["seconds"]

    def on_train_begin(self, net: Any, X: Any = None, **kwargs: Any) -> None:
        self.lock_: Lock | None = None
        self.file_: Path | None = None
        if self.path is None:
            warn(
                "Resume of a stored model has no path, and stores nothing: pass a new one by "
                "set_params(net__callbacks=...).",
                SettingWarning,
            )
            return
        if net.streaming:
            warn(
                "Resume has no effect on partial_fit, which makes one pass: store the model after "
                "each call instead.",
                SettingWarning,
            )
            return
        if not self.seconds >= 0:
            raise ValueError(f"seconds of Resume must be 0 or larger, got {self.seconds!r}.")
        file = Path(self.path)
        if not file.parent.is_dir():
            raise ValueError(f"There is no folder {file.parent} for the file of Resume.")
        self.file_, ranks = file, net.group_
        settings = settings_of(net) | {"the number of processes": ranks.size}
        self.fit_ = settings, moments_of(X, net.validation, net.held_out_)
        self.written_ = time.monotonic()
        if ranks.rank == 0:
            self.lock_ = Lock(file.with_name(file.name + ".lock"))
            if not self.lock_.acquire():
                warn(
                    f"{self.lock_.owner()} writes {file} at the same time: this fit writes to it "
                    "only after the other has ended. Give each fit a file of its own.",
                    SettingWarning,
                )
        content = self._read()
        there = ranks.gather(content is not None)
        if not any(there):
            return
        source = there.index(True)
        content = ranks.broadcast(content if ranks.rank == source else None, source)
        before, moments, state = self._unpack(content, net.generator.device)
        self._check(before, moments.cpu())
        net.load_fit_state(state, X)

    @property
    def _previous(self) -> Path:
        assert self.file_ is not None
        return self.file_.with_name(self.file_.name + ".previous")

    def _read(self) -> bytes | None:
        """The content of the file, or of the one before where there is no other; None if neither.

        Without links, there is no file for a moment while another process writes.
        """
        assert self.file_ is not None
        for path in (self.file_, self._previous):
            with contextlib.suppress(FileNotFoundError):
                return path.read_bytes()
        return None

    def _unpack(self, content: Any, device: torch.device) -> tuple[dict, Tensor, dict]:
        """Settings, moments and state of a file."""
        try:
            stored = from_bytes(bytes(content), device)
            return stored["settings"], stored["moments"], stored["state"]
        except (*DAMAGED, pickle.UnpicklingError) as error:
            kept = ""
            if self._previous.exists():
                kept = f", or rename {self._previous}, which is that of the write before"
            raise ValueError(
                f"{self.file_} is not a file that Resume wrote, or it is damaged: delete it to "
                f"start again{kept}."
            ) from error

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

    def on_epoch_end(self, net: Any, dataset_train: Any = None, **kwargs: Any) -> None:
        if self.file_ is None:
            return
        last = len(net.history) - net.n_before_ == net.max_epochs
        if last or time.monotonic() - self.written_ >= self.seconds:
            # All ranks have the same state.
            if self.lock_ is not None and self.lock_.acquire():
                self._write(net, dataset_train)
            self.written_ = time.monotonic()

    def release(self) -> None:
        """Let other fits write the file; the engine calls this however a fit ends."""
        lock = getattr(self, "lock_", None)
        if lock is not None:
            lock.release()

    def _write(self, net: Any, rows: Rows) -> None:
        settings, moments = self.fit_
        file, state = self.file_, plain(net.fit_state(rows))
        assert file is not None
        content = to_bytes({"settings": settings, "moments": moments, "state": state})
        beside = ""
        try:
            # A new file of this user alone, through whatever link has its name.
            number, beside = tempfile.mkstemp(".part", f"{file.name}.", file.parent)
            with open(number, "wb") as part:
                part.write(content)
                part.flush()
                os.fsync(part.fileno())
            self._keep_previous(beside + ".link")
            os.replace(beside, file)
        except OSError as error:
            if beside:
                Path(beside).unlink(missing_ok=True)
            whole = "is that of an earlier epoch" if file.exists() else "does not exist yet"
            raise OSError(f"Resume could not write {file}, which {whole}: {error}") from error

    def _keep_previous(self, link: str) -> None:
        """Give the file a second name, so that it remains when another takes its first one."""
        file = self.file_
        assert file is not None
        if not file.exists():
            return
        try:
            os.link(file, link)
            os.replace(link, self._previous)
        except OSError:  # a file system without links
            os.replace(file, self._previous)


class Lock:
    """A lock on a file that one process holds, in one of its threads; it ends with the process.

    Attributes
    ----------
    path : Path
        A file that exists while the lock is held, and holds the number of the process.
    """

    # Paths that this process holds: the locks of systems do not know of threads.
    held: dict[str, Lock] = {}
    guard = threading.Lock()

    def __init__(self, path: Path):
        self.path, self._number = path, -1

    def acquire(self) -> bool:
        """Take the lock if it is free, or held by this object already."""
        key = os.path.abspath(self.path)
        with self.guard:
            if self.held.get(key) is self:
                return True
            if key in self.held:
                return False
            if not self._lock_file():
                return False
            self.held[key] = self
            return True

    def release(self) -> None:
        """Give the lock back, if this object holds it."""
        key = os.path.abspath(self.path)
        with self.guard:
            if self.held.get(key) is not self:
                return
            self.path.unlink(missing_ok=True)
            os.close(self._number)
            del self.held[key]

    def owner(self) -> str:
        """Who holds the lock, in words."""
        with self.guard:
            if os.path.abspath(self.path) in self.held:
                return "Another fit in this process"
        try:
            return f"Process {int(self.path.read_text())}"
        except (OSError, ValueError):
            return "Another process"

    def _lock_file(self) -> bool:
        """Lock the file of this name, and write into it which process has done so."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        while True:
            number = os.open(self.path, flags, 0o600)
            if not try_lock(number):
                os.close(number)
                return False
            with contextlib.suppress(FileNotFoundError):
                # Otherwise its owner has removed it since it was opened.
                if os.path.samestat(os.fstat(number), os.stat(self.path)):
                    os.truncate(number, 0)
                    os.write(number, str(os.getpid()).encode())
                    self._number = number
                    return True
            os.close(number)


def try_lock(number: int) -> bool:
    """Lock an open file for this process; False if another process has."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be removed either
        import msvcrt

        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def to_bytes(stored: dict[str, Any]) -> bytes:
    """Tensors and plain values as the content of a file, with a checksum."""
    content = io.BytesIO()
    torch.save(stored, content)
    data = content.getvalue()
    return MAGIC + hashlib.sha256(data).digest() + data


def from_bytes(content: bytes, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What :func:`to_bytes` made the content of; `ValueError` if it is damaged."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    data = content[start:]
    if content[:start] != MAGIC + hashlib.sha256(data).digest():
        raise ValueError("The checksum is wrong.")
    found: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return found


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
