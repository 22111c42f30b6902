"""Which runs are missing, in which order to make them, and what still fits into the time.

How long a run will take is judged by runs already made on the same kind of device: seconds for
each local epoch over as many samples, of the same strategy on the same model and data if there was
one, else of anything on that model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from adaptcl import config as configuration
from adaptcl.config import Config
from paper.experiment import Experiment, Wanted
from paper.identity import key
from paper.result import RunResult
from paper.store import Store


@dataclass(frozen=True)
class Here:
    """What the command line says about how to run; it is none of the experiment's business."""

    data_dir: str = ""
    device: str = "cpu"
    precision: str = "tf32"
    rounds: int | None = None
    """Cut every run short to this many rounds; a smoke test."""
    checkpoint_every: int = 50

    def applied(self, config: Config) -> Config:
        """The configuration, to be run here."""
        changes = {
            "data_dir": self.data_dir,
            "device": self.device,
            "precision": self.precision,
            "checkpoint_every": self.checkpoint_every,
            **({} if self.rounds is None else {"rounds": self.rounds}),
        }
        values = {k: v for k, v in config.values().items() if v is not None}
        return configuration.configure({**values, **changes})


def missing(
    experiments: Iterable[Experiment],
    store: Store,
    here: Here,
    seeds: Sequence[int] | None = None,
) -> list[Wanted]:
    """The runs there are no results of, each once, the most urgent first.

    At equal priority, every run with the first seed comes before any with the second: one seed
    of everything says more than three of something.
    """
    found: dict[str, Wanted] = {}
    for experiment in experiments:
        for wanted in experiment.wanted():
            if seeds is not None and wanted.config.job.seed not in seeds:
                continue
            placed = replace(wanted, config=here.applied(wanted.config))
            name = key(placed.config.values())
            before = found.get(name)
            if before is None or placed.priority < before.priority:
                found[name] = placed
    left = [wanted for name, wanted in found.items() if name not in store.runs]
    return sorted(left, key=lambda wanted: (wanted.priority, wanted.config.job.seed))


@dataclass(frozen=True)
class Estimator:
    """Judges how long runs will take, from those that are done."""

    results: Sequence[RunResult]
    device: str
    """What computes, in the words of a result's provenance."""

    def seconds(self, config: Config) -> float | None:
        """How long a run will take; None while nothing like it has been run here."""
        job = config.job
        alike = [
            result
            for result in self.results
            if result.provenance.device == self.device
            and result.settings["model"] == job.model
            and result.settings.get("samples", 0) == job.samples
        ]
        closest = [
            result
            for result in alike
            if (result.settings["strategy"], result.settings["data"]) == (job.strategy, job.data)
        ]
        rates = [_seconds_an_epoch(result) for result in closest or alike]
        return statistics.median(rates) * job.rounds * config.recipe.epochs if rates else None


def fits(estimate: float | None, left: float, limit: float) -> bool:
    """Whether to begin a run with this much time left.

    What has never been measured is tried. What could not be done within the whole limit is begun
    if at least half of it is left: it goes on from its checkpoint next time.
    """
    if estimate is None:
        return left > 0
    return estimate <= left or (estimate > limit and left >= limit / 2)


def _seconds_an_epoch(result: RunResult) -> float:
    epochs = float(result.settings["rounds"]) * float(result.settings["epochs"])
    return result.summary.wall_time_s / epochs
