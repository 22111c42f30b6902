"""Names that a package imports when they are first used.

`import adaptcl` and `adaptcl --help` must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Make the `__getattr__` of a package, from the module that defines each of its names."""

    def resolve(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        # A name may stand for a whole module, as `adaptcl.events` does.
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve
