from __future__ import annotations

import errno
import math
import os
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptcl import storage as snapshot
from adaptcl.errors import RunFolderError, SettingError
from adaptcl.storage import Remembered, written_whole

TYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8)
TENSORS = st.builds(
    lambda shape, kind: (torch.randn(shape) * 9).to(kind),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(TYPES),
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TENSORS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Equal, with tensors and NaN compared by what they hold."""
    if isinstance(one, Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(TREES)
def test_what_is_saved_is_read_back_exactly(tmp_path: Path, tree: Any) -> None:
    snapshot.save(tmp_path / "tree", tree)
    assert alike(tree, snapshot.load(tmp_path / "tree"))


def test_what_lay_on_an_accelerator_goes_to_one_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The one device besides the processor that every machine has keeps no numbers to be saved.
    numbers = torch.arange(3.0)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: numbers if self.is_meta else self)
    tree = {"model": [torch.empty(3, device="meta")], "kept": torch.ones(4, dtype=torch.bool)}
    snapshot.save(tmp_path / "tree", tree)
    monkeypatch.undo()
    here = snapshot.load(tmp_path / "tree")
    assert torch.equal(here["model"][0], numbers)
    there = snapshot.load(tmp_path / "tree", torch.device("meta"))
    assert there["model"][0].is_meta
    assert there["kept"].device.type == "cpu"


def test_tensors_that_share_memory_are_saved_as_they_are(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    tree = {"whole": whole, "row": whole[1], "turned": whole.T, "again": whole}
    snapshot.save(tmp_path / "tree", tree)
    assert alike(tree, snapshot.load(tmp_path / "tree"))


def test_the_same_tree_is_always_the_same_file(tmp_path: Path) -> None:
    tree = {"number": 1, "t": torch.arange(9)}
    for name in ("one", "other"):
        snapshot.save(tmp_path / name, tree)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_who_may_read_a_snapshot_is_for_the_umask_to_say(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        snapshot.save(tmp_path / "tree", {"t": torch.zeros(3)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "tree").stat().st_mode) == mode


def test_where_there_is_none_the_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="tree does not exist"):
        snapshot.load(tmp_path / "tree")


@pytest.mark.parametrize("keep", [0, 8, 0.5])
def test_a_snapshot_cut_short_is_damaged(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "tree"
    snapshot.save(path, {"t": torch.randn(100), "x": [1, 2, 3]})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep == int(keep) else keep * len(content))])
    with pytest.raises(RunFolderError, match="tree is damaged and cannot be read"):
        snapshot.load(path)


@pytest.fixture(scope="module")
def snapshot_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "tree"
    tree = {"weights": torch.randn(7, 3), "round": 12, "kept": torch.ones(5, dtype=torch.bool)}
    snapshot.save(path, tree)
    return path


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_single_flipped_bit_is_noticed_wherever_it_is(
    snapshot_file: Path, place: float, bit: int
) -> None:
    content = bytearray(snapshot_file.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    damaged = snapshot_file.with_name("damaged")
    damaged.write_bytes(content)
    with pytest.raises(RunFolderError, match="damaged is damaged and cannot be read"):
        snapshot.load(damaged)


def test_the_sentence_on_a_flipped_bit_says_what_to_do(snapshot_file: Path) -> None:
    content = bytearray(snapshot_file.read_bytes())
    content[-1] ^= 1
    damaged = snapshot_file.with_name("flipped")
    damaged.write_bytes(content)
    with pytest.raises(RunFolderError) as refused:
        snapshot.load(damaged)
    assert str(refused.value) == (
        f"{damaged} is damaged and cannot be read: its checksum is not that of its content; put "
        "back a copy of it, or delete it to begin anew."
    )


def test_what_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"^\S+ cannot be read: "):
        snapshot.load(tmp_path)


def test_a_safetensors_file_that_is_no_snapshot_is_damaged(tmp_path: Path) -> None:
    snapshot.save_tensors(tmp_path / "model", {"t": torch.zeros(2)}, {"format": "pt"})
    with pytest.raises(RunFolderError, match="is damaged"):
        snapshot.load(tmp_path / "model")


def test_on_a_full_disk_the_old_snapshot_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tree"
    snapshot.save(path, {"number": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"tree cannot be written: No space left on device\.$"):
        snapshot.save(path, {"number": 2})
    assert snapshot.load(path) == {"number": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["tree"]


def test_a_folder_that_is_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be written: .*[Nn]o such file"):
        snapshot.save(tmp_path / "gone" / "tree", {"t": torch.zeros(3)})


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"answers": {0: 3}}, "a dictionary with the key 0, but keys must be texts"),
        ({"answers": {3}}, "A snapshot holds a set, but it must be made of"),
        ([object()], "A snapshot holds an object, but it must be made of"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused(
    tmp_path: Path, tree: object, sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        snapshot.save(tmp_path / "file", tree)
    assert not (tmp_path / "file").exists()


# One file ----------------------------------------------------------------------------------------


def test_a_file_appears_under_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with written_whole(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# Objects that are remembered ---------------------------------------------------------------------


class Part(Remembered):
    remembered = ("found",)

    def __init__(self) -> None:
        self.found: set[int] = set()


class Whole(Remembered):
    remembered = ("_number", "by_worker", "by_name", "times", "part", "_nobody", "counts", "deep")

    def __init__(self) -> None:
        self._number = 1
        self.by_worker: dict[int, float] = {}
        self.by_name: dict[str, Tensor] = {}
        self.times: list[list[float]] = [[], []]
        self.part = Part()
        self._nobody: Part | None = None
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.deep: object = None
        self.forgotten = 1


def test_what_is_remembered_comes_back_as_it_was_when_it_was_saved(tmp_path: Path) -> None:
    one, other = Whole(), Whole()
    one._number, one.by_worker, one.by_name = 2, {3: 0.5}, {"a": torch.ones(2)}
    one.times[1].append(7.0)
    one.part.found.update((5, 4))
    one.counts["a"] += 1
    one.deep = [{3}, (1, (2,)), {"x": {5: {6}}}]
    one.forgotten = 2
    tree = one.snapshot()
    one.times[1].append(8.0)
    one.part.found.clear()
    snapshot.save(tmp_path / "tree", tree)
    other.restore(snapshot.load(tmp_path / "tree"))
    assert (other._number, other.by_worker, other.times) == (2, {3: 0.5}, [[], [7.0]])
    assert torch.equal(other.by_name["a"], torch.ones(2))
    assert (other.counts["a"], other.counts["b"]) == (1, 0)
    assert other.deep == [{3}, (1, (2,)), {"x": {5: {6}}}]
    assert (other.part.found, other._nobody, other.forgotten) == ({4, 5}, None, 1)
