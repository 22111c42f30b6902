"""`adaptcl data`: downloading from a local server, and packing."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from adaptcl import data

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[[list[str], str], None]


@pytest.fixture
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A very small archive of CIFAR-10's name at a local address, and its checksum."""
    folder = tmp_path_factory.mktemp("served")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as made:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 3073 * 2
            made.addfile(member, io.BytesIO(bytes(member.size)))
        names = b"\n".join(f"class{i}".encode() for i in range(10))
        member = tarfile.TarInfo("cifar-10-batches-bin/batches.meta.txt")
        member.size = len(names)
        made.addfile(member, io.BytesIO(names))
    (folder / "cifar.tar.gz").write_bytes(content.getvalue())

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        checksum = hashlib.md5(content.getvalue()).hexdigest()
        yield f"http://127.0.0.1:{server.server_address[1]}/cifar.tar.gz", checksum
        server.shutdown()
        thread.join()


def test_data_with_another_checksum_is_not_kept(command: Command, archive: tuple[str, str]) -> None:
    url, checksum = archive
    status, output, errors = command("data", "get", "cifar10", "--data-dir", "d", "--url", url)
    assert (status, output) == (2, "")
    assert errors.startswith(f"adaptcl: {url} has the md5 {checksum} instead of ")
    assert errors.endswith("it is damaged or another file, so it was not kept.\n")
    assert list(Path("d").iterdir()) == []


def test_data_is_downloaded_to_the_folder_that_it_prints(
    command: Command, archive: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, checksum = archive
    source = data.DATASETS["cifar10"]
    assert source.archive is not None
    known = replace(source, archive=replace(source.archive, checksum=checksum))
    monkeypatch.setitem(data.DATASETS, "cifar10", known)
    status, output, errors = command("data", "get", "cifar10", "--data-dir", "d", "--url", url)
    assert (status, errors) == (0, "")
    (made,) = Path("d").iterdir()
    assert output == f"cifar10 is in {made}.\n"


def test_data_that_cannot_be_downloaded_is_refused(command: Command) -> None:
    for name in ("digits", "imagenet"):
        status, _, errors = command("data", "get", name, "--data-dir", "d")
        assert status == 2
        assert errors.endswith("those to get are cifar10, cifar100, tiny-imagenet, "
                               "tiny-imagenet-100.\n")  # fmt: skip
        assert not Path("d").exists()


def test_data_is_packed_without_loss_unless_a_quality_is_given(
    command: Command, refused: Refused
) -> None:
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            folder = Path("pets") / part / label
            folder.mkdir(parents=True)
            for number in range(2):
                Image.effect_noise((12, 12), 40 + number).save(folder / f"{number}.png")
    source = data.load("folder:pets")
    status, output, errors = command("data", "pack", "folder:pets", "whole.npz")
    assert (status, errors) == (0, "")
    assert output.startswith("folder:pets is packed in whole.npz (")
    assert output.endswith(" KiB), as PNG, without loss; --quality makes it smaller.\n")
    packed = data.load("whole.npz")
    assert packed.train.inputs.equal(source.train.inputs)
    assert packed.classes == ("cat", "dog")
    for quality in ("10", "95"):
        output = command("data", "pack", "folder:pets", f"{quality}.npz", "--quality", quality)[1]
        assert output.endswith(f"JPEG of quality {quality}, which loses a little of every image.\n")
    assert Path("10.npz").stat().st_size < Path("95.npz").stat().st_size
    assert not data.load("95.npz").train.inputs.equal(source.train.inputs)
    refused(
        ["data", "pack", "folder:pets", "x.npz", "--quality", "101"],
        "argument --quality: it is '101', but it must be a whole number, at least 1 and at most "
        "100; `adaptcl data pack --help` says more.",
    )
