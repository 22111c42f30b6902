"""Puts a simulated run together: strategy, workers, clock and links; refuses what cannot work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptcl.config.config import Config
from adaptcl.custom import note_custom_code
from adaptcl.data import missing_classes
from adaptcl.engines.clock_in_words import (
    describe_clock,
    ends_at_once,
    lopsided,
    whole_updates,
)
from adaptcl.engines.environment import Environment
from adaptcl.engines.simulation import LocalWorkers, SimulatedTransport
from adaptcl.pruning import WorkerOrder, custom_worker_orders
from adaptcl.runs.session import Session, checked_strategy, custom_optimizer_of
from adaptcl.runs.training_profile import with_measured_profile
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import softmax_warning
from adaptcl.training.devices import make_workers, side_by_side_on_a_gpu
from adaptcl.units import UnitMap, flops


@dataclass(frozen=True)
class Clock:
    """How long everything takes in a simulation, and what to tell the user of it."""

    environment: Environment
    assumes: str
    warnings: tuple[str, ...]


def clock_of(config: Config, units: UnitMap, samples: Sequence[int], source: str = "") -> Clock:
    """The clock of a run whose workers have these numbers of samples.

    `source` says how its training times are known; empty if they were given.
    """
    job, epochs = config.job, config.recipe.epochs
    environment = Environment(config.environment, units, job.workers, epochs, job.seed, samples)
    updates = whole_updates(environment, units, config.codecs)
    warnings = (
        environment.ignores_samples(),
        lopsided(updates),
        ends_at_once(job.max_virtual_time, updates),
    )
    return Clock(
        environment,
        describe_clock(environment, updates, source),
        tuple(warning for warning in warnings if warning),
    )


def simulated_session(config: Config, workload: Workload) -> Session:
    """Put together a simulated run; an error if anything about it cannot work.

    If the settings ask for a measured training profile, the session's have it instead.
    """
    parts = workload.worker_samples
    with note_custom_code(config.named_methods):
        noise, is_steady = config.environment.jitter, config.environment.is_steady
        strategy = checked_strategy(config, workload, noise, is_steady=is_steady)
        custom_orders = custom_worker_orders(config.pruning)
        config, source = with_measured_profile(config, workload)
        samples = [len(part) for part in parts]
        clock = clock_of(config, workload.units, samples, source)
    missing = missing_classes(parts, workload.test, workload.classes)
    labels = [torch.bincount(part.labels).tolist() for part in parts if part.has_labels]
    return Session(
        config,
        workload,
        strategy,
        lambda: _simulation(config, workload, clock.environment, custom_orders),
        tuple(filter(None, (missing, softmax_warning(workload), *clock.warnings))),
        tuple(map(tuple, labels)),
        tuple(samples),
        clock.assumes,
    )


def _simulation(
    config: Config,
    workload: Workload,
    environment: Environment,
    custom_orders: dict[str, WorkerOrder],
) -> SimulatedTransport:
    job = config.job
    optimizer, schedule = custom_optimizer_of(config, workload)
    workers = make_workers(
        workload.model,
        workload.units,
        workload.worker_samples,
        workload.example(),
        job.seed,
        job.precision,
        objective=workload.objective,
        custom_optimizer=optimizer,
        schedule=schedule,
        custom_orders=custom_orders,
        held_back=workload.held_back,
        test_every=job.evaluate_every,
    )
    threads = job.threads or _side_by_side(config, workload)
    local = LocalWorkers(workers, workload.units, config.codecs)
    return SimulatedTransport(local, environment, job.workers, min(threads, job.workers))


def _side_by_side(config: Config, workload: Workload) -> int:
    if torch.device(config.job.device).type != "cuda":
        return os.cpu_count() or 1
    most = max(map(len, workload.worker_samples)) * config.recipe.epochs
    return side_by_side_on_a_gpu(most * flops(workload.units, workload.units.everything()))
