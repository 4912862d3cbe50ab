"""The resident set of this process, in microseconds: one system call, no process table."""

import os
import sys
from collections.abc import Callable

from kvtrace.tracer.schema import ABSENT

__all__ = ["process_resident_bytes"]


def _linux_reader() -> Callable[[], int]:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    opened_by = os.getpid()

    def read() -> int:
        if os.getpid() != opened_by:
            return ABSENT  # a forked child would read its parent's
        return int(os.pread(statm, 64, 0).split()[1]) * page_bytes

    return read


def _macos_reader() -> Callable[[], int]:
    """``task_info(MACH_TASK_BASIC_INFO)``, from the system library that every process has loaded."""
    import ctypes

    library = ctypes.CDLL("/usr/lib/libSystem.dylib")
    task = ctypes.c_uint.in_dll(library, "mach_task_self_")
    info = (ctypes.c_uint64 * 6)()  # virtual_size, resident_size, resident_size_max, times, policy
    words = ctypes.sizeof(info) // 4

    def read() -> int:
        size = ctypes.c_uint(words)
        failed = library.task_info(task, 20, ctypes.byref(info), ctypes.byref(size))
        return ABSENT if failed else int(info[1])

    return read


def _absent() -> int:
    return ABSENT


def _find_reader() -> Callable[[], int]:
    try:
        if sys.platform == "linux":
            return _linux_reader()
        if sys.platform == "darwin":
            return _macos_reader()
    except (OSError, ValueError, AttributeError):
        pass
    return _absent


process_resident_bytes: Callable[[], int] = _find_reader()
"""Bytes of this process in physical memory; ABSENT where the system does not tell cheaply."""
