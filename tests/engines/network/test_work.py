"""What a worker checks before it reaches a server, and before it takes part."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.data.samples import Inputs
from adaptcl.engines.network.invitation import MismatchError, for_the_server
from adaptcl.engines.network.messages import Invitation
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.engines.network.worker.worker_process import Belongings, WorkerProcess
from adaptcl.errors import AdaptCLError, DataError, SettingError
from adaptcl.events import Warned
from adaptcl.runs.worker import Owned, prepare, refuse_unusable, work
from adaptcl.runs.workload import load_workload

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

Command = Callable[..., tuple[int, str, str]]
OWNED = Owned("digits", "", "", "cpu", dealt=False)
DIGITS = Inputs((1, 8, 8), "uint8", None, None, tuple("0123456789"))
CLASSES = ("apple", "bone", "cyst", "dot")
NORMED = """
from torch import nn

def build(shape, classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)
    )
"""


def images(root: Path, *, of: tuple[str, ...], size: int = 8, count: int = 8) -> str:
    """A folder in which a class is how bright its pictures are."""
    for name in of:
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixel = 20 + 70 * (ord(name[0]) - ord("a")) + number
            Image.new("L", (size, size), min(pixel, 255)).save(root / name / f"{number}.png")
    return f"folder:{root.parent}"


def server_images(root: Path) -> str:
    images(root / "train", of=CLASSES)
    return images(root / "test", of=CLASSES)


def taking_part(site: Site, number: int, owned: Owned, then: str = "") -> list[str]:
    """Starts a worker once there is a server; what it says, and with what error it ends. After
    that, one with other data takes its place."""
    said: list[str] = []

    def run() -> None:
        site.wait_for_server()
        memory = site.folder / f"memory-{number}"
        try:
            work(owned, site.connection(number), memory, said.append)
        except AdaptCLError as error:
            said.append(f"{type(error).__name__}: {error}")
        if then:
            work(replace(owned, data=then), site.connection(number), memory, said.append)

    threading.Thread(target=run, daemon=True).start()
    return said


def warned(site: Site) -> list[str]:
    return [each.message for each in site.events if isinstance(each, Warned)]


# Before there is a server ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "abacus"], "--device is 'abacus', but PyTorch has no such device on this"),
        (["--model", "nowhere:build"], "There is no module nowhere, where a model"),
        (["--model", "vgg"], "There is no model 'vgg'"),
        (["--memory", "file/below"], "--memory is 'file/below', but nothing can be written there"),
    ],
)
def test_what_its_owner_can_put_right_is_said_before_a_server_is_looked_for(
    command: Command, words: list[str], sentence: str
) -> None:
    assert command("keys", "keys", "--workers", "1", "--host", "localhost")[0] == 0
    Path("file").touch()
    place = ("--server", "localhost:1", "--tls", "keys/worker-0", "--data", "digits")
    status, _, errors = command("worker", *place, *words, "--patience", "0.2")
    assert status == 2
    assert errors.startswith(f"adaptcl: {sentence}")
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="only Linux has such a folder")
def test_a_memory_that_is_there_but_cannot_be_written_to_is_refused() -> None:
    """Not even by root, as whom tests may run."""
    with pytest.raises(SettingError, match="nothing can be written there"):
        refuse_unusable(OWNED, Path("/proc/self"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(tmp_path: Path, site: Site) -> None:
    with pytest.raises(SettingError, match="--device is 'cuda', but PyTorch has no such device"):
        work(replace(OWNED, device="cuda"), site.connection(0), tmp_path, print)


# What the server asks for ----------------------------------------------------------------------


def invitation(**others: object) -> Invitation:
    settings = {"model": "small", "workers": 1, "codec": "plain", "seed": 3}
    return Invitation("run", 0, "print", {**settings, **others}, DIGITS, {})


def test_a_model_with_another_name_is_not_built() -> None:
    owned = replace(OWNED, model="hosp:build")
    data = LocalData.named("digits")
    with pytest.raises(MismatchError, match=r"model 'hosp2:build'.*only 'hosp:build' is allowed"):
        prepare(owned, data, invitation(model="hosp2:build"))


def test_the_model_an_owner_allows_does_not_shut_out_those_of_adaptcl() -> None:
    owned = replace(OWNED, model="hosp:build")
    with pytest.raises(MismatchError, match="differs from the server's"):
        prepare(owned, LocalData.named("digits"), invitation())


# Together --------------------------------------------------------------------------------------


def test_workers_with_other_classes_and_sizes_learn_what_the_server_means(site: Site) -> None:
    place = site.folder
    data = server_images(place / "server")
    parts = [CLASSES[1:], CLASSES[:3], (CLASSES[0], CLASSES[3])]
    for number, (part, size) in enumerate(zip(parts, (13, 8, 30), strict=True)):
        own = images(place / f"own-{number}" / "train", of=part, size=size)
        taking_part(site, number, replace(OWNED, data=own))
    chosen = site.settings(data=data, strategy="fedavg", rounds=6, epochs=4.0, batch_size=8)
    (result,) = site.serve(chosen)
    assert warned(site) == []
    assert result.summary.best_accuracy == 1.0


def test_a_class_the_server_does_not_know_is_named_on_both_sides(site: Site) -> None:
    place = site.folder
    data = server_images(place / "server")
    other = images(place / "other" / "train", of=(*CLASSES[1:], "elbow"))
    said = taking_part(site, 0, replace(OWNED, data=other), then=data)
    for number in (1, 2):
        taking_part(site, number, replace(OWNED, data=data))
    site.serve(site.settings(data=data, strategy="fedavg", rounds=1))
    assert "The worker has the class 'elbow', which the server does not know" in said[1]
    assert len(warned(site)) == 1
    assert warned(site)[0].startswith("Worker 0 cannot take part: The worker has the class 'elbow'")


def test_a_worker_with_one_sample_says_so_and_the_server_hears_that_its_data_will_not_do(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = site.folder
    (place / "normed_model.py").write_text(NORMED)
    monkeypatch.syspath_prepend(place)
    owned = replace(OWNED, model="normed_model:build")
    data = server_images(place / "server")
    lone = images(place / "lone" / "train", of=("bone",), count=1)
    said = taking_part(site, 0, replace(owned, data=lone), then=data)
    for number in (1, 2):
        taking_part(site, number, replace(owned, data=data))
    site.serve(site.settings(data=data, strategy="fedavg", rounds=1, model=owned.model))
    assert "cannot train on a single sample, but worker 0 has only one" in said[1]
    words = "its data cannot be used; it says there what is wrong."
    assert warned(site) == [f"Worker 0 cannot take part: {words}"]


def test_of_what_fails_while_joining_the_server_hears_nothing_that_is_the_workers(
    site: Site,
) -> None:
    errors: list[str] = []

    def fail(_: Invitation) -> Belongings:
        raise OSError("/home/alice/patients.csv is missing")

    def run() -> None:
        site.wait_for_server()
        try:
            WorkerProcess(site.connection(0), fail, site.folder / "memory", lambda _: None).run()
        except AdaptCLError as error:
            errors.append(str(error))
        site.worker(0)

    threading.Thread(target=run, daemon=True).start()
    site.worker(1)
    site.worker(2)
    site.serve(site.settings(strategy="fedavg", rounds=1))
    assert errors == [
        "This worker cannot take part, because something failed: OSError: "
        "/home/alice/patients.csv is missing."
    ]
    words = "something failed on it; it says there what is wrong."
    assert warned(site) == [f"Worker 0 cannot take part: {words}"]


def test_a_picture_that_cannot_be_read_any_more_is_named_to_its_owner_only(site: Site) -> None:
    data = server_images(site.folder / "server")
    own = images(site.folder / "own" / "train", of=CLASSES)
    workload = load_workload(site.settings(data=data).job)
    invited = replace(invitation(), inputs=Inputs.of(workload.test, CLASSES))
    held = LocalData.named(own)
    (site.folder / "own" / "train" / "bone" / "3.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bone/3\.png cannot be decoded") as refused:
        prepare(OWNED, held, invited)
    assert "png" not in for_the_server(refused.value)


def test_the_normalisation_a_run_folder_keeps_is_that_of_every_worker(site: Site) -> None:
    data = server_images(site.folder / "server")
    told = load_workload(site.settings(data=data).job).test
    own = images(site.folder / "own" / "train", of=CLASSES[:1])
    wanted = Inputs.of(told, CLASSES)
    assert LocalData.named(own).fitted(wanted).mean == told.mean
