"""Every error and warning that AdaptCL raises on purpose, and the words they share.

Each carries one sentence that a user can act on. The command line prints that sentence and nothing
else; in Python they are ordinary exceptions with a common base.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any


class AdaptCLError(Exception):
    """Base of all errors AdaptCL raises on purpose."""


class SettingError(AdaptCLError):
    """A setting has an unknown name, the wrong type or a value out of range."""


class DataError(AdaptCLError):
    """Data is missing, corrupt or of the wrong shape."""


class TraceError(AdaptCLError):
    """The units of a model cannot be found; the sentence names the module."""


class UpdateError(AdaptCLError):
    """An update cannot be merged into the global model."""


class DivergedError(UpdateError):
    """The training of a worker has diverged, and with it the run.

    `model` is the last good model, as an `nn.Module` in evaluation mode.
    """

    model: Any = None


class CodecError(AdaptCLError):
    """A codec breaks its contract."""


class RunFolderError(AdaptCLError):
    """A run folder is missing, occupied, incomplete or damaged."""


class StopRun(Exception):  # noqa: N818  # a request, not an error
    """Raised by a listener to end the run after the round that is running.

    Its text, if it has one, stands in the summary: `raise StopRun("the loss rises")`.
    """


class AdaptCLWarning(UserWarning):
    """The run continues, but the user should know something."""


def describe_type(value: object) -> str:
    """Name the type of a value in a sentence: `an int`, `a Tensor`, `the class Net`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def suggest_instance(value: object) -> str:
    """End a sentence that refuses a class where an instance is needed; empty for other values."""
    if not isinstance(value, type):
        return ""
    return f"; give an instance: {value.__name__}() instead of {value.__name__}"


def listed(words: Iterable[str], most: int = 5) -> str:
    """The first few words, and a sign that there are more."""
    every = list(words)
    return ", ".join([*every[:most], "…"] if len(every) > most else every)


def enumerated(words: Sequence[str]) -> str:
    """The words as a list: one, two and three."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def name_workers(workers: Collection[int]) -> str:
    """Workers by their numbers: worker 1, workers 1 and 2, and of very many the first ten."""
    words = [str(worker) for worker in sorted(workers)]
    words = words if len(words) <= 10 else [*words[:10], f"{len(words) - 10} others"]
    return f"worker{'s' * (len(workers) > 1)} {enumerated(words)}"


_SKIPPED = frozenset({"adaptcl", "contextlib", "torch"})
"""Packages whose lines mean nothing to a user: this one, and those that call it back."""


def warn_user(message: str) -> None:
    """Raise an `AdaptCLWarning` that points at the user's line, however deep its cause is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_skipped(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AdaptCLWarning, stacklevel=level)


def _is_skipped(module: object) -> bool:
    return str(module).partition(".")[0] in _SKIPPED


# Suggestions for a word that is not known: a misspelling, or a word of another framework ---------

_SETTINGS = {
    **dict.fromkeys(("lr", "client_lr", "local_lr", "eta"), "learning_rate"),
    **dict.fromkeys(("lr_decay", "gamma"), "learning_rate_decay"),
    **dict.fromkeys(
        ("clients", "num_clients", "n_clients", "num_workers", "n_workers", "nodes", "parties"),
        "workers",
    ),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_round", "global_rounds"), "rounds"),
    **dict.fromkeys(("local_epochs", "num_epochs", "n_epochs", "local_steps"), "epochs"),
    **dict.fromkeys(("bs", "batch", "local_batch_size", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("wd", "l2"), "weight_decay"),
    **dict.fromkeys(("dataset", "train_data"), "data"),
    **dict.fromkeys(("data_root", "data_path", "datadir"), "data_dir"),
    **dict.fromkeys(("algorithm", "method", "aggregator", "fed_alg"), "strategy"),
    **dict.fromkeys(("arch", "network", "net"), "model"),
    **dict.fromkeys(("mu", "prox_mu", "proximal_mu"), "proximal"),
    **dict.fromkeys(("dirichlet_alpha", "dir_alpha"), "concentration"),
    **dict.fromkeys(("fraction_fit", "clients_per_round", "participation"), "participants"),
    **dict.fromkeys(("random_seed", "random_state", "seeds"), "seed"),
    **dict.fromkeys(("gpu", "cuda"), "device"),
    **dict.fromkeys(("compression", "compressor"), "codec"),
    **dict.fromkeys(("until", "time_limit", "max_time"), "max_virtual_time"),
}
"""Settings by the names that other frameworks have for them."""

_VALUES = {
    "fedprox": "FedProx is 'fedavg' with the setting proximal, such as 0.01",
    "fedsgd": "FedSGD is 'fedavg' with one step a round",
    "fedavgm": "it is not among them, but docs/extending.md shows how to write it",
    "scaffold": "it is not among them, but docs/extending.md shows how to write it",
    "fedadam": "it is not among them, but docs/extending.md shows how to write it",
    "fedyogi": "it is not among them, but docs/extending.md shows how to write it",
    "sync": "'fedavg-s' waits for everybody",
    "async": "'fedasync-s' waits for nobody",
    "noniid": "did you mean 'by-label' or 'dirichlet'?",
    "non-iid": "did you mean 'by-label' or 'dirichlet'?",
    "fp32": "did you mean 'plain'?",
    "quantized": "did you mean 'int8'?",
}
"""What to say to values of settings that other frameworks have."""


def nearest_setting(word: str, known: Iterable[str]) -> str | None:
    """The setting that a word most likely means."""
    names, plain = list(known), word.replace("-", "_").lower()
    if _SETTINGS.get(plain) in names:
        return _SETTINGS[plain]
    return next(iter(difflib.get_close_matches(plain, names, n=1)), None)


def hint_at_value(value: object, known: Iterable[str]) -> str:
    """The end of a sentence about a value that is not known: `; did you mean 'adaptcl'?`, or a
    full stop."""
    names = list(known)
    if not isinstance(value, str):
        return "."
    plain = value.strip().lower()
    if plain in _VALUES:
        said = _VALUES[plain]
    elif near := difflib.get_close_matches(plain.replace("_", "-"), names, n=1):
        said = f"did you mean {near[0]!r}?"
    else:
        return "."
    return f"; {said}" + ("" if said.endswith("?") else ".")
