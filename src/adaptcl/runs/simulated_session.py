"""Puts a simulated run together: strategy, workers, clock and links; refuses what cannot work."""

from __future__ import annotations

import os

import torch

from adaptcl.codecs.codec import Codecs
from adaptcl.config.config import Config
from adaptcl.custom import note_custom_code
from adaptcl.data import missing_classes
from adaptcl.engines.clock_summary import describe_clock, lopsided, whole_updates
from adaptcl.engines.environment import Environment
from adaptcl.engines.simulation import LocalWorkers, SimulatedTransport
from adaptcl.pruning import WorkerOrder, custom_worker_orders
from adaptcl.runs.session import Session
from adaptcl.runs.training_profile import measured_profile
from adaptcl.runs.workload import Workload
from adaptcl.runs.workload_check import checked_strategy, custom_optimizer_of
from adaptcl.training.devices import side_by_side_on_a_gpu, trainers
from adaptcl.training.randomness import draws_randomness
from adaptcl.training.worker import Worker
from adaptcl.units import flops


def simulated_session(config: Config, workload: Workload) -> Session:
    """Put together a simulated run; an error if anything about it cannot work.

    If the settings ask for a measured training profile, the session's have it instead.
    """
    with note_custom_code(config.named_methods):
        noise, is_steady = config.environment.time_noise, config.environment.is_steady
        strategy = checked_strategy(config, workload, noise, is_steady=is_steady)
        codecs = config.codecs
        custom_orders = custom_worker_orders(config.pruning)
        profile = measured_profile(config, workload)
        config = profile.of(config) if profile else config
        environment = Environment(
            config.environment,
            workload.units,
            config.job.workers,
            config.recipe.epochs,
            config.job.seed,
            [len(part) for part in workload.worker_samples],
        )
    updates = whole_updates(environment, workload.units, codecs)
    warnings = (
        missing_classes(workload.worker_samples, workload.test, workload.classes),
        environment.ignores_samples(),
        lopsided(updates),
    )
    return Session(
        config,
        workload,
        strategy,
        lambda: _simulation(config, workload, environment, codecs, custom_orders),
        tuple(sentence for sentence in warnings if sentence),
        tuple(
            tuple(torch.bincount(part.labels).tolist())
            for part in workload.worker_samples
            if part.has_labels
        ),
        describe_clock(environment, updates, profile_measured=profile is not None),
    )


def _simulation(
    config: Config,
    workload: Workload,
    environment: Environment,
    codecs: Codecs,
    custom_orders: dict[str, WorkerOrder],
) -> SimulatedTransport:
    model, units, parts = workload.model, workload.units, workload.worker_samples
    random = draws_randomness(model, workload.example())
    optimizer, schedule = custom_optimizer_of(config, workload)
    made = trainers(model, units, parts, config.job.precision, workload.objective, optimizer)
    workers = [
        Worker(
            number,
            part,
            model,
            units,
            config.job.seed,
            trainer=trainer,
            draws_randomness=random,
            custom_orders=custom_orders,
            objective=workload.objective,
            schedule=schedule,
            held_back=workload.held_back[number] if workload.held_back else None,
            test_every=config.job.evaluate_every,
        )
        for number, (part, trainer) in enumerate(zip(parts, made, strict=True))
    ]
    # Trainings that run side by side would slow each other down, and be measured so.
    threads = (
        1 if environment.times_every_task else config.job.threads or _side_by_side(config, workload)
    )
    count = config.job.workers
    workplace = LocalWorkers(workers, units, codecs)
    return SimulatedTransport(workplace, environment, count, min(threads, count))


def _side_by_side(config: Config, workload: Workload) -> int:
    if torch.device(config.job.device).type != "cuda":
        return os.cpu_count() or 1
    most = max(map(len, workload.worker_samples)) * config.recipe.epochs
    return side_by_side_on_a_gpu(most * flops(workload.units, workload.units.everything()))
