"""Suggestions for a word that is not known: a misspelling, or a word of another framework."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
