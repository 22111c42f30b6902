"""Memory that one training step frees and the next one needs again.

The C library gives freed memory of some size back to the operating system, above all that of
threads, and gets it anew a moment later: thousands of page faults a step, a tenth of the time of
a small net. Told to keep it, a process holds what a step needs from one step to the next, which
is what it needs at its peak anyway.

It stays told when a run is over: glibc does not say what it was told before, and cannot be brought
back to the way it adapts by itself. Whoever minds that in their own process sets one of the
environment variables named below, which this never overrules.
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these options of `mallopt`."""
_MAPPED = (2**30, 2**25)
"""From which size on memory is mapped by itself; older glibc refuses more than the second."""
_TRIMMED = 2**31 - 1
_OWN_WISHES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user says what the library should do."""


def keep_freed_memory() -> bool:
    """Make this process keep memory for the next step; whether it will.

    Nothing is done without glibc, or where the user has told glibc what to do.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_WISHES):
        return False
    library = ctypes.CDLL(None)
    # First this one: either option ends glibc's own way of raising the threshold, so the other
    # alone would map and unmap every larger tensor of a step.
    if not any(library.mallopt(_MMAP_THRESHOLD, size) == 1 for size in _MAPPED):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _TRIMMED) == 1)
