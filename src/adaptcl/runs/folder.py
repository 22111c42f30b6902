"""The folder of a run: the names of its files, how they are read, and how a run writes them.

A run locks its folder while it writes, and the folder is complete at every moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from adaptcl import storage
from adaptcl.data.samples import Inputs
from adaptcl.errors import RunFolderError
from adaptcl.events import Event, RoundFinished
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.sub_models import SubModels
from adaptcl.storage import Tree
from adaptcl.units import State

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
LOCK = ".lock"
MARKS = ".begun-with.json"
CHECKPOINT = "checkpoint.safetensors"
KEPT = "longer.safetensors"
"""The checkpoint from before the last round, for a run that gets more rounds."""
BEST = "best.safetensors"
KEPT_BEST = "longer-best.safetensors"
"""The best model from before the last round, for a run that gets more rounds."""
DIVERGED = ".diverged"
"""There while a run that diverged holds its last good model."""
SUMMARY = "summary.json"
INPUTS = "inputs.json"
FIGURES = "figures"
"""The folder of figures beside a run, or beside the runs of several strategies."""
NETWORK_FILE = "network.toml"


@dataclass(frozen=True)
class NetworkFile:
    """`network.toml`: what `adaptcl server` needs to resume a run beside its settings."""

    run: str
    """The name by which workers know the run."""
    listen: str
    tls: str
    patience: float
    job: str = ""
    """A name that the runs of one command share. The same workers do them one after the other."""
    turn: int = 0
    """The position of the run among those of its command."""

    def to_toml(self) -> str:
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> NetworkFile:
        try:
            return cls(**tomllib.loads((folder / NETWORK_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunFolderError(f"{folder} does not hold a run of `adaptcl server`.") from None
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{folder / NETWORK_FILE} cannot be read: {error}.") from None


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
    if not (path / SUMMARY).exists():
        return None
    try:
        summary = Summary.from_json(json.loads((path / SUMMARY).read_bytes()))
        lines = (path / ROUNDS).read_bytes().splitlines()
        records = tuple(RoundRecord.from_json(json.loads(line)) for line in lines)
        return summary, records
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a run, from `config.toml`."""
    if not is_run_folder(path):
        raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
    try:
        return tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / CONFIG} is damaged and cannot be read: {error}.") from None


def read_marks(path: Path) -> dict[str, Any] | None:
    """What a run was begun with (`runs/resumption.py`); None if that is not on record."""
    file = path / MARKS
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged and cannot be read: {error}.") from None
    return found


