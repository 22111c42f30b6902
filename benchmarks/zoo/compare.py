"""How many models of the zoo can be cut to half, with AdaptCL and with Torch-Pruning.

Each model runs in a process of its own with a limit of processor time, once with either. Both get
the model as it is, with nothing said about it; Torch-Pruning is told the last layers.
"""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from adaptcl.units.tensors import Tensors
from benchmarks.benchmark import Bar, BenchmarkReport, Measurement, Request
from benchmarks.zoo.catalogue import LIBRARIES, ZooModel, is_installed, models
from benchmarks.zoo.judge import with_adaptcl, with_torch_pruning

CPU_SECONDS = 30
"""Processor time for one model; what takes longer is said to hang."""
_HALF, _NEARLY = 0.5, 0.6

Answer = dict[str, Any]
Judge = Callable[[nn.Module, Tensors], Answer]
_JUDGES: dict[str, Judge] = {"adaptcl": with_adaptcl, "torch_pruning": with_torch_pruning}


def measure(request: Request) -> BenchmarkReport:
    """Judge every model and count."""
    by_path = {each.path: each for each in models()}
    chosen = [by_path[path] for path in request.chosen(by_path)]
    torch.set_num_threads(1)  # processes fork from this one, with what it has imported
    for library in {each.library for each in chosen} & set(LIBRARIES):
        importlib.import_module(LIBRARIES[library])
    details: dict[str, Any] = {}
    for each in chosen:
        details[each.path] = {
            name: request.finished(f"{each.path}, {name}", partial(_judged, each, judge))
            for name, judge in _JUDGES.items()
        }
    ours = [each["adaptcl"] for each in details.values()]
    theirs = [each["torch_pruning"] for each in details.values()]
    missing = [each for each in LIBRARIES if not is_installed(each)]
    whole = [name for name, each in details.items() if not _keeps(each["adaptcl"], "least", _HALF)]
    notes = [f"Keep more than half: {', '.join(whole)}."] if whole else []
    notes += [f"Not installed: {', '.join(missing)}."] if missing else []
    return BenchmarkReport(
        f"{len(chosen)} models that nobody wrote for AdaptCL",
        "% of models",
        tuple(_rows(ours, theirs)),
        "once; random weights, batches of two",
        tuple(notes),
        details,
    )


def _rows(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> Iterator[Measurement]:
    def row(label: str, flags: Sequence[bool], limit: float | None = None) -> Measurement:
        bar = None if limit is None else Bar(limit, at_least=True)
        return Measurement(label, 100 * sum(flags) / max(1, len(flags)), bar=bar)

    yield row("can keep half of the parameters", [_keeps(e, "least", _HALF) for e in ours], 95)
    for share, limit in ((_HALF, 75), (_NEARLY, None)):
        flags = [_keeps(e, "halved", share) for e in ours]
        yield row(f"halving all widths keeps at most {share:.0%}", flags, limit)
    for mode in ("evaluation", "training"):
        found = [each[mode] for each in ours if each.get(mode) is not None]
        yield row(f"a cut equals zeroing in {mode}", found, 100)
    reach = [_keeps(each, "least", _HALF) for each in theirs]
    yield row("Torch-Pruning: can keep half of the parameters", reach)
    halved = [_keeps(each, "halved", _NEARLY) for each in theirs]
    yield row(f"Torch-Pruning: halving all widths keeps at most {_NEARLY:.0%}", halved)
    for failure in ("raises", "breaks", "hangs"):
        yield row(f"Torch-Pruning: {failure}", [e.get("failure") == failure for e in theirs])


def _keeps(answer: Answer, which: str, share: float) -> bool:
    return bool(answer.get(which, 1.0) <= share)


def _judged(each: ZooModel, judge: Judge) -> Answer:
    """The answer of a separate process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(each, judge, there))
    process.start()
    there.close()
    try:
        answer: Answer = here.recv()
    except EOFError:
        answer = {"failure": "hangs"}
    process.join()
    return answer


def _answer(each: ZooModel, judge: Judge, there: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    warnings.simplefilter("ignore")
    try:
        answer = judge(*each.built())
    except Exception as error:  # a failure is an answer, too
        answer = {"failure": "raises", "error": f"{type(error).__name__}: {error}"[:200]}
    there.send(answer)
