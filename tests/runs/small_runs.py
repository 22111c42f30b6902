"""A run small enough to be made dozens of times, and what shows that two runs are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.events import Event, RoundFinished


class CutOffError(BaseException):
    """Ends a run as abruptly as Ctrl-C. An ordinary exception would only end its listener."""


def cut_off_after(number: int) -> Callable[[Event], None]:
    """A listener that ends the run in a round, before its checkpoint is saved."""

    def listener(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == number:
            raise CutOffError

    return listener


def clouds(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around four centres."""
    centres = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(7))
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=draw)
    return centres[labels] + torch.randn(count, 6, generator=draw), labels


def small_run(out: Path, **settings: Any) -> adaptcl.Result:
    """Four workers whose times fluctuate, a model with dropout, and a mean of models."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
    )
    defaults: dict[str, Any] = {
        **{"train": clouds(120), "test": clouds(60, 1), "workers": 4, "batch_size": 16},
        **{"bandwidth_max": 0.01, "jitter": 0.1, "averaging": 0.4, "threads": 1, "figures": "none"},
        "adaptcl": {"max_importance_lost": 1.0},
    }
    return adaptcl.run(model, out=out, **{**defaults, **settings})


def figures(folder: Path) -> dict[str, Any]:
    """The figures of a finished run, all but how long it took on this machine."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    del found["wall_time_s"]
    return found


def assert_same(folder: Path, reference: Path) -> None:
    """The same figures, the same rounds, and the same model bit for bit; nothing left over."""
    assert figures(folder) == figures(reference)
    for name in ("rounds.jsonl", "model.safetensors", "sub-models.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    best = folder / "best.safetensors", reference / "best.safetensors"
    assert best[0].exists() == best[1].exists()
    assert not best[0].exists() or best[0].read_bytes() == best[1].read_bytes()
    checkpoint = "checkpoint.safetensors"
    assert (folder / checkpoint).exists() == (reference / checkpoint).exists()
    extra = {"figures", "report.html", best[0].name, checkpoint}
    assert {p.name for p in folder.iterdir()} - extra == {
        ".lock", ".begun-with.json", "config.toml", "rounds.jsonl", "summary.json",
        "model.safetensors", "inputs.json", "sub-models.safetensors", "provenance.json",
    }  # fmt: skip
