"""Keep the memory that a training step frees for the next one."""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of these options of glibc's `mallopt`
_MMAP_SIZES = (2**30, 2**25)
"""Size from which glibc maps memory separately; older versions refuse the first."""
_TRIM_SIZE = 2**31 - 1
_USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user tells glibc what to do."""


def keep_freed_memory() -> bool:
    """Make this process keep freed memory for the next step; returns whether it will.

    The C library gives larger freed blocks back to the system, above all those of threads, and
    gets them again a moment later: thousands of page faults a step, a tenth of the time of a small
    net. Keeping them costs no more than the process needs at its peak anyway.

    The setting stays when a run is over: glibc does not tell what was set before. Users who mind
    that set one of the variables in `_USER_VARIABLES`, which this function respects. Without
    glibc it does nothing.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _USER_VARIABLES):
        return False
    library = ctypes.CDLL(None)
    # This one first: either option ends glibc's automatic threshold, so the other alone would map
    # and unmap every larger tensor of a step.
    if not any(library.mallopt(_MMAP_THRESHOLD, size) == 1 for size in _MMAP_SIZES):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _TRIM_SIZE) == 1)
