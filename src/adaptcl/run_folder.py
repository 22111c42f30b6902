"""A run on disk: everything a run leaves behind, complete at every moment.

`config.toml` makes the run again, `rounds.jsonl` grows by a line a round, `checkpoint.safetensors`
is what `resume` goes on from, and `longer.safetensors` what it goes on from to more rounds than
there were; at the end `model.safetensors` appears, with `inputs.json` and `sub-models.safetensors`,
which say what it takes and which part each worker has, and last of all `summary.json`. Files are
replaced whole, so a process killed at any moment leaves a folder that can be resumed. What a run
goes on from, checkpoint and rounds, is checked against checksums; `config.toml` is not, as its
owner may have moved the data and say so there.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from adaptcl import snapshot
from adaptcl.errors import RunFolderError
from adaptcl.events import Event, RoundFinished
from adaptcl.inputs import Inputs
from adaptcl.records import RoundRecord, Summary, bytes_moved, first_and_last_heterogeneity
from adaptcl.snapshot import Tree
from adaptcl.sub_models import SubModels
from adaptcl.units import State

_LOCK = ".lock"
_TRACES = (_LOCK, "rounds.jsonl")
"""What every run leaves, if its folder was not copied without hidden files or before a round."""
_MARKS = ".begun-with.json"
_CHECKPOINT = "checkpoint.safetensors"
_KEPT = "longer.safetensors"
"""The checkpoint from before a run's last round, which more rounds can follow on."""
_SUMMARY = "summary.json"
FIGURES = "figures"
"""The folder of drawings beside what a run leaves, or beside the runs of several strategies."""


class RunFolder:
    """One run's folder, locked while a run writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self._rounds, self._rounds_crc32 = 0, 0
        """Of `rounds.jsonl`: how many lines, and the checksum of them all."""

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """A new folder for a run with this configuration; never over an older run."""
        cls.refuse_occupied(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}.") from None
        folder = cls(path)
        try:
            # Asked again: another process may have been quicker, before the lock.
            cls.refuse_occupied(path)
            folder._write_text("config.toml", config)
        except RunFolderError:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was begun before."""
        if not is_run_folder(path):
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
        folder = cls(path)
        # What a process killed in the middle of writing left: ours, and safetensors' own.
        for pattern in ("*.partial", ".tmp*"):
            for leftover in path.glob(pattern):
                leftover.unlink(missing_ok=True)
        return folder

    @staticmethod
    def refuse_occupied(path: Path) -> None:
        """An error if a new run cannot go to `path` because one is there, or just below."""
        if (path / "config.toml").exists():
            raise RunFolderError(
                f"{path} already holds a run; choose another folder, or go on with it by "
                f"`adaptcl resume {path}`, from Python by resume=True."
            )
        # Other programs have a config.toml too, but not our lock.
        if below := [each for each in run_folders(path) if (each / _LOCK).exists()]:
            raise RunFolderError(
                f"{path} already holds runs ({_names(below)}); choose another folder, or go on "
                f"with them by `adaptcl resume {path}`."
            )

    def close(self) -> None:
        """Let another process write to the folder."""
        os.close(self._lock)

    # Going on ----------------------------------------------------------------------------------

    def left_off(
        self, accelerator: torch.device | None = None
    ) -> tuple[Tree | None, list[RoundRecord]]:
        """The checkpoint to go on from and the rounds before it; rounds after it are dropped.

        Before the first checkpoint there are None and no rounds. What lay on an accelerator goes to
        the one given.
        """
        stored = self._stored(accelerator)
        if stored is None:
            return None, self._keep_rounds(0, 0)
        return stored["run"], self._keep_rounds(stored["rounds"], stored["rounds_crc32"])

    def _stored(self, accelerator: torch.device | None = None) -> Tree | None:
        # The kept one alone is there if the process ended before another was in its place.
        found = [path for name in (_CHECKPOINT, _KEPT) if (path := self.path / name).exists()]
        return snapshot.load(found[0], accelerator) if found else None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / _SUMMARY).exists()

    def keep_checkpoint(self) -> None:
        """Put the checkpoint by, for a run of more rounds."""
        if (self.path / _CHECKPOINT).exists():
            (self.path / _CHECKPOINT).replace(self.path / _KEPT)

    def checkpoint_for_more(self) -> Tree | None:
        """The checkpoint that a run of more rounds would go on from; None if there is none."""
        found = [path for name in (_KEPT, _CHECKPOINT) if (path := self.path / name).exists()]
        return snapshot.load(found[0])["run"] if found else None

    def begin_again(self, config: str, marks: dict[str, Any]) -> None:
        """Make a run, even a finished one, one of more rounds that is still to end."""
        # In this order: marks that agree with the configuration say that all of it is done.
        if (self.path / _KEPT).exists():
            (self.path / _KEPT).replace(self.path / _CHECKPOINT)
        self._write_text("config.toml", config)
        (self.path / _SUMMARY).unlink(missing_ok=True)
        self.save_marks(marks)

    def save_checkpoint(self, run: Tree) -> None:
        """Replace the checkpoint by one after the rounds that are on record."""
        stored = {"rounds": self._rounds, "rounds_crc32": self._rounds_crc32, "run": run}
        snapshot.save(self.path / _CHECKPOINT, stored)

    def _keep_rounds(self, count: int, crc32: int) -> list[RoundRecord]:
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        content = b"".join(lines)
        if len(lines) < count or zlib.crc32(content) != crc32:
            raise RunFolderError(
                f"{path} is damaged: it does not hold the {count} rounds before the checkpoint as "
                "they were written; put back a copy of it, or delete checkpoint.safetensors "
                "beside it to begin anew."
            )
        records = [RoundRecord.from_json(json.loads(line)) for line in lines]
        self._write("rounds.jsonl", content)
        self._rounds, self._rounds_crc32 = count, crc32
        return records

    def marks(self) -> dict[str, Any] | None:
        """What the run was begun with, if that was noted."""
        return read_marks(self.path)

    def save_marks(self, marks: dict[str, Any]) -> None:
        """Note what the run is begun with, for when it goes on."""
        self._write_text(_MARKS, json.dumps(marks) + "\n")

    # Writing -----------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Listen: a finished round is a line of `rounds.jsonl`."""
        if isinstance(event, RoundFinished):
            line = json.dumps(event.record.to_json(), allow_nan=False).encode() + b"\n"
            try:
                with (self.path / "rounds.jsonl").open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise RunFolderError(
                    f"{self.path / 'rounds.jsonl'} cannot be written: {error.strerror}."
                ) from None
            self._rounds += 1
            self._rounds_crc32 = zlib.crc32(line, self._rounds_crc32)

    def finish(
        self,
        summary: Summary,
        model: State,
        inputs: Inputs,
        sub_models: SubModels,
        *,
        keep_checkpoint: bool = False,
    ) -> None:
        """Write what the run ends with; the checkpoint is of use only to a run of more rounds."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.items()}
        snapshot.save_tensors(self.path / "model.safetensors", tensors, {"format": "pt"})
        self._write_text("inputs.json", json.dumps(inputs.to_json(), indent=2) + "\n")
        snapshot.save(self.path / "sub-models.safetensors", sub_models.to_tree())
        told = json.dumps(summary.to_json(), indent=2, allow_nan=False)
        self._write_text(_SUMMARY, told + "\n")
        if keep_checkpoint:
            self.keep_checkpoint()
        (self.path / _CHECKPOINT).unlink(missing_ok=True)

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


def is_run_folder(path: Path) -> bool:
    """Whether a run was begun in this folder."""
    return os.path.isfile(path / "config.toml")  # False, not an error, where nobody may look


def run_folders(path: Path, levels: int = 1) -> list[Path]:
    """The folder itself if it is a run's, else those up to so many levels below; by name."""
    if is_run_folder(path):
        return [path]
    found = [each.parent for each in path.glob("*/config.toml") if each.is_file()]
    for level in range(2, levels + 1):
        deeper = [each.parent for each in path.glob("*/" * level + "config.toml")]
        # The deeper, the likelier another program's config.toml; a run leaves more than that.
        found += [each for each in deeper if any((each / name).is_file() for name in _TRACES)]
    return sorted(found)


