"""Reading what may not be read is a privilege of root's, and a thread can lay it down for a while (Linux)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522  # of the two calls' structures, since Linux 2.6.26
READS_ALL = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Whose(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def laid_down() -> Iterator[None]:
    """Inside, permissions of files hold for root too; for anyone else nothing changes."""
    if os.geteuid() != 0 or sys.platform != "linux":
        yield
        return
    libc, whose, sets = ctypes.CDLL(None, use_errno=True), _Whose(VERSION, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(whose), sets):
        raise OSError(ctypes.get_errno(), "capget")
    before = sets[0].effective

    def take(effective: int) -> None:
        sets[0].effective = effective
        if libc.capset(ctypes.byref(whose), sets):
            raise OSError(ctypes.get_errno(), "capset")

    take(before & ~READS_ALL)
    try:
        yield
    finally:
        take(before)
