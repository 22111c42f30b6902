"""The files of a run's folder: their names, and how they are read."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from adaptcl import storage
from adaptcl.data.description import SampleForm
from adaptcl.errors import RunFolderError
from adaptcl.records import NO_RECORD, RoundRecord, Summary
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.storage import Tree
from adaptcl.units import State

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
LOCK = ".lock"
MARKS = ".begun-with.json"
CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_FORMAT = 2
"""One more whenever the content of checkpoints changes, whoever of the run writes that part."""
BEST = "best.safetensors"
"""The model of the best test, without that of the last round if that one is delivered."""
DIVERGED = ".diverged"  # there while a run that diverged holds its last good model
SUMMARY = "summary.json"
MODEL = "model.safetensors"
SUB_MODELS = "sub-models.safetensors"
"""The units that each worker keeps, as of the latest round that changed them."""
INPUTS = "inputs.json"
FIGURES = "figures"  # the folder of figures beside a run, or beside the runs of several strategies
NETWORK_FILE = "network.toml"


@dataclass(frozen=True)
class NetworkFile:
    """`network.toml`: what `adaptcl server` needs to resume a run beside its settings."""

    run: str  # the name by which workers know the run
    listen: str
    tls: str
    patience: float
    job: str = ""
    """A name that the runs of one command share. The same workers do them one after the other."""
    turn: int = 0  # the position of the run among those of its command
    least_workers: int = 0
    """With how many the first of them begins, and all go on; 0: with all, and then with any."""
    wait: float = 0.0  # how long the others are waited for once so many are there; 0: `patience`

    def to_toml(self) -> str:
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> NetworkFile:
        if not is_network_run(folder):
            raise RunFolderError(f"{folder} does not hold a run of `adaptcl server`.")
        with _refusing(f"{folder / NETWORK_FILE} cannot be read"):
            return cls(**tomllib.loads((folder / NETWORK_FILE).read_text(encoding="utf-8")))


def is_network_run(folder: Path) -> bool:
    """Whether `adaptcl server` began the run in this folder."""
    return (folder / NETWORK_FILE).is_file()


_TRACES = (LOCK, ROUNDS)
"""Files of which every run leaves one, even if it is copied without hidden files."""


def is_run_folder(path: Path) -> bool:
    return os.path.isfile(path / CONFIG)  # False, not an error, where nobody may look


def run_folders(path: Path, levels: int = 1) -> list[Path]:
    """The folder itself if it holds a run, else those with runs up to `levels` below, sorted."""
    if is_run_folder(path):
        return [path]
    found = [each.parent for each in path.glob("*/config.toml") if each.is_file()]
    for level in range(2, levels + 1):
        deeper = [each.parent for each in path.glob("*/" * level + CONFIG)]
        # Deeper down, config.toml may be another program's. A run leaves more than that.
        found += [each for each in deeper if any((each / name).is_file() for name in _TRACES)]
    return sorted(found)


def folders_below(base: Path, runs: Sequence[tuple[str, int]]) -> list[Path]:
    """A folder for each strategy and seed: below `base` by seed and strategy if there are several.

    Other programs take a colon for the end of a host or of a drive, so names have none.
    """
    strategies, seeds = ({each[place] for each in runs} for place in (0, 1))
    folders = []
    for strategy, seed in runs:
        below = [f"seed-{seed}"] if len(seeds) > 1 else []
        below += [strategy.replace(":", ".")] if len(strategies) > 1 else []
        folders.append(base.joinpath(*below))
    return folders


def read_finished(path: Path) -> tuple[Summary, tuple[RoundRecord, ...]] | None:
    """Summary and rounds of a finished run; None if it is unfinished."""
    summary = read_summary(path)
    return None if summary is None else (summary, read_rounds(path))


def read_summary(path: Path) -> Summary | None:
    """The summary of a run; None if it is unfinished."""
    file = path / SUMMARY
    if not file.is_file():
        return None
    with _refusing_no("summary", f"{file} is damaged: it"):
        return Summary.from_json(json.loads(_read_bytes(file)))


def read_rounds(path: Path) -> tuple[RoundRecord, ...]:
    """The rounds of a run so far; one that was killed may leave a last line without its end."""
    file = path / ROUNDS
    *lines, last = _read_bytes(file).split(b"\n") if file.is_file() else [b""]
    records = [_read_record(file, number, line) for number, line in enumerate(lines, start=1)]
    if last:
        with nullcontext() if (path / SUMMARY).exists() else suppress(RunFolderError):
            records.append(_read_record(file, len(lines) + 1, last))
    return tuple(records)


def _read_record(file: Path, number: int, line: bytes) -> RoundRecord:
    with _refusing_no("round", f"{file} is damaged: line {number}"):
        return RoundRecord.from_json(json.loads(line))


@contextmanager
def _refusing_no(thing: str, what: str) -> Iterator[None]:
    """Make one sentence of why what is read is no record of that kind."""
    try:
        yield
    except ValueError:
        raise RunFolderError(f"{what} is not JSON.") from None
    except NO_RECORD:
        raise RunFolderError(f"{what} is not a {thing}.") from None


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Make one sentence of whatever a file that is read turns out to lack."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"{what}: {error}.") from None


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror}.") from None


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a run, from `config.toml`, those in the section of its strategy included."""
    if not is_run_folder(path):
        below = ", ".join(map(str, run_folders(path, levels=2)[:5]))
        hint = f"; there are runs below it: {below}." if below else "."
        raise RunFolderError(f"{path} is not a run folder: it holds no config.toml{hint}")
    file = path / CONFIG
    with _refusing(f"{file} is damaged"):
        settings = tomllib.loads(_read_bytes(file).decode("utf-8"))
        settings |= settings.pop(str(settings.get("strategy")), {})
    if not isinstance(settings.get("strategy"), str):
        raise RunFolderError(f"{file} is damaged: it names no strategy.")
    return settings


