"""Predicting from tables with a trained model: what users of tables have is taken or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from torch import nn

import adaptcl
from adaptcl.data.description import Form, SampleForm
from adaptcl.errors import AdaptCLWarning, DataError
from adaptcl.runs.delivered import Delivered

NAMES = ("age", "bmi", "pressure")
MEAN, STD = (50.0, 25.0, 120.0), (15.0, 4.0, 12.0)
FORM = SampleForm((3,), "float32", MEAN, STD, ("ill", "well"), columns={"": NAMES})
ROWS = np.random.default_rng(0).normal(MEAN, STD, (40, 3))
FRAME = pandas.DataFrame(ROWS, columns=NAMES)


def delivered(form: SampleForm = FORM) -> Delivered:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return Delivered(net, form).eval()


def test_frames_arrays_and_floats_of_any_size_give_what_float32_tensors_give() -> None:
    model = delivered()
    expected = model(torch.tensor(ROWS, dtype=torch.float32))
    for given in (FRAME, ROWS, torch.tensor(ROWS), FRAME.astype(object)):
        assert torch.equal(model(given), expected)
    whole = pandas.DataFrame(ROWS.round().astype(int), columns=NAMES)
    for given in (whole, whole.to_numpy(), torch.tensor(whole.to_numpy())):
        assert torch.equal(model(given), model(torch.tensor(ROWS).round()))


def test_a_row_is_a_batch_of_one() -> None:
    model = delivered()
    expected = model(torch.tensor(ROWS[:1]))
    for given in (FRAME[:1], FRAME.iloc[0], ROWS[0], torch.tensor(ROWS[0])):
        assert torch.equal(model(given), expected)


def test_columns_are_matched_by_name_and_that_of_the_target_is_left_out() -> None:
    model = delivered()
    other = FRAME[["pressure", "age", "bmi"]]
    for given in (other, other.assign(label="ill")):
        assert torch.equal(model(given), model(FRAME))
    assert torch.equal(model(other.iloc[0]), model(FRAME[:1]))


def test_a_column_of_training_may_be_called_as_targets_are() -> None:
    model = delivered(replace(FORM, columns={"": ("label", "bmi", "pressure")}))
    frame = FRAME.rename(columns={"age": "label"})
    assert torch.equal(model(frame.assign(target=1)), model(frame))


def test_frames_are_taken_in_their_order_where_training_had_no_names() -> None:
    model = delivered(replace(FORM, columns=None))
    assert torch.equal(model(FRAME), model(ROWS))
    assert torch.equal(model(FRAME.iloc[0]), model(ROWS[:1]))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (FRAME.drop(columns="bmi"), "that the training data has, its frame lacks 'bmi'"),
        (FRAME.assign(ward=1), "its frame has 'ward' besides"),
        (FRAME.iloc[0].drop("age"), "lacks 'age'"),
        (
            FRAME.assign(bmi="high"),
            r"column 'bmi' of the frame holds a str \('high'\), not numbers",
        ),
        (FRAME.mask(FRAME.iloc[3, 1] == FRAME), "column 'bmi' .* no value in 1 of 40 rows"),
        (np.array([[1, np.nan, 2]]), "Inputs hold NaN or infinite values, in 1 of 1 samples"),
        (torch.tensor([[1, torch.inf, 2]]), "Inputs hold NaN or infinite values"),
        (ROWS[:, :1], r"on tables of 3 columns, but these inputs have the shape \[40, 1\]"),
    ],
)
def test_what_training_would_refuse_is_refused(given: Any, sentence: str) -> None:
    model = delivered()
    model(FRAME)  # not only of the first batch
    with pytest.raises(DataError, match=sentence):
        model(given)


def test_numbers_that_were_standardised_already_are_warned_of_once() -> None:
    model = delivered()
    standardised = pandas.DataFrame((ROWS - MEAN) / STD, columns=NAMES)
    with pytest.warns(AdaptCLWarning) as caught:
        model(standardised)
    assert [str(each.message) for each in caught] == [
        "The column 'pressure' is on average 10 standard deviations below its mean in training; "
        "give the numbers as they were there, because this model normalises them itself."
    ]
    model(standardised)


def test_images_of_floats_are_named_by_their_channel() -> None:
    form = SampleForm((2, 4, 4), "float32", (0.5, 0.5), (0.1, 0.1), ())
    pictures = torch.rand(3, 2, 4, 4) * torch.tensor([1.0, 255]).view(2, 1, 1)
    with pytest.warns(AdaptCLWarning, match="The channel number 1 is on average .* above its mean"):
        Delivered(nn.Flatten(), form)(pictures)


def test_one_unusual_row_and_made_up_zeros_are_not_warned_of() -> None:
    delivered()(torch.tensor([[50.0, 25 + 9 * 4, 120]]))
    delivered()(torch.zeros(2, 3))


def test_prediction_names_the_classes() -> None:
    model = delivered()
    numbers = model(FRAME).argmax(1).tolist()
    assert model.predict(FRAME) == [("ill", "well")[number] for number in numbers]
    assert len(model.predict(FRAME.iloc[0])) == 1
    assert delivered(replace(FORM, classes=())).predict(FRAME) == numbers


def test_prediction_is_refused_where_no_classes_were_learned() -> None:
    model = delivered(replace(FORM, classes=(), targets=Form((), "float32"), outputs=2))
    with pytest.raises(DataError, match="was not trained on one class a sample; call the model"):
        model.predict(FRAME)


def test_a_run_on_frames_delivers_a_model_that_predicts_from_frames() -> None:
    train = FRAME.assign(label=np.where(ROWS[:, 0] > 50, "ill", "well"))
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    settings: dict[str, Any] = {"workers": 2, "rounds": 2, "bandwidth_max": 0.01}
    result = adaptcl.run(net, train, train, strategy="fedavg", **settings)
    named = result.delivered.predict(train[["label", "pressure", "bmi", "age"]])
    right = float((train["label"] == named).mean())
    assert right == pytest.approx(result.summary.accuracy)
