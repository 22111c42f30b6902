"""The memory of a GPU on which steps are captured, and how it is given back.

Every graph has memory of its own. PyTorch keeps it when the graph is gone, gives it to no later
capture, and lets other processes have none of it; nor may it ask for it back while a capture is
under way. An AdaptCL run, which captures anew after every pruning, would fill a GPU with what
nobody uses and then fail in the middle of a capture, from which CUDA does not recover well. So room
is made before a capture, and whatever a run has left is given back at its end.
"""

from __future__ import annotations

import gc
import threading

import torch

CAPTURING = threading.Lock()
"""One capture at a time: memory that another thread frees meanwhile would end up in the graph."""
_ROOM = 0.25
"""Of the memory, what must be free for a capture."""


def is_short(device: torch.device) -> bool:
    """Whether there is too little free memory to capture without making room."""
    free, total = torch.cuda.mem_get_info(device)
    return free < _ROOM * total


def give_back() -> None:
    """Give the system all memory that PyTorch keeps and nobody uses."""
    gc.collect()  # a captured model and its steps refer to each other
    with CAPTURING:
        torch.cuda.empty_cache()
