"""What workers tell of their data makes what all data together would have told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.data import DataSet, Samples
from adaptcl.data.samples import channel_statistics
from adaptcl.engines.network.agreement import (
    LocalStatistics,
    _most_frequent,
    agreed,
    odd_ones_out,
)
from adaptcl.engines.network.frames import Frame
from adaptcl.errors import UpdateError

SIZES = [300, 7, 1]


def told(inputs: Tensor, classes: tuple[str, ...] = ("a", "b")) -> LocalStatistics:
    samples = Samples(inputs, torch.arange(len(inputs)) % len(classes))
    sent = LocalStatistics.of(DataSet("", samples, samples, classes)).frame().to_bytes()
    return LocalStatistics.read(Frame.from_bytes(sent))


def test_images_have_the_statistics_of_all_images_together() -> None:
    images = torch.randint(256, (sum(SIZES), 3, 5, 4), dtype=torch.uint8)
    images[:, 1] //= 9
    images[:, 2] = 77
    found = agreed(dict(enumerate(map(told, torch.split(images, SIZES)))))
    mean, std = channel_statistics(images)
    assert found.mean == pytest.approx(mean, rel=1e-12)
    assert found.std == pytest.approx(std, rel=1e-9)
    assert (found.shape, found.kind, found.classes) == ((3, 5, 4), "uint8", ("a", "b"))


def test_tables_have_the_statistics_of_all_rows_together() -> None:
    rows = torch.randn(sum(SIZES), 4) * torch.tensor([1.0, 100.0, 1e-3, 0.0])
    rows += torch.tensor([0.0, 2000.0, 5.0, 3.0])
    found = agreed(dict(enumerate(map(told, torch.split(rows, SIZES)))))
    assert found.mean == pytest.approx(rows.double().mean(0).tolist(), rel=1e-9)
    deviations = rows.double().std(0, correction=0).tolist()
    assert found.std == pytest.approx([*deviations[:3], 1.0], rel=1e-4)


def test_tokens_are_not_normalised_and_classes_are_those_of_all() -> None:
    tokens = torch.zeros(4, 6, dtype=torch.int64)
    found = agreed({0: told(tokens, ("cat", "dog")), 1: told(tokens, ("ape", "dog"))})
    assert found.mean is None
    assert found.classes == ("ape", "cat", "dog")
    numbered = agreed({0: told(tokens, ("0", "1")), 1: told(tokens, ("0", "1", "2"))})
    assert numbered.classes == ("0", "1", "2")


def test_the_worker_whose_samples_differ_from_those_of_most_is_the_odd_one() -> None:
    one, other = told(torch.zeros(4, 6)), told(torch.zeros(4, 7))
    assert odd_ones_out({0: other, 1: one}, 3) == {}, "worker 2 will decide it"
    assert odd_ones_out({0: other, 1: one, 2: one}, 4) == {}
    sentence = (
        "its inputs are float32 [7], those of workers 1 and 2 float32 [6]; all must be equal. "
        "Start it again with data of that form."
    )
    assert odd_ones_out({0: other, 1: one, 2: one}, 3) == {0: sentence}


def test_without_a_majority_the_first_worker_is_right() -> None:
    one, other = told(torch.zeros(4, 6)), told(torch.zeros(4, 7))
    ((odd, sentence),) = odd_ones_out({0: one, 1: other}, 2).items()
    assert odd == 1
    assert "those of worker 0 float32 [6]" in sentence


def test_the_data_of_many_workers_that_are_alike_are_compared_once_each() -> None:
    compared = []

    class Counted:
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return True

        __hash__ = None  # type: ignore[assignment]  # as dictionaries are

    values = {worker: Counted() for worker in range(50)}
    assert _most_frequent(values, 50, is_all=True) == list(range(50))
    assert len(compared) == 49


def of_table(columns: str, rows: Tensor) -> LocalStatistics:
    """What a worker tells of a table whose columns have one letter each."""
    samples = Samples(rows, torch.arange(len(rows)) % 2, columns={"": tuple(columns)})
    sent = LocalStatistics.of(DataSet("", samples, samples, ("a", "b"))).frame().to_bytes()
    return LocalStatistics.read(Frame.from_bytes(sent))


def test_columns_are_matched_by_name_in_the_first_workers_order() -> None:
    rows = torch.randn(20, 3) + torch.tensor([0.0, 10.0, 100.0])
    found = {
        0: of_table("xyz", rows[:8]),
        1: of_table("zxy", rows[8:][:, [2, 0, 1]]),
    }
    assert odd_ones_out(found, 2) == {}
    known = agreed(found)
    assert known.columns == {"": ("x", "y", "z")}
    assert known.mean == pytest.approx(rows.double().mean(0).tolist())


def test_other_columns_are_refused_with_their_names_but_arrays_have_none() -> None:
    rows = torch.randn(8, 3)
    right = {0: told(rows), 1: of_table("xyz", rows), 2: of_table("zyx", rows)}
    sentence = (
        "its data cannot be used: of the columns that worker 1 has, its frame lacks 'z'{}. Start "
        "it again with these columns."
    )
    other, fewer = of_table("xyw", rows), of_table("xy", rows[:, :2])
    assert odd_ones_out({**right, 3: other}, 4) == {3: sentence.format(" and has 'w' besides")}
    assert odd_ones_out({**right, 3: fewer}, 4) == {3: sentence.format("")}


@pytest.mark.parametrize(
    "change",
    [
        {"count": -1},
        {"count": 0},
        {"count": 1},  # far too few for these sums
        {"count": True},
        {"sums": [1.0]},
        {"sums": [1.0, "2"]},
        {"sums": [float("nan"), 1.0]},
        {"sums": [1e31, 1.0]},
        {"sums": [-5.0, 1.0]},
        {"squares": [0.0, 0.0]},
        {"squares": [1e20, 1e20]},
        {"squares": None},
        {"inputs": None},
        {"error": "its data cannot be used"},
    ],
)
def test_statistics_that_no_data_have_are_refused(change: dict[str, Any]) -> None:
    images = torch.randint(256, (9, 2, 5, 4), dtype=torch.uint8)
    samples = Samples(images, torch.zeros(9, dtype=torch.int64))
    sent = LocalStatistics.of(DataSet("", samples, samples, ("a",))).frame().to_bytes()
    honest = Frame.from_bytes(sent)
    assert LocalStatistics.read(honest).count == 9 * 20
    with pytest.raises(UpdateError):
        LocalStatistics.read(Frame({**honest.header, **change}, {}))
