"""Independent randomness for every (seed, purpose, worker, round), without shared state.

The numbers of a run must not depend on which thread is faster, nor on interruptions. So no
generator outlives the task that uses it: each is made from the seed and the names of its purpose.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PROCESS_GENERATORS = threading.RLock()
"""Held while a thread draws from the generators of the process, which all threads share."""


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on all arguments."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *names))


@contextmanager
def process_generators_restored() -> Iterator[None]:
    """Leave the generators of the process (Python's, NumPy's and PyTorch's) as they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def process_generators_seeded(seed: int) -> Iterator[None]:
    """Let code that draws from the generators of the process draw from this seed.

    One thread does so at a time. It may do so again within its turn.
    """
    with PROCESS_GENERATORS, process_generators_restored():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # NumPy takes no larger ones
        yield
