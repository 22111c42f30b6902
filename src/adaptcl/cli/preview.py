"""The commands `adaptcl forecast` and `adaptcl describe`, which train nothing."""

from __future__ import annotations

import argparse

from rich.console import Console

from adaptcl import report
from adaptcl.cli import say
from adaptcl.cli.requested_runs import ineffective_settings, requested_configs
from adaptcl.cli.run import load_with_progress
from adaptcl.runs.forecast import forecast
from adaptcl.units import describe


def forecast_job(options: argparse.Namespace) -> None:
    configs = requested_configs(options)
    for sentence in ineffective_settings(options, configs):
        say(sentence)
    workload = load_with_progress(configs[0])
    samples = [len(part) for part in workload.worker_samples]
    with report.bar("computing times") as progress:
        forecasts = []
        for number, each in enumerate(configs):
            forecasts.append(forecast(each, workload.units, samples))
            progress(number + 1, len(configs))
    Console().print(report.forecast_table(forecasts))


def describe_job(options: argparse.Namespace) -> None:
    workload = load_with_progress(requested_configs(options)[0])
    print(describe(workload.model, workload.example(), workload.fixed))
