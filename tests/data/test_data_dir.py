"""Downloading an archive and unpacking it, also from servers and archives that mean harm."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adaptcl.data.data_dir import Archive, extract, fetch
from adaptcl.errors import DataError, SettingError

BODY = bytes(range(256)) * 4096
MD5 = hashlib.md5(BODY).hexdigest()
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves BODY, with or without its length, cut short, or not at all."""

    def do_GET(self) -> None:
        if self.path == "/absent":
            self.send_error(404)
            return
        if self.path == "/garbage":
            self.wfile.write(b"this is not HTTP\r\n\r\n")
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[:100_000] if self.path == "/truncated" else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def note(calls: list[tuple[int, int | None]], done: int, total: int | None) -> None:
    calls.append((done, total))


def test_a_file_with_the_right_checksum_arrives(server: str, tmp_path: Path) -> None:
    for place, checksum in enumerate((MD5, SHA256, SHA256.upper())):
        calls: list[tuple[int, int | None]] = []
        progress = partial(note, calls)
        target = tmp_path / f"new folder {place}" / "body"
        assert fetch(f"{server}/body", checksum, target, progress) == target
        assert target.read_bytes() == BODY
        assert list(target.parent.iterdir()) == [target]
        assert calls[-1] == (len(BODY), len(BODY))
        assert calls == sorted(calls)


def test_a_server_that_does_not_tell_the_length_is_fine(server: str, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    fetch(f"{server}/unsized", MD5, tmp_path / "body", lambda *c: calls.append(c))
    assert calls[-1] == (len(BODY), None)


def test_a_file_address_can_be_fetched(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(BODY)
    target = fetch((tmp_path / "source").as_uri(), MD5, tmp_path / "copy")
    assert target.read_bytes() == BODY


def test_a_download_that_goes_wrong_leaves_nothing_behind(server: str, tmp_path: Path) -> None:
    for path, checksum, sentence in [
        ("/truncated", MD5, r"broke off after 100,000 of 1,048,576 bytes"),
        ("/body", "0" * 32, "md5 .* instead of 0000"),
        ("/body", "0" * 64, "sha256 .* instead of 0000"),
        ("/absent", MD5, "404 Not Found"),
        ("/garbage", MD5, "cannot be reached"),
    ]:
        with pytest.raises(DataError, match=sentence):
            fetch(server + path, checksum, tmp_path / "body")
        assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_an_error_about_the_network(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_address[1]
    with pytest.raises(DataError, match="is there a network"):
        fetch(f"http://127.0.0.1:{port}/body", MD5, tmp_path / "body")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(server: str, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(f"{server}/body", MD5, tmp_path / "body", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_an_error(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(f"{server}/body", MD5, tmp_path / "file" / "body")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_that_says_so(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda self, mode: opened(Path("/dev/full"), "wb"))
    with pytest.raises(DataError, match="cannot be written: No space left"):
        fetch(f"{server}/body", MD5, tmp_path / "body")


def test_a_file_that_is_already_there_is_not_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "body"
    target.write_bytes(BODY)
    assert fetch("http://127.0.0.1:9/unreachable", SHA256, target) == target


def test_a_wrong_file_in_its_place_is_replaced(server: str, tmp_path: Path) -> None:
    target = tmp_path / "body"
    target.write_bytes(b"something else")
    fetch(f"{server}/body", MD5, target)
    assert target.read_bytes() == BODY


def test_other_kinds_of_addresses_and_checksums_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="only http, https and file"):
        fetch("ftp://example.org/x", MD5, tmp_path / "x")
    with pytest.raises(SettingError, match="neither an MD5 nor a SHA-256"):
        fetch("http://example.org/x", "abc", tmp_path / "x")


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


def test_a_malicious_tar_file_is_refused_and_leaves_nothing(tmp_path: Path, data_dir: Path) -> None:
    for members in [
        [tarfile.TarInfo("../escaped")],
        [tarfile.TarInfo("/tmp/escaped")],
        [tarfile.TarInfo("a/../../escaped")],
        [link("a/out", "../../.."), tarfile.TarInfo("a/out/escaped")],
        [link("a/out", "/etc/passwd", tarfile.LNKTYPE)],
        [link("a/pipe", "", tarfile.FIFOTYPE)],
    ]:
        evil = tar_of(tmp_path / "evil.tar.gz", tarfile.TarInfo("a/file"), *members)
        with pytest.raises(DataError, match="unpack"):
            extract(evil, "a", data_dir)
        assert everything_below(tmp_path) == {"evil.tar.gz", "outer", "outer/data"}


def test_a_malicious_zip_file_is_refused_and_leaves_nothing(tmp_path: Path, data_dir: Path) -> None:
    for name in ("../escaped", "/tmp/escaped", "a/../../x", "..\\x", "C:\\x"):
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
