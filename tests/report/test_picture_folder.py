from __future__ import annotations

from pathlib import Path

import pytest

from adaptcl.report.picture_folder import save_pictures


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("[!.]*")}


def test_pictures_replace_those_of_the_last_report(tmp_path: Path) -> None:
    save_pictures({"a.png": b"1", "b.png": b"2"}, tmp_path)
    drawn = save_pictures({"a.png": b"3"}, tmp_path)
    assert drawn.paths == (tmp_path / "a.png",)
    assert (drawn.removed, drawn.others) == (("b.png",), ())
    assert names(tmp_path) == {"a.png"}
    assert (tmp_path / "a.png").read_bytes() == b"3"


def test_no_file_of_somebody_else_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.png").write_bytes(b"0")
    (tmp_path / "notes.txt").write_text("keep")
    save_pictures({"a.png": b"1", "b.png": b"2", "c.png": b"3"}, tmp_path)
    (tmp_path / "b.png").write_bytes(b"edited")
    (tmp_path / "c.png").unlink()
    drawn = save_pictures({"d.png": b"4"}, tmp_path)
    assert drawn.removed == ("a.png",)
    assert drawn.others == ("b.png", "mine.png")
    assert names(tmp_path) == {"b.png", "d.png", "mine.png", "notes.txt"}


@pytest.mark.parametrize("record", [b"", b"[]", b"{", b'{"../outside.png": 3523407757}'])
def test_a_record_that_is_not_ours_removes_nothing(tmp_path: Path, record: bytes) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (tmp_path / "outside.png").write_bytes(b"a")
    (folder / ".drawn.json").write_bytes(record)
    assert save_pictures({"a.png": b"1"}, folder).removed == ()
    assert (tmp_path / "outside.png").exists()
