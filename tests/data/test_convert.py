"""Custom data: whatever can be read as samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from adaptcl.data import Samples, as_samples
from adaptcl.data.samples import with_common_classes
from adaptcl.errors import DataError

INPUTS = torch.randn(4, 3)
LABELS = torch.tensor([0, 1, 1, 0])
FRAME = pandas.DataFrame(
    {"a": INPUTS[:, 0], "target": LABELS, "b": INPUTS[:, 1], "c": INPUTS[:, 2]}
)


class Listed(Dataset[tuple[Any, Any]]):
    """A map data set of whatever pairs it is given."""

    classes: Any = None
    features: Any = None

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stored:
    """An array on disk that is read by ascending rows only, as those of HDF5."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        assert (np.diff(rows) > 0).all()
        return self._array[rows]


def test_samples_stay_as_they_are() -> None:
    samples = Samples(INPUTS, LABELS)
    assert as_samples(samples) is samples


def test_pairs_and_map_data_sets_become_the_same_samples() -> None:
    for source in (
        (INPUTS, LABELS),
        (INPUTS.numpy(), LABELS.numpy()),
        (INPUTS.double().numpy(), LABELS.numpy().astype(np.uint8)),
        TensorDataset(INPUTS, LABELS),
        Listed(*zip(INPUTS.numpy(), LABELS.tolist(), strict=True)),
        Listed(*zip(INPUTS, LABELS.numpy(), strict=True)),
        list(zip(INPUTS, LABELS, strict=True)),
        (INPUTS, LABELS.tolist()),
        (INPUTS.tolist(), LABELS.tolist()),
        (list(INPUTS), LABELS == 1),
        (INPUTS, LABELS[:, None]),
        Listed(*((x, y, place) for place, (x, y) in enumerate(zip(INPUTS, LABELS, strict=True)))),
        {"x": INPUTS.numpy(), "y": LABELS.tolist()},
        Listed(*({"x": x, "label": y, "idx": 7} for x, y in zip(INPUTS, LABELS, strict=True))),
        (pandas.DataFrame(INPUTS.double().numpy()), pandas.Series(LABELS.numpy())),
        (FRAME[["a", "b", "c"]], FRAME[["target"]]),
        FRAME,
        (Stored(INPUTS.numpy()), LABELS),
    ):
        samples = as_samples(source)
        inputs, labels = samples.batch(torch.arange(4))
        assert torch.equal(inputs, INPUTS)
        assert torch.equal(labels, LABELS)


def test_targets_of_several_numbers_may_be_a_frame() -> None:
    targets = as_samples((FRAME[["a"]], FRAME[["b", "c"]]), "floats").batch(torch.arange(4))[1]
    assert torch.equal(targets, INPUTS[:, 1:])


def test_an_array_on_disk_is_read_in_any_order() -> None:
    order = torch.tensor([2, 0, 3, 2])
    inputs, labels = as_samples((Stored(INPUTS.numpy()), LABELS)).batch(order)
    assert torch.equal(inputs, INPUTS[order])
    assert torch.equal(labels, LABELS[order])


def test_columns_of_a_frame_are_ordered_beside_an_array_on_disk() -> None:
    frame = FRAME[["a", "b", "c"]]
    first, other = (
        as_samples({"table": each, "signal": Stored(INPUTS.numpy()), "label": LABELS})
        for each in (frame, frame[["c", "a", "b"]])
    )
    for each in (first, other.aligned(first, "The one", "the other")):
        inputs, _ = each.batch(torch.arange(4))
        assert torch.equal(inputs["table"], INPUTS)
        assert torch.equal(inputs["signal"], INPUTS)


def test_two_samples_in_a_list_are_not_mistaken_for_inputs_and_labels() -> None:
    samples = as_samples(Listed((INPUTS[0], 1), (INPUTS[1], 0)))
    assert samples.labels.tolist() == [1, 0]


