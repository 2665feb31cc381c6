"""Runs a function on several processes that `torch.distributed` connects, as torchrun would."""

import datetime
import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

# Seconds after which processes that wait for each other are ended.
PATIENCE = 240


class DiedError(Exception):
    """A process ended without a result."""


def _run(function, args, rank, size, folder, timeout):
    with Path(folder, f"stack{rank}").open("w") as stack:
        faulthandler.dump_traceback_later(0.9 * PATIENCE, file=stack)  # where it hangs
        _store(function, args, rank, size, folder, timeout)
        faulthandler.cancel_dump_traceback_later()


def _store(function, args, rank, size, folder, timeout):
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in background
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        found = function(rank, *args)
    except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
        found = error
    part = Path(folder, f"part{rank}")
    part.write_bytes(pickle.dumps(found))
    part.rename(Path(folder, f"found{rank}"))


def on_ranks(function, *args, size=2, timeout=30, kill=None):
    """What ``function(rank, *args)`` returns or raises on each rank, in a list.

    `kill` is a rank and a time in seconds, or a condition, after which it is killed.
    """
    context = multiprocessing.get_context("forkserver")
    # Forked from a process that has imported everything and has no threads, whose locks and pools
    # a fork of this one might wait for.
    context.set_forkserver_preload([function.__module__])
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_run, args=(function, args, rank, size, folder, timeout))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        until = time.monotonic() + PATIENCE
        while any(process.is_alive() for process in processes) and time.monotonic() < until:
            if kill is not None and kill[1]():
                os.kill(processes[kill[0]].pid, signal.SIGKILL)
                kill = None
            time.sleep(0.002)
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
        stacks = "".join(path.read_text() for path in Path(folder).glob("stack*"))
        assert not hung, f"{len(hung)} of {size} processes hang:\n{stacks}"
        return [_result(Path(folder, f"found{rank}")) for rank in range(size)]


def _result(path):
    return pickle.loads(path.read_bytes()) if path.exists() else DiedError()
