"""Independent randomness for every (seed, purpose, worker, round), without shared state.

The numbers of a run must not depend on which thread is faster, nor on interruptions. So no
generator outlives the task that uses it: each is made from the seed and the names of its purpose.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on all arguments."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *names))