def read_best(path: Path) -> State:
    """The model of a finished run that had the best test."""
    finished = read_finished(path)
    if finished is not None and finished[0].best_round == finished[0].rounds:
        return read_delivered(path)[0]
    if not (path / BEST).exists():
        raise RunFolderError(f"{path} does not hold the model of its best test.")
    try:
        return load_file(path / BEST)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def read_delivered(path: Path) -> tuple[State, Inputs, SubModels]:
    """The model of a finished run, the inputs it takes, and the workers' sub-models.

    Of a run that diverged this is the last good model.
    """
    if not (path / SUMMARY).exists() and not (path / DIVERGED).exists():
        raise RunFolderError(f"{path} is not finished; `adaptcl resume {path}` goes on with it.")
    try:
        state = load_file(path / "model.safetensors")
        inputs = _read_inputs(path)
        sub_models = SubModels.from_tree(storage.load(path / "sub-models.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None
    return state, inputs, sub_models


def read_unfinished(path: Path) -> tuple[State, Inputs, int]:
    """The model of the last checkpoint, the inputs it takes, and the rounds before it.

    It is the model as the server holds it, also units that no worker keeps any more.
    """
    found = [file for name in (CHECKPOINT, KEPT) if (file := path / name).exists()]
    if not found:
        raise RunFolderError(
            f"{path} has no checkpoint yet; `adaptcl resume {path}` goes on with it."
        )
    try:
        stored = storage.load(found[0])
        run = stored["run"]
        # The model that would be delivered now: the mean of the latest ones, if there is one.
        state = run["evaluator"]["model"] or run["loop"]["strategy"]["state"]
        return dict(state), _read_inputs(path), int(stored["rounds"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(
            f"The checkpoint of {path} does not hold a model that can be loaded: {error}."
        ) from None


def _read_inputs(path: Path) -> Inputs:
    return Inputs.from_json(json.loads((path / INPUTS).read_bytes()))


class RunFolder:
    """The folder of one run, locked while the run writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self._rounds, self._rounds_crc32 = 0, 0
        """How many lines `rounds.jsonl` has, and the checksum of all of them."""

    @classmethod
    def create(cls, path: Path, config: str, before: Mapping[str, str] | None = None) -> RunFolder:
        """Make a folder for a new run with this configuration; never over an older run.

        A folder holds a run once `config.toml` is there. So files that say what kind of run it is
        are written `before` that, by name.
        """
        cls.refuse_occupied(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}.") from None
        folder = cls(path)
        try:
            # Check again: another process may have been faster, before the lock.
            cls.refuse_occupied(path)
            for name, text in {**(before or {}), CONFIG: config}.items():
                folder._write_text(name, text)
        except RunFolderError:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of a run to continue it."""
        if not is_run_folder(path):
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
        folder = cls(path)
        # Leftovers of a process that was killed while writing: ours and those of safetensors.
        for pattern in ("*.partial", ".tmp*"):
            for leftover in path.glob(pattern):
                leftover.unlink(missing_ok=True)
        return folder

    @staticmethod
    def refuse_occupied(path: Path) -> None:
        """An error if there is a run at `path` or just below it."""
        if (path / CONFIG).exists():
            raise RunFolderError(
                f"{path} already holds a run; choose another folder, or go on with it by "
                f"`adaptcl resume {path}`, from Python by resume=True."
            )
        # Other programs use config.toml too, but not our lock.
        if below := [each for each in run_folders(path) if (each / LOCK).exists()]:
            raise RunFolderError(
                f"{path} already holds runs ({_names(below)}); choose another folder, or go on "
                f"with them by `adaptcl resume {path}`."
            )

    def close(self) -> None:
        """Let another process write to the folder; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # Resuming ----------------------------------------------------------------------------------

    def left_off(
        self, accelerator: torch.device | None = None
    ) -> tuple[Tree | None, list[RoundRecord]]:
        """The checkpoint to go on from and the rounds before it; rounds after it are dropped.

        Before the first checkpoint this is None and no rounds. Tensors that lay on an accelerator
        go to the one given.
        """
        stored = self._stored(accelerator)
        if stored is None:
            return None, self._keep_rounds(0, 0)
        return stored["run"], self._keep_rounds(stored["rounds"], stored["rounds_crc32"])

    def _stored(self, accelerator: torch.device | None = None) -> Tree | None:
        # Only the kept one is there if the process ended before it wrote the next.
        found = [path for name in (CHECKPOINT, KEPT) if (path := self.path / name).exists()]
        return storage.load(found[0], accelerator) if found else None

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).exists()

    def change_settings(self, config: str, marks: dict[str, Any]) -> None:
        """Go on with other settings."""
        self._write_text(CONFIG, config)
        self.save_marks(marks)

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    def keep_checkpoint(self) -> None:
        """Set the checkpoint aside, for a run of more rounds."""
        if (self.path / CHECKPOINT).exists():
            (self.path / CHECKPOINT).replace(self.path / KEPT)

    def checkpoint_for_more(self) -> Tree | None:
        """The checkpoint that a run of more rounds can go on from, if there is one."""
        found = [path for name in (KEPT, CHECKPOINT) if (path := self.path / name).exists()]
        return storage.load(found[0])["run"] if found else None

    def begin_again(self, config: str, marks: dict[str, Any]) -> None:
        """Turn a run, even a finished one, into an unfinished run of more rounds."""
        # In this order: marks that agree with the configuration show that all steps are done.
        if (self.path / KEPT).exists():
            (self.path / KEPT).replace(self.path / CHECKPOINT)
        if (self.path / KEPT_BEST).exists():
            (self.path / KEPT_BEST).replace(self.path / BEST)
        self._write_text(CONFIG, config)
        (self.path / SUMMARY).unlink(missing_ok=True)
        self.save_marks(marks)

    def save_checkpoint(self, run: Tree) -> None:
        """Replace the checkpoint by one that follows the recorded rounds."""
        stored = {"rounds": self._rounds, "rounds_crc32": self._rounds_crc32, "run": run}
        storage.save(self.path / CHECKPOINT, stored)

    def _keep_rounds(self, count: int, crc32: int) -> list[RoundRecord]:
        path = self.path / ROUNDS
        lines = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        content = b"".join(lines)
        if len(lines) < count or zlib.crc32(content) != crc32:
            raise RunFolderError(
                f"{path} is damaged: it does not hold the {count} rounds before the checkpoint as "
                "they were written; put back a copy of it, or delete checkpoint.safetensors "
                "beside it to begin anew."
            )
        records = [RoundRecord.from_json(json.loads(line)) for line in lines]
        self._write(ROUNDS, content)
        self._rounds, self._rounds_crc32 = count, crc32
        return records

    def marks(self) -> dict[str, Any] | None:
        """What the run was begun with, if that is on record."""
        return read_marks(self.path)

    def save_marks(self, marks: dict[str, Any]) -> None:
        """Record what the run is begun with, for when it is resumed."""
        self._write_text(MARKS, json.dumps(marks) + "\n")

    # Writing -----------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Listen to events: each finished round becomes a line of `rounds.jsonl`."""
        if isinstance(event, RoundFinished):
            line = json.dumps(event.record.to_json(), allow_nan=False).encode() + b"\n"
            try:
                with (self.path / ROUNDS).open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunFolderError(
                    f"{self.path / ROUNDS} cannot be written: {error.strerror}."
                ) from None
            self._rounds += 1
            self._rounds_crc32 = zlib.crc32(line, self._rounds_crc32)

    def save_inputs(self, inputs: Inputs) -> None:
        """Record what the model takes."""
        self._write_text(INPUTS, json.dumps(inputs.to_json(), indent=2) + "\n")

    def save_best(self, model: State, round_: int) -> None:
        """Replace the best model by that of a round."""
        # One key alone: safetensors writes several in any order, and equal runs have equal files.
        self._save_model(BEST, model, {"round": str(round_)})

    def _settle_best(self, summary: Summary, *, keep: bool) -> None:
        """Leave a best model only if it is another one than the delivered."""
        if not (self.path / BEST).exists():
            return
        if summary.best_round == summary.rounds:
            if keep:
                (self.path / BEST).replace(self.path / KEPT_BEST)
            else:
                (self.path / BEST).unlink()
            return
        with safe_open(self.path / BEST, "pt") as file:
            round_ = int(file.metadata()["round"])
        # Across a network, a round that was lost in a crash may end differently when it is redone.
        if round_ != summary.best_round:
            (self.path / BEST).unlink()

    def _save_model(self, name: str, model: State, header: dict[str, str]) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.items()}
        storage.save_tensors(self.path / name, tensors, header)

    def keep_last_good(self, model: State, inputs: Inputs, sub_models: SubModels) -> None:
        """Write the model of a run that diverged. The run stays unfinished and can go on."""
        self._deliver(model, inputs, sub_models)
        self._write_text(DIVERGED, "")

    def _deliver(self, model: State, inputs: Inputs, sub_models: SubModels) -> None:
        self._save_model("model.safetensors", model, {"format": "pt"})
        self.save_inputs(inputs)
        storage.save(self.path / "sub-models.safetensors", sub_models.to_tree())

    def finish(
        self,
        summary: Summary,
        model: State,
        inputs: Inputs,
        sub_models: SubModels,
        *,
        keep_checkpoint: bool = False,
    ) -> None:
        """Write the results. The checkpoint is kept only for a run of more rounds."""
        self._deliver(model, inputs, sub_models)
        self._settle_best(summary, keep=keep_checkpoint)
        text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
        self._write_text(SUMMARY, text + "\n")
        if keep_checkpoint:
            self.keep_checkpoint()
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        (self.path / DIVERGED).unlink(missing_ok=True)

    def _write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        partial = self.path / f"{name}.partial"
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise RunFolderError(
                f"{self.path / name} cannot be written: {error.strerror}."
            ) from None


def _names(folders: Sequence[Path], most: int = 3) -> str:
    """The first few names; there may be hundreds of runs."""
    named = ", ".join(folder.name for folder in folders[:most])
    return f"{named}, …" if len(folders) > most else named


def _lock(path: Path) -> int:
    """Lock the folder for this process; the system unlocks it however the process ends."""
    try:
        handle = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written to: {error.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise RunFolderError(f"{path} is being written by another process.") from None
    return handle
