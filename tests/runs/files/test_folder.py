from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adaptcl import storage
from adaptcl.data.description import SampleForm
from adaptcl.errors import RunFolderError
from adaptcl.events import RoundFinished, UpdateArrived
from adaptcl.records import RoundRecord, Summary, WorkerRecord, summarise
from adaptcl.runs.files.folder import RunFolder
from adaptcl.runs.files.run_files import (
    is_run_folder,
    read_delivered,
    read_finished,
    read_settings,
    read_sub_models,
    run_folders,
)
from adaptcl.runs.files.sub_models import SubModels
from tests.processes import PATIENCE_S, started


def record(number: int, accuracy: float | None = None) -> RoundRecord:
    worker = WorkerRecord(0, 1.0, 2.0, 3.0, 6.0, 1.0, 0.0, bytes_sent=10, bytes_received=7)
    return RoundRecord(
        number, 6.0 * number, accuracy, 0.5 / number, (worker,), bytes_sent=10, bytes_received=7
    )


def summary(*records: RoundRecord) -> Summary:
    return summarise(
        records,
        strategy="fedavg",
        wall_time_s=1.0,
        retention=(1.0,),
        params_saved=0.0,
        flops_saved=0.0,
        seed=1,
        workers=1,
        model="small",
        data="digits",
    )


CONFIG = 'rounds = 3\nstrategy = "fedavg"\n'
INPUTS = SampleForm((1, 8, 8), "uint8", (0.5,), (0.25,), ("cat", "dog"))
WHOLE = SubModels({"layers": []}, (torch.ones(0, dtype=torch.bool),), (0,))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "deep" / "run", CONFIG)


def files(folder: RunFolder) -> set[str]:
    return {p.name for p in folder.path.iterdir() if not p.name.startswith(".")}


# A folder for one run --------------------------------------------------------------------------


def test_a_new_folder_holds_the_configuration(folder: RunFolder) -> None:
    assert (folder.path / "config.toml").read_text() == CONFIG
    assert files(folder) == {"config.toml"}
    assert folder.left_off() == (None, [])
    assert read_finished(folder.path) is None


def test_going_on_with_a_run_removes_what_a_killed_process_left_half_written(
    folder: RunFolder,
) -> None:
    folder.close()
    for name in (".checkpoint.safetensors.0f.partial", ".tmpzyzwlC"):
        (folder.path / name).write_text("half")
    RunFolder.open(folder.path).close()
    assert {p.name for p in folder.path.iterdir()} == {"config.toml", ".lock"}


def test_a_folder_that_was_there_before_the_run_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / ".tmpmine").write_text("mine")
    RunFolder.create(tmp_path, "").close()
    assert (tmp_path / ".tmpmine").exists()


def test_no_run_is_ever_written_over_another(folder: RunFolder) -> None:
    folder.close()
    with pytest.raises(RunFolderError) as refused:
        RunFolder.create(folder.path, "")
    assert str(refused.value) == (
        f"{folder.path} already holds a run; choose another folder, or go on with it by "
        f"`adaptcl resume {folder.path}`, from Python by resume=True."
    )
    assert (folder.path / "config.toml").read_text() == CONFIG


@pytest.mark.parametrize("below", ["", "fedavg"])
def test_no_run_is_ever_put_around_others(tmp_path: Path, below: str) -> None:
    for name in "dbca":
        RunFolder.create(tmp_path / "runs" / name / below, "").close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunFolderError) as refused:
        RunFolder.create(tmp_path / "runs", "")
    named = ", ".join(str(Path(name, below)) for name in "abc")
    assert str(refused.value) == (
        f"{tmp_path / 'runs'} already holds runs ({named}, …); choose another folder, or go on "
        f"with them by `adaptcl resume {tmp_path / 'runs'}`."
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_stands_for_its_own_run_or_for_those_just_below_it(tmp_path: Path) -> None:
    names = [tmp_path / "deep" / name for name in ("one", "two")]
    for path in reversed(names):
        RunFolder.create(path, "").close()
    (tmp_path / "deep" / "figures").mkdir()
    (tmp_path / "deep" / "odd" / "config.toml").mkdir(parents=True)
    assert run_folders(names[0]) == [names[0]]
    assert run_folders(tmp_path / "deep") == names
    for none in (tmp_path, tmp_path / "deep" / "figures", tmp_path / "absent"):
        assert run_folders(none) == []


def test_runs_are_found_as_many_levels_below_as_asked_for(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "seed-1/adaptcl", "seed-2/adaptcl")]
    for path in (*reversed(runs), tmp_path / "too" / "deep" / "run"):
        RunFolder.create(path, "").close()
    without_hidden_files = tmp_path / "seed-2" / "copied"
    without_hidden_files.mkdir()
    for name in ("config.toml", "rounds.jsonl"):
        (without_hidden_files / name).touch()
    of_another_program = tmp_path / "program" / "settings" / "config.toml"
    of_another_program.parent.mkdir(parents=True)
    of_another_program.touch()
    assert run_folders(tmp_path) == [runs[0]]
    assert run_folders(tmp_path, levels=2) == [*runs, without_hidden_files]


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"file cannot be made: Not a directory\.$"):
        RunFolder.create(tmp_path / "file", "")
    with pytest.raises(RunFolderError, match=r"cannot be made: Not a directory\.$"):
        RunFolder.create(tmp_path / "file" / "run", "")
    (tmp_path / "odd" / ".lock").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"odd cannot be written to: Is a directory\.$"):
        RunFolder.create(tmp_path / "odd", "")


