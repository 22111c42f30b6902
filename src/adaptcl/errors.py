"""Every error a user of AdaptCL can meet, each carrying one sentence to act on.

The command line prints the sentence and nothing else; from Python they are ordinary
exceptions with a common base.
"""

from __future__ import annotations

import sys
import warnings


class AdaptCLError(Exception):
    """Base of all errors AdaptCL raises on purpose."""


class SettingError(AdaptCLError):
    """A setting has an unknown name, the wrong type or a value out of range."""


class DataError(AdaptCLError):
    """Data is missing, corrupt or of a shape that cannot be used."""


class TraceError(AdaptCLError):
    """The units of a model cannot be found; the sentence names the module."""


class UpdateError(AdaptCLError):
    """What a worker sent back cannot be merged into the global model."""


class CodecError(AdaptCLError):
    """A codec does not do what it says."""


class RunFolderError(AdaptCLError):
    """A run folder is missing, occupied, incomplete or damaged."""


class AdaptCLWarning(UserWarning):
    """Something goes on, but the user would want to know."""


# How an error speaks of a value that is of the wrong kind.


def kind_of(value: object) -> str:
    """The kind of a value in words: `an int`, `a Tensor`, `the class Net`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def instead_of_class(value: object) -> str:
    """The end of a sentence that refuses a class where an instance of it was meant."""
    if not isinstance(value, type):
        return ""
    return f"; give an instance: {value.__name__}() instead of {value.__name__}"


# Warnings that point at the user's own line, however deep in the package their cause is.

_BETWEEN = frozenset({"adaptcl", "contextlib", "torch"})
"""Packages whose lines say nothing to a user: ours, and those that call us back."""


def warn_caller(message: str) -> None:
    """An `AdaptCLWarning` at the line that called into the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AdaptCLWarning, stacklevel=level)


def _is_between(module: object) -> bool:
    return str(module).partition(".")[0] in _BETWEEN