def read_finished(path: Path) -> tuple[Summary, tuple[RoundRecord, ...]] | None:
    """Summary and rounds that a finished run left in its folder; None if unfinished."""
    if not (path / _SUMMARY).exists():
        return None
    try:
        summary = Summary.from_json(json.loads((path / _SUMMARY).read_bytes()))
        lines = (path / "rounds.jsonl").read_bytes().splitlines()
        records = tuple(RoundRecord.from_json(json.loads(line)) for line in lines)
        return summary, records
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a run was begun with, as `config.toml` has them."""
    if not is_run_folder(path):
        raise RunFolderError(f"{path} is not a run folder: it has no config.toml.")
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path / 'config.toml'} is damaged and cannot be read: {error}."
        ) from None


def read_marks(path: Path) -> dict[str, Any] | None:
    """What a run is recognised by, as it was begun with; None if that was not noted."""
    file = path / _MARKS
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged and cannot be read: {error}.") from None
    return found


def read_delivered(path: Path) -> tuple[State, Inputs, SubModels]:
    """The model that a finished run left, what it takes, and the part that each worker has."""
    if not (path / _SUMMARY).exists():
        raise RunFolderError(f"{path} is not finished; `adaptcl resume {path}` goes on with it.")
    try:
        state = load_file(path / "model.safetensors")
        inputs = Inputs.from_json(json.loads((path / "inputs.json").read_bytes()))
        sub_models = SubModels.from_tree(snapshot.load(path / "sub-models.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None
    return state, inputs, sub_models


def summarise(records: Sequence[RoundRecord], **known: Any) -> Summary:
    """The figures of a run from its rounds, and those that the rounds do not tell."""
    measured = [r for r in records if r.accuracy is not None]
    best = max(measured, key=lambda r: (r.accuracy or 0.0, -r.round))
    sent, received = bytes_moved(records)
    first, last = first_and_last_heterogeneity(r.heterogeneity for r in records)
    used = Counter(w.worker for r in records for w in r.workers)
    return Summary(
        accuracy=measured[-1].accuracy or 0.0,
        best_accuracy=best.accuracy or 0.0,
        best_round=best.round,
        best_virtual_time_s=best.virtual_time_s,
        rounds=records[-1].round,
        virtual_time_s=records[-1].virtual_time_s,
        heterogeneity_first=first,
        heterogeneity_last=last,
        bytes_sent=sent,
        bytes_received=received,
        updates=tuple(used[worker] for worker in range(known["workers"])),
        **known,
    )


def _names(folders: Sequence[Path], most: int = 3) -> str:
    """The first few by name; a folder of runs may hold hundreds."""
    named = ", ".join(folder.name for folder in folders[:most])
    return f"{named}, …" if len(folders) > most else named


def _lock(path: Path) -> int:
    """Hold the folder for this process; the system lets go when the process ends, however."""
    try:
        handle = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written to: {error.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise RunFolderError(f"{path} is being written by another process.") from None
    return handle
