"""The folder of a run, as the run writes it: locked, and complete at every moment."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from adaptcl import storage
from adaptcl.data.description import SampleForm
from adaptcl.errors import RunFolderError, listed
from adaptcl.events import Event, RoundFinished
from adaptcl.records import RoundRecord, Summary
from adaptcl.runs.files.provenance import PROVENANCE, with_provenance
from adaptcl.runs.files.run_files import (
    BEST,
    CHECKPOINT,
    CHECKPOINT_FORMAT,
    CONFIG,
    DIVERGED,
    INPUTS,
    LOCK,
    MARKS,
    MODEL,
    ROUNDS,
    SUB_MODELS,
    SUMMARY,
    is_run_folder,
    read_checkpoint,
    run_folders,
)
from adaptcl.runs.files.sub_models import SubModels
from adaptcl.storage import Tree
from adaptcl.units import State


class RunFolder:
    """The folder of one run, locked while the run writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        self._rounds, self._rounds_crc32 = 0, 0
        """How many lines `rounds.jsonl` has, and the checksum of all of them."""

    @classmethod
    def create(
        cls,
        path: Path,
        config: str,
        before: Mapping[str, str] | None = None,
        *,
        is_private: bool = False,
    ) -> RunFolder:
        """Make a folder for a new run with this configuration; never over an older run.

        A folder holds a run once `config.toml` is there. So files that say what kind of run it is
        are written `before` that, by name. Only its owner may look into a private one, unless
        the folder was there before.
        """
        cls.refuse_unusable(path)
        try:
            path.mkdir(0o700 if is_private else 0o777, parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}.") from None
        folder = cls(path)
        try:
            # Check again: another process may have been faster, before the lock.
            cls.refuse_unusable(path)
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
            raise RunFolderError(f"{path} is not a run folder: it holds no config.toml.")
        folder = cls(path)
        for pattern in storage.LEFTOVERS:
            for leftover in path.glob(pattern):
                leftover.unlink(missing_ok=True)
        return folder

    @staticmethod
    def refuse_unusable(path: Path) -> None:
        """An error if no folder can be made at `path`, or if there is a run there or below.

        Leaves nothing: whatever else is wrong with a command, it leaves no empty folder behind.
        """
        try:
            begun = (path / CONFIG).exists()
        except OSError as error:  # a name that is too long, say
            raise RunFolderError(f"{path!s:.60} cannot be made: {error.strerror}.") from None
        if begun:
            raise RunFolderError(
                f"{path} already holds a run; choose another folder, or go on with it by "
                f"`adaptcl resume {path}`, from Python by resume=True."
            )
        # Other programs use config.toml too, but not our lock.
        if below := [each for each in run_folders(path, 2) if (each / LOCK).exists()]:
            named = listed((str(each.relative_to(path)) for each in below), 3)
            raise RunFolderError(
                f"{path} already holds runs ({named}); choose another folder, or "
                f"go on with them by `adaptcl resume {path}`."
            )
        nearest = next(each for each in (path, *path.parents) if each.exists())
        try:
            # Only the system knows: a superuser, too, can make nothing in some folders.
            os.rmdir(tempfile.mkdtemp(dir=nearest))
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}.") from None

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
        if not (self.path / CHECKPOINT).exists():
            return None, self._keep_rounds(0, 0)
        stored = read_checkpoint(self.path, accelerator)
        return stored["run"], self._keep_rounds(stored["rounds"], stored["rounds_crc32"])

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).exists()

    def change(self, name: str, text: str) -> None:
        """Replace one of the files that say what kind of run it is."""
        self._write_text(name, text)

    def change_settings(self, config: str, marks: dict[str, Any]) -> None:
        """Go on with other settings."""
        self._write_text(CONFIG, config)
        self.save_marks(marks)

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    def checkpoint(self) -> Tree | None:
        """The checkpoint, if there is one."""
        there = (self.path / CHECKPOINT).exists()
        return read_checkpoint(self.path)["run"] if there else None

    def begin_again(self, config: str, marks: dict[str, Any]) -> None:
        """Turn a run, even a finished one, into an unfinished run of more rounds."""
        # In this order: marks that agree with the configuration show that all steps are done.
        self._write_text(CONFIG, config)
        (self.path / SUMMARY).unlink(missing_ok=True)
        self.save_marks(marks)

    def save_checkpoint(self, run: Tree) -> None:
        """Replace the checkpoint by one that follows the recorded rounds."""
        stored = {
            "format": CHECKPOINT_FORMAT,
            "rounds": self._rounds,
            "rounds_crc32": self._rounds_crc32,
            "run": run,
        }
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

    def save_marks(self, marks: dict[str, Any]) -> None:
        """Record what the run is begun with, for when it is resumed."""
        self._write_text(MARKS, json.dumps(marks) + "\n")

    # Writing -----------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """A listener: each finished round becomes a line of `rounds.jsonl`."""
        if isinstance(event, RoundFinished):
            line = json.dumps(event.record.to_json(), allow_nan=False).encode() + b"\n"
            path = self.path / ROUNDS
            with storage.refusing_unwritable(path), path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._rounds += 1
            self._rounds_crc32 = zlib.crc32(line, self._rounds_crc32)

    def save_inputs(self, inputs: SampleForm) -> None:
        """Record what the model takes."""
        self._write_text(INPUTS, json.dumps(inputs.to_json(), indent=2) + "\n")

    def note_provenance(self, first_round: int, device: str) -> None:
        """Write down which code goes on with this run from a round, and on which machine."""
        path = self.path / PROVENANCE
        self._write_text(PROVENANCE, with_provenance(path, first_round, device))

    def save_best(self, model: State, round_: int) -> None:
        """Replace the best model by that of a round."""
        # One key alone: safetensors writes several in any order, and equal runs have equal files.
        self._save_model(BEST, model, {"round": str(round_)})

    def _settle_best(self, summary: Summary, *, keep: bool) -> None:
        """Leave a best model only if it is another one than the delivered, or to `keep` it."""
        if not (self.path / BEST).exists():
            return
        is_needed = keep
        if not summary.best_is_delivered:
            with safe_open(self.path / BEST, "pt") as file:
                # A round on a real clock that was lost in a crash may end differently when it is
                # redone.
                is_needed = int(file.metadata()["round"]) == summary.best_round
        if not is_needed:
            (self.path / BEST).unlink()

    def _save_model(self, name: str, model: State, header: dict[str, str]) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.items()}
        storage.save_tensors(self.path / name, tensors, header)

    def keep_last_good(self, model: State, inputs: SampleForm, sub_models: SubModels) -> None:
        """Write the model of a run that diverged. The run stays unfinished and can go on."""
        self._deliver(model, inputs, sub_models)
        self._write_text(DIVERGED, "")

    def _deliver(self, model: State, inputs: SampleForm, sub_models: SubModels) -> None:
        self._save_model(MODEL, model, {"format": "pt"})
        self.save_inputs(inputs)
        self.save_sub_models(sub_models)

    def save_sub_models(self, sub_models: SubModels) -> None:
        """Replace what is known of the workers' sub-models."""
        storage.save(self.path / SUB_MODELS, sub_models.to_tree())

    def finish(
        self,
        summary: Summary,
        model: State,
        inputs: SampleForm,
        sub_models: SubModels,
        *,
        keep_checkpoint: bool = False,
    ) -> None:
        """Write the results. The checkpoint and the best model before the last round are kept only
        for a run of more rounds."""
        self._deliver(model, inputs, sub_models)
        self._settle_best(summary, keep=keep_checkpoint)
        text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
        self._write_text(SUMMARY, text + "\n")
        if not keep_checkpoint:
            (self.path / CHECKPOINT).unlink(missing_ok=True)
        (self.path / DIVERGED).unlink(missing_ok=True)

    def _write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        with storage.written_whole(self.path / name) as file:
            file.write(content)


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
        raise RunFolderError(
            f"{path} is being written by another process; the run goes on already."
        ) from None
    return handle
