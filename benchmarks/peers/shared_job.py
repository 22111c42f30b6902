"""The job that all three frameworks share: its numbers, files, model and test.

It is pfl-research's published CIFAR-10 benchmark: 1,000 users of 50 images each, dealt at random,
50 users a round, one local epoch of batches of 10, learning rate 0.1, equal weights.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_JOB, _DATA = "job.json", "data.npz"
_AT_ONCE = 500


@dataclass(frozen=True)
class PeersJob:
    """The numbers of the job."""

    rounds: int
    device: str = "cpu"
    users: int = 1000
    samples: int = 50
    cohort: int = 50
    batch: int = 10
    learning_rate: float = 0.1
    tested: int = 500
    """Test images used after each round."""
    seed: int = 1
    test_images: int = 10_000


@dataclass(frozen=True)
class Images:
    """Normalised images with their labels."""

    inputs: Tensor
    labels: Tensor

    def of(self, user: int, job: PeersJob) -> tuple[Tensor, Tensor]:
        chosen = slice(user * job.samples, (user + 1) * job.samples)
        return self.inputs[chosen], self.labels[chosen]


class CNN(nn.Module):
    """Two convolutions, a max-pool and two linear layers, with dropout after either pair."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


@dataclass
class PeerAnswer:
    """What a framework's process returns."""

    rounds_s: list[float] = field(default_factory=list)
    work_s: float = 0.0
    """Processor time of the process, over all rounds but the first."""
    accuracies: list[float] = field(default_factory=list)
    """After each round, on some test images."""
    loss: float = 0.0
    accuracy: float = 0.0
    """Of the last model, on all test images."""
    _began: float = 0.0
    _worked: float = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def end_round(self, accuracy: float) -> None:
        now, worked = time.perf_counter(), time.process_time()
        if not self.rounds_s:
            self._worked = worked
        self.rounds_s.append(now - self._began)
        self.work_s = worked - self._worked
        self.accuracies.append(accuracy)
        self._began = now

    def write(self, folder: Path, side: str, model: nn.Module, test: Images) -> None:
        """Test the last model and write everything to the folder."""
        self.loss, self.accuracy = evaluate_model(model, test)
        public = {k: v for k, v in asdict(self).items() if not k.startswith("_")}
        (folder / f"{side}.json").write_text(json.dumps(public), encoding="utf-8")


def first_model(job: PeersJob) -> CNN:
    """The initial model of all frameworks."""
    torch.manual_seed(job.seed)
    return CNN()


@torch.no_grad()
def evaluate_model(model: nn.Module, images: Images) -> tuple[float, float]:
    """Mean loss and accuracy in evaluation mode."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss, right = 0.0, 0
    for begin in range(0, len(images.labels), _AT_ONCE):
        labels = images.labels[begin : begin + _AT_ONCE].to(device)
        scores = model(images.inputs[begin : begin + _AT_ONCE].to(device))
        loss += float(F.cross_entropy(scores, labels, reduction="sum"))
        right += int((scores.argmax(1) == labels).sum())
    model.train(was_training)
    return loss / len(images.labels), right / len(images.labels)


def prepare(folder: Path, job: PeersJob, data_dir: Path | None) -> None:
    """Write the job and its images to a folder that every process reads."""
    if data_dir is None:
        train = _made_up(job.users * job.samples, job.seed)
        test = _made_up(job.test_images, job.seed + 1)
    else:
        from adaptcl import data

        loaded = data.load("cifar10", data_dir)
        train, test = (
            (each.inputs.numpy(), each.labels.numpy()) for each in (loaded.train, loaded.test)
        )
    order = np.random.default_rng(job.seed).permutation(len(train[1]))
    np.savez(
        folder / _DATA,
        train_images=train[0][order],
        train_labels=train[1][order],
        test_images=test[0],
        test_labels=test[1],
    )
    (folder / _JOB).write_text(json.dumps(asdict(job)), encoding="utf-8")


def read_job(folder: Path) -> tuple[PeersJob, Images, Images]:
    """The job, the users' images and the test images."""
    job = PeersJob(**json.loads((folder / _JOB).read_text(encoding="utf-8")))
    with np.load(folder / _DATA, allow_pickle=False) as file:
        train, test = (
            Images(_normalised(file[f"{part}_images"]), torch.from_numpy(file[f"{part}_labels"]))
            for part in ("train", "test")
        )
    return job, train, test


def some_images(test: Images, job: PeersJob) -> Images:
    """The test images used after each round."""
    return Images(test.inputs[: job.tested], test.labels[: job.tested])


def _normalised(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(images).float().div_(127.5).sub_(1.0)


def _made_up(
    count: int, seed: int
) -> tuple[
    np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]
]:
    """Random images of ten classes: a coarse pattern for each, under much noise."""
    patterns = np.random.default_rng(0).normal(0, 1, (10, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    dice = np.random.default_rng(seed)
    labels = dice.integers(0, 10, count)
    images = np.empty((count, 3, 32, 32), np.uint8)
    for begin in range(0, count, 1000):
        part = patterns[labels[begin : begin + 1000]]
        noisy = 128 + 18 * part + 55 * dice.normal(0, 1, part.shape)
        images[begin : begin + 1000] = np.clip(noisy, 0, 255)
    return images, labels.astype(np.int64)
