"""A worker's local data, made to fit the model that the server trains.

The server's data set decides what an input is and which number a class has. Otherwise two machines
with different classes in their folders would mean different things by the same label. And the same
picture, normalised by what else lies beside it, would be another input on each of them.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from adaptcl.data import FOLDER, DataSet, Samples, as_samples, load
from adaptcl.data.columns import TargetKind
from adaptcl.data.description import LABEL, Forms, SampleForm, forms_in_words
from adaptcl.data.images import ImageFolder
from adaptcl.data.samples import Items
from adaptcl.engines.network.agreement import LocalStatistics
from adaptcl.engines.network.invitation import MismatchError
from adaptcl.errors import DataError, listed

_LISTED = 10  # how many of the server's classes an error names


class LocalData:
    """The data of one machine: the training part, and a test part if its owner says so."""

    def __init__(self, held: DataSet | ImageFolder, tests: LocalData | None = None) -> None:
        self._held = held
        self._tests = tests
        self._fitted: tuple[SampleForm, Samples] | None = None

    @classmethod
    def named(
        cls,
        name: str,
        data_dir: Path | None = None,
        *,
        test_part: bool = False,
        targets: TargetKind = "labels",
    ) -> LocalData:
        """Find data by the name that `adaptcl run` takes; a folder of images needs a test part only
        if that is to be used."""
        if name.startswith(FOLDER):
            root = Path(name.removeprefix(FOLDER))
            tests = cls(ImageFolder.look(root / "test")) if test_part else None
            return cls(ImageFolder.look(root / "train"), tests)
        found = load(name, data_dir, targets=targets, needs_test=test_part)
        if targets != "labels":
            train, test = (as_samples(each, targets) for each in (found.train, found.test))
            found = DataSet(found.name, train, test, ())
        return cls(found, cls(replace(found, train=found.test)) if test_part else None)

    @property
    def has_unused_tests(self) -> bool:
        """Whether there is a test part that its owner has not named as one to test on."""
        if self._tests is not None:
            return False
        if isinstance(self._held, ImageFolder):
            return (self._held.files[0].parents[2] / "test").is_dir()
        return self._held.test.inputs is not self._held.train.inputs

    def statistics(self) -> LocalStatistics:
        """What to tell of the samples to a server that has none."""
        held = self._held
        if isinstance(held, ImageFolder):
            images = held.decode(held.first_size, gray=held.gray)
            samples = Samples(images, held.labels)
            held = DataSet("", samples, samples, held.classes)
        return LocalStatistics.of(held)

    def fitted_tests(self, wanted: SampleForm) -> Samples | None:
        """The samples of the test part; None if it is not to be used."""
        return None if self._tests is None else self._tests.fitted(wanted)

    def fitted(self, wanted: SampleForm) -> Samples:
        """The samples as those of the server's model; an error if they do not fit."""
        # Each run of a job asks for the same, and decoding images takes a while.
        if self._fitted is None or self._fitted[0] != wanted:
            self._fitted = None
            self._fitted = (wanted, self._fit(wanted))
        return self._fitted[1]

    def _fit(self, wanted: SampleForm) -> Samples:
        if isinstance(self._held, ImageFolder):
            _refuse_other("targets", LABEL, wanted.targets)
            labels = _by_name(self._held.labels, self._held.classes, wanted.classes)
            return Samples(_decoded(self._held, wanted), labels, wanted.mean, wanted.std)
        samples, classes = self._held.train, self._held.classes
        mine = SampleForm.of(samples)
        samples = _with_columns_of(samples, wanted)
        _refuse_other("inputs", mine.inputs, wanted.inputs)
        _refuse_other("targets", mine.targets, wanted.targets)
        if not classes:
            return replace(samples, mean=wanted.mean, std=wanted.std)
        if classes == tuple(map(str, range(len(classes)))):
            _refuse_beyond(samples.labels, len(wanted.classes))
            labels = samples.labels
        else:
            labels = _by_name(samples.labels, classes, wanted.classes)
        return replace(samples, targets=labels, mean=wanted.mean, std=wanted.std)


def _decoded(folder: ImageFolder, wanted: SampleForm) -> Tensor | Items:
    if wanted.kind != "uint8":
        raise MismatchError(
            f"The worker's inputs are images of uint8, those of the server are {wanted.kind}."
        )
    channels, height, width = wanted.shape
    if channels not in (1, 3):
        raise MismatchError(
            f"The worker's images can have 1 or 3 channels, those of the server have {channels}."
        )
    return folder.decode((width, height), gray=channels == 1)


def _with_columns_of(samples: Samples, wanted: SampleForm) -> Samples:
    """The samples with the columns of frames in the server's order, where both sides have names."""
    server = replace(samples, columns=wanted.columns or {})
    try:
        return samples.aligned(server, "The worker's data", "the server")
    except DataError as error:
        raise MismatchError(str(error)) from None


def _refuse_other(what: str, local: Forms, wanted: Forms) -> None:
    if local != wanted:
        raise MismatchError(
            f"The worker's {what} are {forms_in_words(local)}, those of the server "
            f"{forms_in_words(wanted)}; both must be equal."
        )


def _refuse_beyond(labels: Tensor, count: int) -> None:
    """Classes without names are known by their numbers only."""
    highest = int(labels.max())
    if highest >= count:
        raise MismatchError(
            f"The worker has a label {highest}, but the server has {count} classes, so labels go "
            f"from 0 to {count - 1}."
        )


def _by_name(labels: Tensor, local: tuple[str, ...], wanted: tuple[str, ...]) -> Tensor:
    """The server's numbers for the worker's classes; the worker may have fewer."""
    if local == wanted:
        return labels
    numbers = {_composed(name): number for number, name in enumerate(wanted)}
    table = torch.full((len(local),), -1, device=labels.device)
    for number in sorted(set(labels.tolist())):
        known = numbers.get(_composed(local[number]))
        if known is None:
            first = listed((f"{name!r:.50}" for name in wanted), _LISTED)
            raise MismatchError(
                f"The worker has the class {local[number]!r}, which the server does not know; "
                f"it knows {first}."
            )
        table[number] = known
    return table[labels]


def _composed(name: str) -> str:
    """File systems differ in how they write an é."""
    return unicodedata.normalize("NFC", name)