def test_images_come_in_every_usual_layout() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(2, 4, 6, 3), dtype=np.uint8)
    wanted = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    images = [Image.fromarray(each) for each in pixels]
    for source in (
        (wanted, [0, 1]),
        (pixels, [0, 1]),
        (images, [0, 1]),
        Listed(*zip(images, [0, 1], strict=True)),
        Listed(*zip(pixels, [0, 1], strict=True)),
        Listed(*({"image": each, "label": n} for n, each in enumerate(images))),
    ):
        assert torch.equal(as_samples(source).inputs, wanted)
    assert torch.equal(as_samples((pixels[..., 0], [0, 1])).inputs, wanted[:, :1])
    for mode, channels in (("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3)):
        assert as_samples(([Image.new(mode, (6, 4))], [0])).shape == (channels, 4, 6)


def test_names_as_labels_are_numbered_in_their_order() -> None:
    names = ["dog", "cat", "cat", "dog"]
    for source in (
        (INPUTS, names),
        (INPUTS, np.array(names)),
        (INPUTS, pandas.Series(names, dtype="category")),
        Listed(*zip(INPUTS, names, strict=True)),
    ):
        samples = as_samples(source)
        assert (samples.labels.tolist(), samples.classes) == ([1, 0, 0, 1], ("cat", "dog"))


def test_parts_with_other_classes_number_them_alike() -> None:
    train = as_samples((INPUTS, ["eel", "cat", "dog", "cat"]))
    test = as_samples((INPUTS[:2], ["eel", "dog"]))
    train, test = with_common_classes([train, test])
    assert train.classes == test.classes == ("cat", "dog", "eel")
    assert (train.labels.tolist(), test.labels.tolist()) == ([2, 0, 1, 0], [2, 1])


def test_data_sets_may_name_their_classes() -> None:
    torchvision = Listed(*zip(INPUTS, LABELS.tolist(), strict=True))
    torchvision.classes = ["cat", "dog", "eel"]
    hugging_face = Listed(*({"x": x, "label": 1} for x in INPUTS))
    hugging_face.features = {"x": object(), "label": SimpleNamespace(names=["cat", "dog", "eel"])}
    for source in (torchvision, Subset(torchvision, [2, 0]), hugging_face):
        assert as_samples(source).classes == ("cat", "dog", "eel")


def test_labels_with_gaps_are_refused_by_the_number_of_gaps() -> None:
    gaps: list[Any] = [
        ["cat", float("nan"), "dog", None],
        pandas.Series(["cat", None, "dog", None]),
        pandas.Series([1, None, 0, pandas.NA], dtype="Int64"),
        pandas.Series([1, None, 0, None]),  # which makes floats of whole numbers
        torch.tensor([1, torch.nan, 0, torch.nan]),
    ]
    for labels in gaps:
        with pytest.raises(DataError, match="target has no value in 2 of 4 rows; fill or drop"):
            as_samples((INPUTS, labels))


def test_what_cannot_be_read_as_samples_is_refused() -> None:
    refused: list[tuple[Any, str]] = [
        (Listed((INPUTS[0], 0), (INPUTS[1, :2], 0)), r"Sample 1 .* \[2\], but sample 0 .* \[3\]"),
        (Listed((INPUTS[0], 0), (INPUTS[1].double(), 0)), r"Sample 1 is float64 \[3\]"),
        (Listed(INPUTS[0]), r"Sample 0 is a Tensor of float32 of the shape \[3\], not a pair"),
        (Listed((INPUTS[0], 0, 1, 2)), "Sample 0 is a tuple of 4, the first a Tensor .*, not a"),
        (([Image.new("I", (6, 4))], [0]), "An image has pixels of the kind I; only 8-bit can be"),
        (Listed(("cat.png", 0)), r"The input of sample 0 is a str \('cat\.png'\), not a tensor"),
        (Listed({"text": "Hi", "label": 0}), r"'text' of sample 0 is a str \('Hi'\)"),
        (Listed((INPUTS[0], {"a": 1})), "label of sample 0 is a dict with 'a', not one class"),
        (Listed((INPUTS[0], FRAME)), "is a DataFrame with the columns a, target, b, c, not one"),
        (Listed((INPUTS[0], None)), "The target has no value in 1 of 1 rows"),
        (Listed((INPUTS[0], torch.tensor([0, 1]))), r"int64 of the shape \[2\], not one class"),
        (Listed((INPUTS[0], torch.tensor(0.5))), "that of sample 0 is 0.5; to learn numbers"),
        (Listed((INPUTS[0], 1), (INPUTS[1], "cat")), "1 of 2 labels are names and the others"),
        (Listed(), "no samples"),
        (INPUTS, r"inputs \(a Tensor of float32 of the shape \[4, 3\]\) but no labels"),
        ((INPUTS, LABELS.float()), "or names, but they are a Tensor of float32"),
        ((INPUTS, torch.eye(4).long()), r"shape \[4, 4\]; of one-hot labels give argmax"),
        ((np.array(list("abba")), LABELS), "an array of str32 of the shape .* must be numeric"),
        ({"inputs": INPUTS}, "The dictionary has 'inputs', but no 'labels'"),
        (DataLoader(Listed((INPUTS[0], 1))), "A DataLoader makes batches, .* give its data set"),
        (FRAME.rename(columns={"target": "z"}), "called labels, label, .* class or y; give"),
        (
            (FRAME.set_axis([*"abac"], axis=1), LABELS),
            "The frame has several columns with the name 'a'; rename or drop all but one",
        ),
        (FRAME.set_axis(["label"] * 4, axis=1), "several columns .* 'label'; rename"),
        ((FRAME.assign(b="red"), LABELS), r"column 'b' of the frame holds a str \('red'\), not"),
        ((FRAME.replace({"target": {1: None}}), LABELS), "'target' .* no value in 2 of 4 rows"),
        (3, r"An int \(3\) cannot be read as samples"),
        (None, "None cannot be read as samples"),
    ]
    for source, sentence in refused:
        with pytest.raises(DataError, match=sentence):
            as_samples(source)