def read_marks(path: Path) -> dict[str, Any] | None:
    """What a run was begun with (`runs/resumption.py`); None if that is not on record."""
    file = path / MARKS
    if not file.exists():
        return None
    with _refusing(f"{file} is damaged"):
        found: dict[str, Any] = json.loads(_read_bytes(file))
    return found


def read_best(path: Path) -> State:
    """The model of a finished run that had the best test."""
    finished = read_finished(path)
    if finished is not None and finished[0].best_is_delivered:
        return read_delivered(path)[0]
    if not (path / BEST).exists():
        raise RunFolderError(f"{path} does not hold the model of its best test.")
    with _refusing(f"{path} is damaged and cannot be read"):
        return load_file(path / BEST)


def read_delivered(path: Path) -> tuple[State, SampleForm]:
    """The model of a finished run, and the inputs it takes.

    Of a run that diverged this is the last good model.
    """
    if not (path / SUMMARY).exists() and not (path / DIVERGED).exists():
        raise RunFolderError(f"{path} is not finished; `adaptcl resume {path}` goes on with it.")
    with _refusing(f"{path} is damaged and cannot be read"):
        return load_file(path / MODEL), _read_inputs(path)


def read_sub_models(path: Path) -> SubModels:
    """The workers' sub-models in a run that may still go on."""
    with _refusing(f"{path} is damaged and cannot be read"):
        tree = storage.load(path / SUB_MODELS)
        if "units" not in tree:
            raise RunFolderError(
                f"{path / SUB_MODELS} was written by another version of AdaptCL; read it with that "
                "version."
            )
        return SubModels.from_tree(tree)


def read_checkpoint(path: Path, accelerator: torch.device | None = None) -> Tree:
    """What a run goes on from; an error if another version of AdaptCL wrote it."""
    stored = storage.load(path / CHECKPOINT, accelerator)
    if not isinstance(stored, dict) or stored.get("format") != CHECKPOINT_FORMAT:
        raise RunFolderError(
            f"{path / CHECKPOINT} was written by another version of AdaptCL; begin the run again, "
            "or resume it with that version."
        )
    return stored


def read_unfinished(path: Path) -> tuple[State, SampleForm, int]:
    """The model of the last checkpoint, the inputs it takes, and the rounds before it.

    It is the model as the server holds it, also units that no worker keeps any more.
    """
    if not (path / CHECKPOINT).exists():
        raise RunFolderError(
            f"{path} has no checkpoint yet; `adaptcl resume {path}` goes on with it."
        )
    with _refusing(f"The checkpoint of {path} does not hold a model that can be loaded"):
        stored = read_checkpoint(path)
        run = stored["run"]
        # The model that would be delivered now: the mean of the latest ones, if there is one.
        state = run["evaluator"]["model"] or run["loop"]["strategy"]["state"]
        return dict(state), _read_inputs(path), int(stored["rounds"])


def read_described(path: Path) -> SampleForm | None:
    """What the samples of a run that has begun look like; None if it has not."""
    return _read_inputs(path) if (path / INPUTS).exists() else None


def _read_inputs(path: Path) -> SampleForm:
    return SampleForm.from_json(json.loads((path / INPUTS).read_bytes()))
