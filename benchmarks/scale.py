"""Many simulated workers in one process: their memory, and the time of an update.

Each job runs in a separate process, because a process's peak memory never falls. Ten workers show
what Python, PyTorch and the model take. The rest belongs to the other workers, most of it their
data.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import adaptcl
from adaptcl import models
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.subjects import SHAPES, made_up
from benchmarks.timing import child_environment

_BAR = Bar(2.0)
_ROUNDS = 3
_IMAGES = 10
"""Images of each worker."""


@dataclass(frozen=True)
class ScaleJob:
    """The number of workers, and how many of them take part in each round."""

    workers: int
    participants: int
    rounds: int = _ROUNDS
    strategy: str = "adaptcl"

    @property
    def label(self) -> str:
        drawn = f", {self.participants} a round" if self.participants else ""
        return f"{self.workers:,} workers{drawn}"


@dataclass(frozen=True)
class ScaleResult:
    """The memory and time of a job."""

    memory: int
    """The peak memory of the process in bytes."""
    seconds: float
    """From the first round to the last."""
    updates: int


JOBS = (ScaleJob(10, 0), ScaleJob(1_000, 0), ScaleJob(10_000, 100))


def measure(request: Request) -> BenchmarkReport:
    """Run each job once, one after the other."""
    rounds = request.rounds or _ROUNDS
    rows, found = [], {}
    for job in JOBS:
        chosen = ScaleJob(job.workers, job.participants, rounds)
        each = in_its_own_process(chosen, request.device)
        many = job.workers > 10
        rows.append(
            Measurement(
                chosen.label,
                each.memory / 2**30,
                each.seconds / each.updates,
                _BAR if many else None,
            )
        )
        found[chosen.label] = asdict(each)
    return BenchmarkReport(
        f"AdaptCL with many workers in one process, the small net, {_IMAGES} images each",
        "GiB at most",
        tuple(rows),
        f"one run of {rounds} rounds each, in a process of its own",
        details=found,
    )


def in_its_own_process(job: ScaleJob, device: str = "cpu") -> ScaleResult:
    """Run a job in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", json.dumps(asdict(job)), device],
        stdout=subprocess.PIPE,
        env=child_environment(),
        check=True,
    )
    return ScaleResult(**json.loads(done.stdout))


def run(job: ScaleJob, device: str = "cpu") -> ScaleResult:
    """Run a job in this process and read the process's peak memory."""
    shape = SHAPES["small"]
    train = made_up(shape, job.workers * _IMAGES, seed=0)
    test = made_up(shape, 100, seed=1)
    began = time.perf_counter()
    result = adaptcl.run(
        models.build("small", shape, 10, seed=1),
        train,
        test,
        train_time=1.0,  # given, so that it is not measured
        strategy=job.strategy,
        workers=job.workers,
        participants=job.participants,
        rounds=job.rounds,
        evaluate_every=job.rounds,
        pruning_interval=2,
        epochs=1,
        batch_size=_IMAGES,
        device=device,
    )
    seconds = time.perf_counter() - began
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return ScaleResult(memory, seconds, sum(len(each.workers) for each in result.rounds))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(run(ScaleJob(**json.loads(sys.argv[1])), sys.argv[2]))))
