"""The FedAvg job that pfl-research publishes, on adaptcl, pfl-research and Flower's simulation.

Each framework runs in a separate process, used as its documentation says, on the same files. They
take turns, so that other load on the machine meets all alike. The first round of each does not
count, because it includes the start-up.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adaptcl.errors import AdaptCLError, SettingError
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.peers.shared_job import PeersJob, prepare
from benchmarks.timing import child_environment

SIDES = ("adaptcl", "pfl", "flower")
_PACKAGES = {"pfl": "pfl", "flower": "ray"}
_NAMES = {"pfl": "pfl-research", "flower": "Flower's simulation"}
_BARS = {"cpu": {"pfl": 1.3, "flower": 2.5}, "cuda": {"pfl": 5.0}}
_ROUNDS = {"cpu": 6, "cuda": 20}


class PeerError(AdaptCLError):
    """One of the frameworks failed."""


def measure(request: Request) -> BenchmarkReport:
    """Run the job on every framework and compare their rounds."""
    kind = request.device.split(":")[0]
    python = request.python or sys.executable
    job = PeersJob(rounds=request.rounds or _ROUNDS.get(kind, 6), device=request.device)
    turns = request.repeats or 2
    installed = [
        side for side in SIDES if side == "adaptcl" or _is_installed(python, _PACKAGES[side])
    ]
    if installed == ["adaptcl"]:
        raise SettingError("There is no peer to compare with: pip install 'adaptcl[peers]'.")
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in installed}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), job, Path(request.data_dir) if request.data_dir else None)
        for _ in range(turns):
            for side in installed:
                answers[side].append(_run(python, side, Path(folder)))
    ours = _round_time(answers["adaptcl"])
    bars = _BARS.get(kind, {})
    rows = [Measurement("adaptcl", 1.0, ours)]
    for side in installed[1:]:
        bar = Bar(bars[side], at_least=True) if side in bars else None
        seconds = _round_time(answers[side])
        rows.append(Measurement(f"against {_NAMES[side]}", seconds / ours, seconds, bar))
    if "pfl" in installed:
        work = [min(each["work_s"] for each in answers[side]) for side in ("pfl", "adaptcl")]
        rows.append(Measurement(f"against {_NAMES['pfl']}: processor time", work[0] / work[1]))
    losses = ", ".join(f"{side} {answers[side][-1]['loss']:.3f}" for side in installed)
    scores = ", ".join(f"{side} {answers[side][-1]['accuracy']:.1%}" for side in installed)
    return BenchmarkReport(
        f"FedAvg: {job.users:,} users of {job.samples} images, {job.cohort} a round, batch "
        f"{job.batch}, a CNN of 1,626,442 parameters, {request.device}",
        "times as fast",
        tuple(rows),
        f"median round of {job.rounds - 1} without the first, best of {turns} turns",
        (
            f"Test loss after {job.rounds} rounds: {losses}; accuracy: {scores}.",
            f"adaptcl's round: {ours:.2f} s; a test on {job.tested} images is part of every round.",
            "Images: " + ("CIFAR-10." if request.data_dir else "made up, with learnable labels."),
            *(
                f"{name} is not installed."
                for side, name in _NAMES.items()
                if side not in installed
            ),
        ),
        dict(answers),
    )


def _round_time(answers: Sequence[dict[str, Any]]) -> float:
    """The median time of a round in the best turn."""
    medians: list[float] = [statistics.median(each["rounds_s"][1:]) for each in answers]
    return min(medians)


def _is_installed(python: str, package: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    # -P: a folder of that name in the working directory is not the package.
    return subprocess.run([python, "-P", "-c", code], check=False).returncode == 0


def _run(python: str, side: str, folder: Path) -> dict[str, Any]:
    """Run one framework in a separate process and read its answer."""
    done = subprocess.run(
        [python, "-m", f"benchmarks.peers.{side}_side", str(folder)],
        env=child_environment(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise PeerError(f"{_NAMES.get(side, side)} failed: {last}")
    answer: dict[str, Any] = json.loads((folder / f"{side}.json").read_text(encoding="utf-8"))
    return answer
