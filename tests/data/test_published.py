"""Getting published data sets, also from servers and archives that mean harm, and reading them."""

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

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptcl.data import DataSet, Samples, load, pack
from adaptcl.data.published import CIFAR10, TINY_STATISTICS, extract, fetch
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


def test_a_file_without_a_length_comes_in_the_place_of_a_wrong_one(
    server: str, tmp_path: Path
) -> None:
    target = tmp_path / "body"
    target.write_bytes(b"something else")
    calls: list[tuple[int, int | None]] = []
    fetch(f"{server}/unsized", MD5, target, partial(note, calls))
    assert calls[-1] == (len(BODY), None)
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


# CIFAR ------------------------------------------------------------------------------------------


def write_cifar10(data_dir: Path, pixels: NDArray[np.uint8]) -> Path:
    """Five batches of 4 images, 10 test images; image i of all has the label i % 10."""
    folder = data_dir / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    labels = (np.arange(30) % 10).astype(np.uint8)[:, None]
    records = np.concatenate([labels, pixels[:30]], axis=1)
    for batch in range(5):
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(
            records[4 * batch : 4 * batch + 4].tobytes()
        )
    (folder / "test_batch.bin").write_bytes(records[20:].tobytes())
    names = "\n".join(["airplane", "automobile", *"cdefghij"])
    (folder / "batches.meta.txt").write_text(names + "\n\n")
    return folder


def write_cifar100(data_dir: Path, pixels: NDArray[np.uint8]) -> Path:
    """Coarse label 7 everywhere, fine labels 60 to 99."""
    folder = data_dir / "cifar-100-binary"
    folder.mkdir(parents=True)
    fine = np.arange(60, 100, dtype=np.uint8)
    records = np.concatenate([np.full((40, 1), 7, np.uint8), fine[:, None], pixels], axis=1)
    (folder / "train.bin").write_bytes(records[:30].tobytes())
    (folder / "test.bin").write_bytes(records[30:].tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"class {n}" for n in range(100)))
    return folder


def test_cifar10_is_read_from_its_binary_batches_in_order(
    tmp_path: Path, pixels: NDArray[np.uint8]
) -> None:
    write_cifar10(tmp_path, pixels)
    dataset = load("cifar10", tmp_path)
    assert dataset.name == "cifar10"
    assert dataset.classes[:2] == ("airplane", "automobile")
    assert len(dataset.classes) == 10
    assert dataset.train.labels.tolist() == [n % 10 for n in range(20)]
    # Red plane first, row by row.
    assert np.array_equal(dataset.train.inputs.numpy(), pixels[:20].reshape(-1, 3, 32, 32))
    assert np.array_equal(dataset.test.inputs.numpy(), pixels[20:30].reshape(-1, 3, 32, 32))


