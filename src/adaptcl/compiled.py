"""Models that went through `torch.compile`.

Each cut gives a model other shapes, for which it would be compiled anew, and its units are found by
what its operations do one by one. So the module inside is used, and its owner compiles the result.
"""

from __future__ import annotations

from typing import Any


def uncompiled(model: Any) -> Any:
    """The module that was compiled, whose tensors are the same; anything else as it is."""
    return getattr(model, "_orig_mod", model)
