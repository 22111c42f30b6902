from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from adaptcl.training.cpu.freed_memory import keep_freed_memory

MEASURE = """
import resource, threading, torch
from adaptcl.training.cpu.freed_memory import keep_freed_memory
def steps(count):
    for _ in range(count):
        tensors = [torch.zeros(2**21) for _ in range(8)]
def measure():
    torch.set_num_threads(1)
    steps(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(10)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
for keep in (False, True):
    if keep:
        assert keep_freed_memory()
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
"""
"""How often ten steps of a thread, of 64 MiB each, wait for new memory: before and after."""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is an option of glibc")
def test_memory_is_there_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True
    )
    before, after = map(int, done.stdout.split())
    assert after < 0.8 * before  # how much less depends on the kernel's page sizes at the moment


def test_what_the_user_has_told_glibc_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not keep_freed_memory()