def test_cifar100_uses_the_fine_label(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    write_cifar100(tmp_path, pixels)
    dataset = load("cifar100", tmp_path)
    assert dataset.train.labels.tolist() == list(range(60, 90))
    assert dataset.test.labels.tolist() == list(range(90, 100))
    assert dataset.classes[99] == "class 99"
    assert np.array_equal(dataset.test.inputs.numpy(), pixels[30:].reshape(-1, 3, 32, 32))


def test_a_packed_file_is_found_before_the_official_folder(
    tmp_path: Path, pixels: NDArray[np.uint8]
) -> None:
    write_cifar10(tmp_path, pixels)
    images = torch.zeros(10, 3, 32, 32, dtype=torch.uint8)
    samples = Samples(images, torch.arange(10))
    dataset = DataSet("any", samples, samples, tuple("abcdefghij"))
    pack(dataset, tmp_path / "cifar10-jpeg.npz")
    found = load("cifar10", tmp_path)
    assert found.name == "cifar10"
    assert found.classes[0] == "a"
    assert found.train.mean == CIFAR10.statistics[0]


def test_files_of_cifar_that_are_damaged_missing_or_of_something_else_are_named(
    tmp_path: Path, pixels: NDArray[np.uint8], colour: DataSet
) -> None:
    folder = write_cifar10(tmp_path, pixels)
    (folder / "test_batch.bin").write_bytes(b"\x0a" + pixels[0].tobytes())
    assert_refused("cifar10", tmp_path, "a test label is 10")
    (folder / "data_batch_3.bin").write_bytes(bytes(3000))
    assert_refused("cifar10", tmp_path, r"data_batch_3\.bin is damaged")
    (folder / "data_batch_2.bin").unlink()
    assert_refused("cifar10", tmp_path, r"data_batch_2\.bin cannot be read")
    pack(colour, tmp_path / "cifar10.npz")
    assert_refused("cifar10", tmp_path, "is not cifar10: it has 3 classes")


def assert_refused(name: str, data_dir: Path, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(name, data_dir)


# Tiny-ImageNet ----------------------------------------------------------------------------------

RED, GREEN, GRAY = (200, 0, 0), (0, 200, 0), 90


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Two classes of two training images and three validation images, 64×64."""
    folder = tmp_path / "tiny-imagenet-200"
    for wordnet_id, colour in (("n02", RED), ("n01", GREEN)):
        images = folder / "train" / wordnet_id / "images"
        images.mkdir(parents=True)
        for number in range(2):
            image = Image.new("RGB", (64, 64), colour)
            image.save(images / f"{wordnet_id}_{number}.JPEG", "JPEG", quality=95)
    validation = folder / "val" / "images"
    validation.mkdir(parents=True)
    Image.new("RGB", (64, 64), RED).save(validation / "val_0.JPEG", "JPEG")
    Image.new("L", (64, 64), GRAY).save(validation / "val_1.JPEG", "JPEG")
    Image.new("RGB", (64, 64), GREEN).save(validation / "val_2.JPEG", "JPEG")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t63\t63\nval_1.JPEG\tn02\t1\t1\t9\t9\nval_2.JPEG\tn01\t0\t0\t9\t9\n"
    )
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\n")
    return folder


def test_the_official_folder_is_read_with_classes_in_order_of_their_ids(official: Path) -> None:
    dataset = load("tiny-imagenet", official.parent)
    assert dataset.classes == ("goldfish", "n02")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [1, 1, 0]
    assert dataset.train.shape == (3, 32, 32)
    green, red = dataset.train.inputs[0], dataset.train.inputs[3]
    assert green[1].float().mean() > 190
    assert red[0].float().mean() > 190
    gray = dataset.test.inputs[1]
    assert torch.equal(gray[0], gray[2])
    assert (gray.int() - GRAY).abs().max() <= 2


def test_files_of_tiny_imagenet_that_are_damaged_or_missing_are_named(official: Path) -> None:
    (official / "val" / "images" / "val_2.JPEG").write_bytes(b"not an image")
    assert_refused("tiny-imagenet", official.parent, r"val_2\.JPEG cannot be decoded")
    (official / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t1\t1\n")
    assert_refused("tiny-imagenet", official.parent, "n77")
    (official / "train" / "n01" / "images" / "n01_1.JPEG").unlink()
    assert_refused("tiny-imagenet", official.parent, "classes hold from 1 to 2 images")


def test_tiny_imagenet_100_is_the_first_hundred_classes(tmp_path: Path) -> None:
    samples = Samples(torch.zeros(200, 3, 8, 8, dtype=torch.uint8), torch.arange(200))
    names = tuple(f"class {n}" for n in range(200))
    pack(DataSet("any", samples, samples, names), tmp_path / "tiny-imagenet.npz")
    assert load("tiny-imagenet", tmp_path).train.mean == TINY_STATISTICS[0]
    dataset = load("tiny-imagenet-100", tmp_path)
    assert dataset.name == "tiny-imagenet-100"
    assert dataset.train.labels.tolist() == list(range(100))
    assert dataset.classes == names[:100]


def test_fewer_than_a_hundred_classes_are_refused(official: Path) -> None:
    with pytest.raises(DataError, match="needs 100 classes, but there are 2"):
        load("tiny-imagenet-100", official.parent)
