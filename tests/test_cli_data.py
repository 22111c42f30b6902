"""`adaptcl data`: fetching from a local server, packing, and what cannot be done."""

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

Told = tuple[int, str, str]
Command = Callable[..., Told]


def refused(told: Told, sentence: str) -> None:
    """Exit status 2, one sentence, nothing else."""
    status, output, errors = told
    assert (status, output, errors) == (2, "", f"adaptcl: {sentence}\n")


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


def test_data_is_fetched_and_says_where_it_is(
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


@pytest.mark.parametrize("name", ["digits", "imagenet"])
def test_data_that_cannot_be_fetched_is_refused(command: Command, name: str) -> None:
    status, _, errors = command("data", "get", name, "--data-dir", "d")
    assert status == 2
    assert errors.endswith("those to get are cifar10, cifar100, tiny-imagenet, "
                           "tiny-imagenet-100.\n")  # fmt: skip
    assert not Path("d").exists()


def test_data_is_packed_with_the_quality_asked_for(command: Command) -> None:
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            folder = Path("pets") / part / label
            folder.mkdir(parents=True)
            for number in range(3):
                Image.effect_noise((12, 12), 40 + number).save(folder / f"{number}.png")
    sizes = {}
    for quality in ("10", "95", "lossless"):
        told = command("data", "pack", "folder:pets", f"{quality}.npz", "--quality", quality)
        assert told[0::2] == (0, "")
        assert told[1].startswith(f"folder:pets is packed in {quality}.npz (")
        sizes[quality] = Path(f"{quality}.npz").stat().st_size
    assert sizes["10"] < sizes["95"]
    packed, source = data.load("lossless.npz"), data.load("folder:pets")
    assert packed.train.inputs.equal(source.train.inputs)
    assert packed.classes == ("cat", "dog")
    assert told[1].endswith(" KiB), as PNG, without loss; --quality makes it smaller.\n")
    for wrong in ("x", "-3", "1.5"):
        refused(
            command("data", "pack", "folder:pets", "x.npz", f"--quality={wrong}"),
            f"quality is '{wrong}', but it must be a whole number from 1 to 100, or lossless.",
        )
    refused(
        command("data", "pack", "folder:pets", "x.npz", "--quality", "101"),
        "JPEG quality lies between 1 and 100, but is 101.",
    )


def test_packing_loses_nothing_unless_it_is_asked_to_and_says_what_it_did(command: Command) -> None:
    for part in ("train", "test"):
        (Path("pets") / part / "cat").mkdir(parents=True)
        Image.effect_noise((12, 12), 40).save(Path("pets") / part / "cat" / "1.png")
    source = data.load("folder:pets")
    _, said, _ = command("data", "pack", "folder:pets", "whole.npz")
    assert data.load("whole.npz").train.inputs.equal(source.train.inputs)
    assert "as PNG, without loss" in said
    _, said, _ = command("data", "pack", "folder:pets", "small.npz", "--quality", "50")
    assert not data.load("small.npz").train.inputs.equal(source.train.inputs)
    assert said.endswith("as JPEG of quality 50, which loses a little of every image.\n")
