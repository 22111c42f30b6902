"""What workers have told is said before the run, so that a slip in one's data is seen in time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.data import DataSet, Samples
from adaptcl.engines.network.agreement import LocalStatistics, agreed
from adaptcl.engines.network.server.introduction import (
    agreement_in_words,
    holders_of_classes,
    look_alikes,
)


def told(*classes: str) -> LocalStatistics:
    samples = Samples(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
    return LocalStatistics.of(DataSet("", samples, samples, classes))


def test_a_class_that_only_one_worker_has_is_named() -> None:
    found = {0: told("icu", "ward"), 1: told("ICU", "ward"), 2: told("icu", "ward")}
    holders = holders_of_classes(found)
    assert agreement_in_words(agreed(found), holders, 3) == (
        "the workers' inputs are float32 [6]; 3 classes: ICU, icu, ward; only worker 1 has ICU"
    )
    (warning,) = look_alikes(holders)
    assert warning.startswith(
        "The classes 'ICU' (worker 1) and 'icu' (workers 0 and 2) have almost the same name, but"
    )


def test_names_with_spaces_around_look_alike_and_many_classes_are_cut_short() -> None:
    found = {0: told(*map(str, range(12)))}
    said = agreement_in_words(agreed(found), holders_of_classes(found), 1)
    assert said.endswith("; 12 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …")
    assert not list(look_alikes(holders_of_classes({0: told("a", "b"), 1: told("a")})))
    assert list(look_alikes(holders_of_classes({0: told("a"), 1: told("a ")})))