def test_before_anything_is_made_an_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"x cannot be made: Not a directory\.$"):
        RunFolder.refuse_unusable(tmp_path / "file" / "x")
    RunFolder.refuse_unusable(tmp_path / "deep" / "run")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_only_a_run_folder_can_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunFolderError, match="is not a run folder: it holds no config"):
            RunFolder.open(path)


def test_a_folder_in_which_even_a_superuser_can_make_nothing_is_refused() -> None:
    with pytest.raises(RunFolderError, match=r"^/proc/nope cannot be made: "):
        RunFolder.refuse_unusable(Path("/proc/nope"))


def test_two_at_once_cannot_write_to_one_folder(folder: RunFolder) -> None:
    with pytest.raises(RunFolderError) as refused:
        RunFolder.open(folder.path)
    sentence = f"{folder.path} is being written by another process; the run goes on already."
    assert str(refused.value) == sentence
    folder.close()
    RunFolder.open(folder.path).close()


def hold(path: Path, held: Path) -> None:
    """Have a folder until the process is killed."""
    folder = RunFolder.create(path, "")
    held.touch()
    time.sleep(PATIENCE_S)
    folder.close()


@pytest.mark.slow
def test_a_process_that_is_killed_lets_go_of_its_folder(tmp_path: Path) -> None:
    held = tmp_path / "held"
    with started(hold, tmp_path / "run", held) as other:
        limit = time.monotonic() + PATIENCE_S
        while not held.exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
        with pytest.raises(RunFolderError, match="is being written by another process"):
            RunFolder.open(tmp_path / "run")
        other.kill()
    RunFolder.open(tmp_path / "run").close()


# Rounds ----------------------------------------------------------------------------------------


def test_every_finished_round_is_one_line(folder: RunFolder) -> None:
    for event in (
        RoundFinished(record(1)),
        UpdateArrived(0, 2, 7.0),
        RoundFinished(record(2, 0.5)),
    ):
        folder.record(event)
    lines = (folder.path / "rounds.jsonl").read_text().splitlines()
    assert [RoundRecord.from_json(json.loads(line)) for line in lines] == [
        record(1),
        record(2, 0.5),
    ]


