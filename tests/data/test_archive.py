from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from adaptcl.data.download import Archive, extract
from adaptcl.errors import DataError


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    """A tar file of these members, each file holding b"content"."""
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 7 if member.isreg() else 0
            tar.addfile(member, io.BytesIO(b"content"))
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def zip_of(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return path


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "outer" / "data").mkdir(parents=True)
    return tmp_path / "outer" / "data"


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_tar_and_zip_files_are_unpacked_to_their_folder(tmp_path: Path, data_dir: Path) -> None:
    tar = tar_of(tmp_path / "x.tar.gz", tarfile.TarInfo("a/deep/file"), tarfile.TarInfo("aside"))
    assert (extract(tar, "a", data_dir) / "deep" / "file").read_bytes() == b"content"
    archive = zip_of(tmp_path / "x.zip", "b/deep/file")
    assert (extract(archive, "b", data_dir) / "deep" / "file").read_bytes() == b"content"
    assert {path.name for path in data_dir.iterdir()} == {"a", "b"}


@pytest.mark.parametrize(
    "members",
    [
        [tarfile.TarInfo("a/file"), tarfile.TarInfo("../escaped")],
        [tarfile.TarInfo("a/file"), tarfile.TarInfo("/tmp/escaped")],
        [tarfile.TarInfo("a/file"), tarfile.TarInfo("a/../../escaped")],
        [tarfile.TarInfo("a/file"), link("a/out", "../../.."), tarfile.TarInfo("a/out/escaped")],
        [tarfile.TarInfo("a/file"), link("a/out", "/etc/passwd", tarfile.LNKTYPE)],
        [tarfile.TarInfo("a/file"), link("a/pipe", "", tarfile.FIFOTYPE)],
    ],
    ids=["parent", "absolute", "hidden parent", "symbolic link", "hard link", "pipe"],
)
def test_a_malicious_tar_file_is_refused_and_leaves_nothing(
    tmp_path: Path, data_dir: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(DataError, match="unpack"):
        extract(tar_of(tmp_path / "evil.tar.gz", *members), "a", data_dir)
    assert everything_below(tmp_path) == {"evil.tar.gz", "outer", "outer/data"}


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../x", "..\\x", "C:\\x"])
def test_a_malicious_zip_file_is_refused_and_leaves_nothing(
    tmp_path: Path, data_dir: Path, name: str
) -> None:
    with pytest.raises(DataError, match="not safe to unpack"):
        extract(zip_of(tmp_path / "evil.zip", "a/file", name), "a", data_dir)
    assert everything_below(tmp_path) == {"evil.zip", "outer", "outer/data"}


def test_archives_that_are_damaged_or_hold_something_else_are_refused(
    tmp_path: Path, data_dir: Path
) -> None:
    sound = tar_of(tmp_path / "x.tar.gz", tarfile.TarInfo("a/file"))
    with pytest.raises(DataError, match="holds no folder b"):
        extract(sound, "b", data_dir)
    sound.write_bytes(sound.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(sound, "a", data_dir)
    sound.write_bytes(b"plain text")
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(sound, "a", data_dir)
    assert list(data_dir.iterdir()) == []


def test_a_folder_that_is_already_there_is_not_touched(tmp_path: Path, data_dir: Path) -> None:
    (data_dir / "a").mkdir()
    (data_dir / "a" / "mine").touch()
    with pytest.raises(DataError, match="cannot be unpacked to"):
        extract(zip_of(tmp_path / "x.zip", "a/file"), "a", data_dir)
    assert everything_below(data_dir) == {"a", "a/mine"}


def test_an_archive_knows_its_file_name() -> None:
    assert Archive("https://example.org/x/y.zip", "0" * 32, "y").filename == "y.zip"
