"""A file that is whole or refused, and that one process at a time writes."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

HEAD = b"state of a fit of skebm, 1\n"
UNLOCKED = 2**30  # byte that Windows locks: beyond those that another process may read
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
BINARY = getattr(os, "O_BINARY", 0)


class StateFile:
    """A file with a checksum; the one before the last is kept beside it, as ``<name>.previous``.

    All of them are readable by their owner only. No symbolic link is followed in writing.
    """

    def __init__(self, path: Any):
        self.path = Path(path)
        self.previous = self.path.with_name(self.path.name + ".previous")
        self._lock: int | None = None

    def read(self) -> bytes:
        """The content; `ValueError` if it is not what :meth:`write` wrote, bit for bit."""
        content = self.path.read_bytes()
        if not _is_whole(content):
            raise ValueError("its checksum is wrong")
        return content[len(HEAD) + 32 :]

    def has_previous(self) -> bool:
        """Whether the content before the last one is there and whole."""
        return self.previous.is_file() and _is_whole(self.previous.read_bytes())

    def write(self, content: bytes) -> None:
        """Replace the content at once; that of before is kept until the new one is on disk."""
        part = self.path.with_name(self.path.name + ".part")
        part.unlink(missing_ok=True)  # of a process that died, or a link of somebody else
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | BINARY, 0o600)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(HEAD + hashlib.sha256(content).digest() + content)
                file.flush()
                os.fsync(file.fileno())
            self._keep_previous()
            os.replace(part, self.path)
        finally:
            part.unlink(missing_ok=True)

    def _keep_previous(self) -> None:
        try:
            self.previous.unlink(missing_ok=True)
            os.link(self.path, self.previous, follow_symlinks=False)
        except (OSError, NotImplementedError):
            return  # the first one, or a file system without links

    def lock(self) -> None:
        """Take the file for this process, until :meth:`release` or its end.

        `BlockingIOError` if another one has it. File systems without locks have none.
        """
        name = self.path.with_name(self.path.name + ".lock")
        while self._lock is None:
            opened = os.open(name, os.O_RDWR | os.O_CREAT | NO_LINK | BINARY, 0o600)
            if not _locked(opened):
                holder = os.read(opened, 20).decode("ascii", "replace").strip()
                os.close(opened)
                raise BlockingIOError(
                    f"{self.path} is being written by another fit"
                    f"{f', of process {holder}' if holder else ''}. Wait for its end, or give "
                    "each fit a file of its own."
                )
            if _is_at(opened, name):
                os.truncate(opened, 0) if sys.platform != "win32" else None
                os.write(opened, f"{os.getpid()}".encode())
                self._lock = opened
            else:  # the process before has removed it since
                os.close(opened)

    def release(self) -> None:
        """Let other processes have the file."""
        if self._lock is None:
            return
        opened, self._lock = self._lock, None
        if sys.platform != "win32":  # which removes no open file; the lock is free all the same
            self.path.with_name(self.path.name + ".lock").unlink(missing_ok=True)
        os.close(opened)


def _is_whole(content: bytes) -> bool:
    start = len(HEAD) + 32
    digest = hashlib.sha256(content[start:]).digest()
    return content[: len(HEAD)] == HEAD and content[len(HEAD) : start] == digest


def _is_at(opened: int, name: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(opened), os.stat(name))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _locked(opened: int) -> bool:
        """Whether this process has locked an open file, which no other one then can."""
        os.lseek(opened, UNLOCKED, os.SEEK_SET)
        try:
            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(opened, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _locked(opened: int) -> bool:
        """Whether this process has locked an open file, which no other one then can."""
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # of a file system that has no locks
            return True
        return True
