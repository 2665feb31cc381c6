"""Processes that `torch.distributed` connects, started from one program as torchrun would."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import torch
import torch.distributed as dist


def run(
    function: Callable[..., Any],
    args: Any,
    rank: int,
    size: int,
    folder: str,
    timeout: datetime.timedelta,
) -> None:
    """Call a function as one of `size` processes, and leave what it returns or raises in a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    Path(folder, f"ready{rank}").touch()
    try:
        found = function(rank, *args)
    except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
        found = error
    Path(folder, f"part{rank}").write_bytes(pickle.dumps(found))
    Path(folder, f"part{rank}").rename(Path(folder, f"found{rank}"))


def on_ranks(
    function: Callable[..., Any],
    *args: Any,
    size: int = 2,
    kill: tuple[int, float] | None = None,
    minutes: float = 20,
) -> list[Any]:
    """Results of ``function(rank, *args)`` on each rank; None of one that was killed.

    `kill` is a rank and the seconds after which it gets SIGKILL, once all are connected.
    """
    timeout = datetime.timedelta(minutes=minutes)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=run, args=(function, args, rank, size, folder, timeout))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        if kill is not None:
            while not all(Path(folder, f"ready{rank}").exists() for rank in range(size)):
                time.sleep(0.001)
            time.sleep(kill[1])
            victim = processes[kill[0]]
            if victim.is_alive():
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
        for process in processes:
            process.join()
        files = [Path(folder, f"found{rank}") for rank in range(size)]
        return [pickle.loads(f.read_bytes()) if f.exists() else None for f in files]


def fingerprint(model: Any) -> str:
    """A hash of weights, chains, the optimizer's state, random generator and history."""
    state = model.__getstate__()["net_"]
    rows = [{k: v for k, v in row.items() if k not in ("dur", "batches")} for row in model.history_]
    kept = [state[name] for name in ("weights", "state", "optimizer", "generator")]
    found: str = joblib.hash([kept, rows])
    return found
