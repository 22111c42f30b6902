"""Bandwidth and compute speed of each worker over time, and the update times that follow.

Training time comes from a profile: a fixed part plus a part in proportion to FLOPs. So runs are
reproducible. The profile may be measured once before the run (`runs/training_profile.py`). When
conditions change in the middle of a transfer or a training, it goes on at the new rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from adaptcl.engines.bandwidths import DEVICES, LINKS, MIB, REFERENCE, Link, bandwidths, link_of
from adaptcl.engines.conditions import Conditions, read_conditions
from adaptcl.errors import SettingError
from adaptcl.seeds import generator
from adaptcl.settings import When, refuse_other_count, setting
from adaptcl.training import Task, Timing
from adaptcl.units import Kept, UnitMap, flops, size_bytes

_UNEQUAL = 2.0  # the ratio of two workers' sample counts above which ignoring it is worth a warning


@dataclass(frozen=True)
class EnvironmentSettings:
    """Bandwidth and compute speed of each worker over time."""

    sigma: float = setting(
        2.0,
        "ratio of the longest update time to the shortest, before any pruning (σ); the links of "
        "the slower workers are chosen for it",
        at_least=1,
        condition=When(unused=["bandwidths", "links", "devices", "speeds"]),
    )
    bandwidth_max: float = setting(
        5.0,
        "bandwidth of the fastest worker, in MiB/s",
        above=0,
        condition=When(unused=["bandwidths", "links"]),
    )
    links: tuple[str, ...] = setting(
        (),
        f"links by name ({', '.join(LINKS)}) or as DOWN/UP in Mbit/s, dealt to the workers in "
        "turn, instead of sigma and bandwidth_max",
    )
    devices: tuple[str, ...] = setting(
        (),
        "devices by name, dealt to the workers in turn, instead of sigma; this machine counts as a "
        f"{REFERENCE}",
        choices=DEVICES,
    )
    bandwidths: tuple[float, ...] = setting(
        (),
        "bandwidth of each worker in MiB/s, instead of sigma and bandwidth_max",
        above=0,
        condition=When(unused=["links"]),
    )
    speeds: tuple[float, ...] = setting(
        (),
        "training speed of each worker, instead of sigma; 2 is twice as fast as the profile",
        above=0,
        condition=When(unused=["devices"]),
    )
    train_time: float = setting(
        0.0,
        "profile: seconds to train the whole model for profile_epochs (t_train); 0 measures it "
        "once before the run, unless a preset gives it; if given, profile_epochs, flops_share and "
        "samples_share say the rest",
        at_least=0,
    )
    profile_epochs: float = setting(
        2.0,
        "profile: number of local epochs that take train_time seconds",
        above=0,
        condition=When(used=["train_time"]),
    )
    flops_share: float = setting(
        0.0,
        "profile: share of the training time that shrinks with the sub-model's FLOPs; 0 for the "
        "paper's GPU, 0.8 for a typical CPU",
        at_least=0,
        at_most=1,
        condition=When(used=["train_time"]),
    )
    samples_share: float = setting(
        0.0,
        "profile: share of the training time that grows with a worker's number of samples; 0 as "
        "in the paper, 1 for an ordinary machine",
        at_least=0,
        at_most=1,
        condition=When(used=["train_time"]),
    )
    jitter: float = setting(
        0.0, "random variation of every time, as a share of it", at_least=0, below=1
    )
    trace: str = setting("", "CSV file with bandwidth, speed and presence of workers over time")

    def __post_init__(self) -> None:
        for each in self.links:
            link_of(each)  # refuses what is none

    @property
    def is_steady(self) -> bool:
        """Whether a task takes the same time whenever it is done."""
        return self.jitter == 0 and not self.trace

    @property
    def sigma_of_links(self) -> float:
        """σ is for workers that differ in their links only."""
        return 1.0 if self.devices or self.speeds else self.sigma

    @property
    def asks_for_measurement(self) -> bool:
        """Whether the training profile is to be measured before the run."""
        return self.train_time == 0


class Environment:
    """Says how long tasks take in a simulation, in virtual seconds."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        units: UnitMap,
        workers: int,
        epochs: float,
        seed: int,
        samples: Sequence[int] = (),
    ) -> None:
        """`samples` is each worker's number of samples; empty means that all have equally many."""
        self._settings = settings
        self._units = units
        self._seed = seed
        self._whole_flops = flops(units, units.everything())
        self.whole_bytes = size_bytes(units, units.everything())
        # σ compares whole rounds, so t_train covers the run's epochs, not the profile's.
        self.train_time = settings.train_time * epochs / settings.profile_epochs
        self.flops_share = settings.flops_share
        self.samples_share = settings.samples_share
        self.links = _links(settings, self.whole_bytes / MIB, self.train_time, workers)
        self._speeds = _speeds(settings, workers)
        mean = sum(samples) / workers
        self._relative_samples = [each / mean for each in samples] or [1.0] * workers
        self.conditions = (
            read_conditions(Path(settings.trace), workers)
            if settings.trace
            else Conditions.steady(workers)
        )

    def ignores_samples(self) -> str | None:
        """A warning if workers have very unequal numbers of samples but equal training times."""
        least, most = min(self._relative_samples), max(self._relative_samples)
        if self.samples_share or most <= _UNEQUAL * least:
            return None
        return (
            f"One worker has {most / least:.1f} times the samples of another, yet training takes "
            "both equally long, because samples_share is 0 (as in the paper); on real machines it "
            "is near 1."
        )

    def timing(self, task: Task, after: Kept, start: float, sent: int, received: int) -> Timing:
        """How long a task takes if it is sent at `start` and leaves the kept units `after`."""
        worker = task.worker
        jitter = self._jitter(task)
        link = self.links[worker]
        down, up = link.down * MIB / jitter, link.up * MIB / jitter
        arrived = self._finish(
            worker, start, sent, lambda t: down * self.conditions.at(worker, t).bandwidth
        )
        trained = self._finish(
            worker,
            arrived,
            self._profiled(task, after) * jitter,
            lambda t: self._speeds[worker] * self.conditions.at(worker, t).speed,
        )
        back = self._finish(
            worker, trained, received, lambda t: up * self.conditions.at(worker, t).bandwidth
        )
        phases = (arrived - start, trained - arrived, back - trained)
        return Timing(*phases, sent, received, begin=start)

    def whole_updates(self, sent: int, received: int) -> list[Timing]:
        """How long each worker takes for the whole model, before anything changes or fluctuates."""
        return [
            Timing(
                sent / MIB / link.down,
                self.train_time * self._samples_factor(worker) / self._speeds[worker],
                received / MIB / link.up,
                sent,
                received,
            )
            for worker, link in enumerate(self.links)
        ]

    def shortest(self, task: Task, start: float, sent: int) -> Timing:
        """The least that a task can take, known before the training."""
        return self.timing(task, self._units.everything() & False, start, sent, 0)

    def _profiled(self, task: Task, after: Kept) -> float:
        """Training seconds by the profile: β of the epochs before the pruning, the rest after."""
        first = task.recipe.beta if task.pruning else 1.0
        work = first * self._relative_flops(task.kept)
        if first < 1:
            work += (1 - first) * self._relative_flops(after)
        share = self.flops_share
        epochs = task.recipe.epochs / self._settings.profile_epochs
        seconds = self._settings.train_time * epochs * (1 - share + share * work)
        return seconds * self._samples_factor(task.worker)

    def _samples_factor(self, worker: int) -> float:
        share = self.samples_share
        return 1 - share + share * self._relative_samples[worker]

    def _relative_flops(self, kept: Kept) -> float:
        # Where FLOPs cannot be counted, assume that pruning saves none.
        return flops(self._units, kept) / self._whole_flops if self._whole_flops else 1.0

    def _jitter(self, task: Task) -> float:
        spread = self._settings.jitter
        if spread == 0:
            return 1.0
        randomness = generator(self._seed, "jitter", task.worker, task.round)
        return math.exp(spread * float(torch.randn((), generator=randomness)))

    def _finish(
        self, worker: int, start: float, amount: float, rate: Callable[[float], float]
    ) -> float:
        """When an `amount` of work that begins at `start` is done, at changing rates."""
        time = start
        while True:
            change, pace = self.conditions.after(worker, time), rate(time)
            possible = (change - time) * pace
            if amount <= possible:
                return time + amount / pace
            amount -= possible
            time = change


def _links(
    settings: EnvironmentSettings, size: float, train_time: float, workers: int
) -> list[Link]:
    if settings.links:
        return [link_of(name) for name in _dealt("links", settings.links, workers)]
    rates = _by_worker("bandwidths", settings.bandwidths, workers)
    if not rates:
        sigma = settings.sigma_of_links
        rates = bandwidths(size, settings.bandwidth_max, train_time, sigma, workers)
    return [Link(rate, rate) for rate in rates]


def _speeds(settings: EnvironmentSettings, workers: int) -> list[float]:
    if settings.devices:
        return [DEVICES[name] for name in _dealt("devices", settings.devices, workers)]
    return _by_worker("speeds", settings.speeds, workers) or [1.0] * workers


def _dealt(name: str, names: tuple[str, ...], workers: int) -> list[str]:
    if len(names) > workers:
        raise SettingError(
            f"{name} has {len(names)} entries, but there are only {workers} workers to deal them "
            "to."
        )
    return [names[worker % len(names)] for worker in range(workers)]


def _by_worker(name: str, values: tuple[float, ...], workers: int) -> list[float]:
    if values:
        refuse_other_count(f"{name} has {len(values)} entries", len(values), workers)
    return list(values)
