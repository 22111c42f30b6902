"""Names that a package imports when they are first used.

`import adaptcl` and `adaptcl --help` must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Make the `__getattr__` of a package: its names by the modules that define them.

    Any other name may be a module of the package, as `adaptcl.events` is.
    """

    def resolve(name: str) -> object:
        if name in modules:
            value: object = getattr(importlib.import_module(modules[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return resolve
