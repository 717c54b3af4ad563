"""Threads that share out independent jobs, each with one torch thread and a room of its own to work in.

torch splits every single operation over its threads and waits for the slowest each time; a busy core then holds up all of
them, five times for every tile. Here a thread takes the next whole job as soon as it is free.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Job = TypeVar("Job")
_teams: dict[int, ThreadPoolExecutor] = {}
_making = threading.Lock()
_own = threading.local()
# A thread keeps a room of up to so many bytes from call to call: the system clears fresh memory page by page, which
# takes longer than a pass over it.
KEPT = 1 << 23


def run_parallel(work: Callable[[Job], None], jobs: Iterable[Job], threads: int) -> None:
    """Run `work` on every job, each on the thread that is free first."""
    if threads == 1:
        for job in jobs:
            work(job)
        return
    inference = torch.is_inference_mode_enabled()  # such modes belong to a thread

    def one_job(job: Job) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(job)

    for _ in _team(threads).map(one_job, jobs):
        pass  # raises what a job raised


def room(like: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Memory to work in, [size], of this thread alone; holds anything."""
    if like.device.type != "cpu" or size * dtype.itemsize > KEPT:
        return like.new_empty(size, dtype=dtype)
    rooms: dict[torch.dtype, Tensor] = _own.__dict__.setdefault("buffers", {})
    if dtype not in rooms or rooms[dtype].numel() < size:
        with torch.inference_mode(False):  # made inside that mode, it could not be written to outside
            rooms[dtype] = torch.empty(size, dtype=dtype)
    return rooms[dtype][:size]


def _team(threads: int) -> ThreadPoolExecutor:
    """The threads, made once: each is told to use one core."""
    with _making:
        if threads not in _teams:
            before, all_there = torch.get_num_threads(), threading.Barrier(threads)

            def settle() -> None:
                torch.set_num_threads(1)  # counts for this thread, and for threads that are started later …
                all_there.wait()

            team = ThreadPoolExecutor(threads, thread_name_prefix="attend", initializer=settle)
            for ready in [team.submit(int) for _ in range(threads)]:
                ready.result()
            torch.set_num_threads(before)  # … so this is needed
            _teams[threads] = team
        return _teams[threads]


def _after_fork() -> None:
    """A forked process has none of the threads."""
    _teams.clear()
    _making.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_after_fork)
