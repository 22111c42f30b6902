"""Telling the time of a run in another environment than the one it was made in.

With a barrier and the whole model for everybody, every round takes as long as its slowest worker,
and that is known from sizes and bandwidths alone; no environment changes what is learned. So a
FedAVG run is trained once, and its clock is worked out for every σ and B_max.
"""

from __future__ import annotations

from dataclasses import replace

from adaptcl.config import Config
from adaptcl.engines.heterogeneity import MIB, bandwidths, heterogeneity
from paper.identity import clock_is_free, effective
from paper.result import RunResult


def reclocked(result: RunResult, config: Config) -> RunResult:
    """The run as it would have gone in the configuration's environment.

    A run that depends on its environment is given back as it is: it is only ever found by a
    configuration with the same one.
    """
    if not clock_is_free(result.settings):
        return result
    times = update_times(result, config)
    slowest, unequal = max(times), heterogeneity(times)
    rounds = result.course.round
    course = replace(
        result.course,
        virtual_time_s=tuple(round(slowest * number, 3) for number in rounds),
        heterogeneity=tuple(round(unequal, 5) for _ in rounds),
    )
    summary = replace(
        result.summary,
        virtual_time_s=slowest * result.summary.rounds,
        best_virtual_time_s=slowest * result.summary.best_round,
        heterogeneity_first=unequal,
        heterogeneity_last=unequal,
    )
    workers = tuple(
        replace(each, update_time_s=tuple(round(time, 3) for time in times))
        for each in result.workers
    )
    settings = effective(config.values())
    return replace(result, settings=settings, course=course, summary=summary, workers=workers)


def update_times(result: RunResult, config: Config) -> list[float]:
    """Each worker's φ: receiving the whole model, training it, and sending it back."""
    environment, workers = config.environment, config.job.workers
    train = environment.train_time * config.recipe.epochs / environment.profile_epochs
    rates = environment.bandwidths or bandwidths(
        result.whole.bytes / MIB, environment.bandwidth_max, train, environment.sigma, workers
    )
    speeds = environment.speeds or (1.0,) * workers
    tasks = result.summary.rounds * workers
    travels = (result.summary.bytes_sent + result.summary.bytes_received) / tasks / MIB
    return [travels / rate + train / speed for rate, speed in zip(rates, speeds, strict=True)]
