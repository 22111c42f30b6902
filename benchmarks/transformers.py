"""Transformers with AdaptCL against FedAVG, where the slowest worker takes four times as long.

Both train each model of `transformer_jobs.py` from the same values, on the same data. Who is slower
has done fewer rounds by the time that the faster is done; at that time the two are compared.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

import adaptcl
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.transformer_jobs import JOBS, TransformerSize

_SIZES = {
    "ViT": TransformerSize(192, 12, 3),
    "BERT": TransformerSize(128, 2, 2),
    "GPT-2": TransformerSize(128, 4, 4),
}
"""timm's ViT-Ti, BERT-tiny, and a GPT-2 for characters."""
_OF_MODEL: dict[str, dict[str, Any]] = {
    "ViT": {"epochs": 0.5},
    # AdamW scales the gradient of the lasso like any other, which this BERT does not learn under.
    "BERT": {"epochs": 2.0, "strength": 0.0},
    "GPT-2": {"epochs": 1.0},
}
_SETTINGS: dict[str, Any] = {
    "workers": 5, "batch_size": 32, "optimizer": "adamw", "learning_rate": 5e-4, "sigma": 4,
    "train_time": 1.0, "profile_epochs": 1.0,
}  # fmt: skip
_SEND_S = 2.0
"""How long the fastest link takes to send the whole model."""
_SEEDS = 3
_ROUNDS = 16


@dataclass(frozen=True)
class Outcome:
    """Both strategies on one model, with one seed."""

    faster: float
    """FedAVG's virtual time divided by AdaptCL's, both for all rounds."""
    heterogeneity: float
    """AdaptCL's H at the end."""
    adaptcl: float
    """The main metric of AdaptCL at the end."""
    fedavg: float
    """The main metric of FedAVG at that time."""
    fedavg_at_end: float
    is_better: bool
    """Whether AdaptCL's metric is at least as good at equal time."""
    retention: tuple[float, ...]
    """Of each worker at the end."""


def measure(request: Request) -> BenchmarkReport:
    """Train each model with both strategies, for some seeds."""
    seeds = range(1, 1 + (request.repeats or _SEEDS))
    rounds = request.rounds or _ROUNDS

    def one(name: str, seed: int) -> Outcome:
        known = request.finished(
            f"{name}, seed {seed}, {rounds} rounds",
            lambda: asdict(compare(name, seed, request.device, rounds)),
        )
        return Outcome(**known)

    found = {name: [one(name, seed) for seed in seeds] for name in request.chosen(JOBS)}
    rows = []
    for name, outcomes in found.items():
        rows += [
            Measurement(
                f"{name}, times as fast", min(each.faster for each in outcomes),
                bar=Bar(1.8, at_least=True),
            ),
            Measurement(
                f"{name}, H at the end", max(each.heterogeneity for each in outcomes), bar=Bar(0.1)
            ),
            Measurement(f"{name}, AdaptCL at the end", fmean(each.adaptcl for each in outcomes)),
            Measurement(
                f"{name}, FedAVG at that time", fmean(each.fedavg for each in outcomes)
            ),
            Measurement(
                f"{name}, FedAVG after all rounds",
                fmean(each.fedavg_at_end for each in outcomes),
            ),
            Measurement(
                f"{name}, seeds in which AdaptCL is not worse at equal time",
                fmean(each.is_better for each in outcomes), bar=Bar(1, at_least=True),
            ),
        ]  # fmt: skip
    return BenchmarkReport(
        f"Transformers with AdaptCL against FedAVG, σ = {_SETTINGS['sigma']}",
        "",
        tuple(rows),
        f"{len(seeds)} seeds: the worst speed and H, means of the metrics",
        ("ViT and BERT: accuracy. GPT-2: perplexity, lower is better.",),
        {name: [asdict(each) for each in outcomes] for name, outcomes in found.items()},
    )


def compare(
    name: str, seed: int, device: str = "cpu", rounds: int = _ROUNDS, **settings: Any
) -> Outcome:
    """Train one model with both strategies."""
    fedavg, adapted = (
        train(name, strategy, seed, device, rounds, **settings)
        for strategy in ("fedavg", "adaptcl")
    )
    return outcome(fedavg, adapted)


def train(
    name: str, strategy: str, seed: int, device: str, rounds: int, **settings: Any
) -> adaptcl.Result:
    torch.manual_seed(seed)
    job = JOBS[name](_SIZES[name])
    size = sum(each.nbytes for each in job.model.state_dict().values()) / 2**20
    return adaptcl.run(
        job.model, job.train, job.test,
        **{
            "objective": job.objective, "strategy": strategy, "seed": seed, "rounds": rounds,
            "bandwidth_max": size / _SEND_S, "device": device,
            **_SETTINGS, **_OF_MODEL[name], **settings,
        },
    )  # fmt: skip


def outcome(fedavg: adaptcl.Result, adapted: adaptcl.Result) -> Outcome:
    end = adapted.summary.virtual_time_s
    tested = [each for each in fedavg.rounds if each.main_value is not None]
    at_equal_time = [each for each in tested if each.virtual_time_s <= end][-1].main_value
    main, measure = adapted.summary.main_value, adapted.summary.measure
    assert main is not None
    assert at_equal_time is not None
    assert fedavg.summary.main_value is not None
    assert adapted.summary.heterogeneity_last is not None
    return Outcome(
        faster=fedavg.summary.virtual_time_s / end,
        heterogeneity=adapted.summary.heterogeneity_last,
        adaptcl=main,
        fedavg=at_equal_time,
        fedavg_at_end=fedavg.summary.main_value,
        is_better=not measure.is_better(at_equal_time, main),
        retention=tuple(each.retention for each in adapted.rounds[-1].workers),
    )