def test_rounds_after_the_checkpoint_are_dropped(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        folder.record(RoundFinished(record(number)))
        if number == 2:
            folder.save_checkpoint({"number": 2})
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "virtu')
    folder.close()
    again = RunFolder.open(folder.path)
    assert again.left_off() == ({"number": 2}, [record(1), record(2)])
    assert len((folder.path / "rounds.jsonl").read_text().splitlines()) == 2
    again.record(RoundFinished(record(3)))
    again.save_checkpoint({"number": 3})
    assert again.left_off() == ({"number": 3}, [record(1), record(2), record(3)])


def test_without_a_checkpoint_a_run_begins_anew(folder: RunFolder) -> None:
    folder.record(RoundFinished(record(1)))
    assert folder.left_off() == (None, [])
    assert (folder.path / "rounds.jsonl").read_bytes() == b""


def test_a_checkpoint_of_another_version_is_refused_and_left_alone(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.record(RoundFinished(record(1)))
    with monkeypatch.context() as other:
        other.setattr("adaptcl.runs.files.folder.CHECKPOINT_FORMAT", 0)
        folder.save_checkpoint({"number": 1})
    before = {each.name: each.read_bytes() for each in folder.path.iterdir()}
    for read in (folder.left_off, folder.checkpoint):
        with pytest.raises(RunFolderError) as refused:
            read()
        assert str(refused.value) == (
            f"{folder.path / 'checkpoint.safetensors'} was written by another version of AdaptCL; "
            "begin the run again, or resume it with that version."
        )
    assert {each.name: each.read_bytes() for each in folder.path.iterdir()} == before


@pytest.mark.parametrize(
    "damaged",
    [
        lambda good: good.splitlines(keepends=True)[0] + b"not json\n",
        lambda good: good.splitlines(keepends=True)[0] + b'{"round": 1}\n',
        lambda good: good.splitlines(keepends=True)[0],
        lambda good: good.splitlines(keepends=True)[0] + b"\xff\n",
        # Still a round, but not the one that was written.
        lambda good: good.replace(b"6.0", b"6.1", 1),
    ],
)
def test_rounds_that_are_damaged_are_refused_and_left_alone(
    folder: RunFolder, damaged: Callable[[bytes], bytes]
) -> None:
    for number in (1, 2):
        folder.record(RoundFinished(record(number)))
    folder.save_checkpoint(None)
    path = folder.path / "rounds.jsonl"
    path.write_bytes(damaged(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(RunFolderError) as refused:
        folder.left_off()
    assert str(refused.value) == (
        f"{path} is damaged: it does not hold the 2 rounds before the checkpoint as they were "
        "written; put back a copy of it, or delete checkpoint.safetensors beside it to begin anew."
    )
    assert path.read_bytes() == before


def test_a_full_disk_is_told_of_and_the_folder_stays_as_it_was(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.record(RoundFinished(record(1)))
    folder.save_checkpoint({"number": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        for write in (
            lambda: folder.record(RoundFinished(record(2))),
            lambda: folder.save_checkpoint({"number": 2}),
            lambda: folder.finish(summary(record(1, 0.5)), {"w": torch.zeros(2)}, INPUTS, WHOLE),
            folder.left_off,
        ):
            with pytest.raises(RunFolderError, match="cannot be written: No space left on device"):
                write()
    assert folder.left_off() == ({"number": 1}, [record(1)])
    assert files(folder) == {"config.toml", "rounds.jsonl", "checkpoint.safetensors"}


# The end ---------------------------------------------------------------------------------------


def test_the_end_is_a_summary_and_a_model_and_no_checkpoint(folder: RunFolder) -> None:
    folder.record(RoundFinished(record(1, 0.5)))
    folder.save_checkpoint(None)
    model = {"weight": torch.randn(3, 2).T, "steps": torch.tensor(4)}
    folder.finish(summary(record(1, 0.5)), model, INPUTS, WHOLE)
    assert files(folder) == {
        *("config.toml", "rounds.jsonl", "summary.json"),
        *("model.safetensors", "inputs.json", "sub-models.safetensors"),
    }
    loaded = load_file(folder.path / "model.safetensors")
    assert all(torch.equal(loaded[name], model[name]) for name in model)
    finished = read_finished(folder.path)
    assert finished is not None
    assert finished == (summary(record(1, 0.5)), (record(1, 0.5),))
    state, inputs = read_delivered(folder.path)
    assert state.keys() == model.keys()
    assert inputs == INPUTS
    assert read_sub_models(folder.path).of_worker == (0,)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("summary.json", read_finished),
        ("rounds.jsonl", read_finished),
        ("model.safetensors", read_delivered),
        ("inputs.json", read_delivered),
        ("sub-models.safetensors", read_sub_models),
        ("config.toml", read_settings),
    ],
)
def test_a_finished_folder_that_is_damaged_is_told_of(
    folder: RunFolder, name: str, read: Callable[[Path], object]
) -> None:
    folder.record(RoundFinished(record(1, 0.5)))
    folder.finish(summary(record(1, 0.5)), {"w": torch.zeros(2)}, INPUTS, WHOLE)
    (folder.path / name).write_bytes(b"{]")
    with pytest.raises(RunFolderError, match="damaged"):
        read(folder.path)


def test_sub_models_of_another_version_are_refused_and_the_model_is_read(folder: RunFolder) -> None:
    folder.record(RoundFinished(record(1, 0.5)))
    folder.finish(summary(record(1, 0.5)), {"w": torch.zeros(2)}, INPUTS, WHOLE)
    storage.save(folder.path / "sub-models.safetensors", {"slots": []})
    with pytest.raises(RunFolderError, match="was written by another version of AdaptCL; read it"):
        read_sub_models(folder.path)
    assert read_delivered(folder.path)[0].keys() == {"w"}


def test_a_summary_follows_from_the_rounds() -> None:
    told = summary(record(1, 0.4), record(2, 0.9), record(3, 0.9), record(4), record(5, 0.6))
    assert (told.accuracy, told.best_accuracy, told.best_round) == (0.6, 0.9, 2)
    assert (told.best_virtual_time_s, told.virtual_time_s, told.rounds) == (12.0, 30.0, 5)
    assert (told.heterogeneity_first, told.heterogeneity_last) == (0.5, 0.1)
    assert (told.bytes_sent, told.bytes_received) == (50, 35)
    assert told.updates == (5,)


def test_the_first_heterogeneity_is_that_of_the_first_round_that_has_one() -> None:
    rounds = [record(1, 0.4), record(2, 0.5), record(3, 0.6)]
    late = [replace(each, heterogeneity=None) for each in rounds[:2]]
    told = summary(*late, rounds[2])
    assert told.heterogeneity_first == told.heterogeneity_last == rounds[2].heterogeneity
    assert summary(*late).heterogeneity_first == 0


def test_a_folder_beside_other_programs_settings_is_free(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.toml").write_text("[tool]\n")
    RunFolder.refuse_unusable(tmp_path)


def test_what_kind_of_run_it_is_is_written_before_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def full_disk(self: RunFolder, name: str, text: str) -> None:
        written.append(name)
        if name == "config.toml":
            raise RunFolderError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_write_text", full_disk)
        with pytest.raises(RunFolderError):
            RunFolder.create(tmp_path / "run", "", {"network.toml": ""})
    assert written == ["network.toml", "config.toml"]
    assert not is_run_folder(tmp_path / "run")
    RunFolder.create(tmp_path / "run", "", {"network.toml": "a = 1"}).close()
    assert (tmp_path / "run" / "network.toml").read_text() == "a = 1"
