"""A trained model that takes what its users have.

Training turns images and tables into normalised floats batch by batch. Who uses the model later has
images or tables, and should not need to know how that was done. So the model is delivered together
with this step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptcl.data.columns import check_finite, column, is_frame, is_series, ready
from adaptcl.data.description import LABEL, SampleForm
from adaptcl.data.frame_columns import in_order, orders_of_columns, without_target
from adaptcl.data.samples import scaling
from adaptcl.errors import DataError, warn_user
from adaptcl.training.objectives.objective import scores_in


class Delivered(nn.Module):
    """A trained model that takes what it was trained on; `predict` names the classes.

    uint8 images [N, C, H, W] are scaled and normalised as in training, and floats are if they were
    floats in training. Anything else goes to the model as it is, so floats in place of images must
    be scaled and normalised already. The columns of a frame are matched by their names; one row of
    a table is a batch of one. Arrays become tensors on the device of the model. NaN is refused.

    There is a warning if the first batch looks as if it were not normalised, or normalised twice:
    floats all between 0 and 1 in place of images, or far outside the range of training. `model` is
    the model itself, which takes no uint8 images and no frames, and `inputs` describes what it was
    trained on.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, inputs: SampleForm) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self._images = inputs.kind == "uint8"
        self._floats = inputs.kind.startswith("float")
        self._normalises = self._floats and inputs.mean is not None
        self._trusted = False
        """Whether a batch was checked already. One is enough, and checking makes a GPU wait."""
        if self._images or inputs.mean is not None:
            device = next((each.device for each in model.parameters()), None)
            scale, shift = scaling(inputs.shape, inputs.kind, inputs.mean, inputs.std, device)
            self.register_buffer("scale", scale, persistent=False)
            self.register_buffer("shift", shift, persistent=False)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        given = list(inputs)
        # An exported model must not depend on the values it was exported with.
        exporting = torch.compiler.is_compiling() or _traced()
        if not exporting:
            given = [self._taken(each, "") for each in given]
            named = {name: self._taken(each, name) for name, each in named.items()}
        if len(given) == 1 and not named and isinstance(given[0], Tensor):
            if not exporting:
                self._check(given[0])
            given = [self._scaled(given[0])]
        return self.model(*given, **named)

    @torch.no_grad()
    def predict(self, *inputs: Any, **named: Any) -> list[str] | list[int]:
        """The class of each sample: its name, or its number where classes have no names."""
        if self.inputs.targets != LABEL:
            raise DataError(
                "predict gives classes, but this model was not trained on one class a sample; call "
                "the model itself, which gives numbers."
            )
        names = self.inputs.classes
        scores = scores_in(self(*inputs, **named))
        numbers: list[int] = scores[:, : len(names) or None].argmax(1).tolist()
        return [names[number] for number in numbers] if names else numbers

    def _taken(self, given: Any, place: str) -> Any:
        """Inputs as a tensor of the type that the model computes in; other things as they are."""
        like = next((each for each in self.model.parameters() if each.is_floating_point()), None)
        if not isinstance(given, Tensor):
            if is_frame(given) or is_series(given):
                given = self._of_frame(given, place)
            elif isinstance(given, np.ndarray):
                given, _ = ready(column(given), None, "labels")
            else:
                return given
            given = given if like is None else given.to(like.device)
        if self._floats and given.dim() == len(self.inputs.shape) == 1:
            given = given.unsqueeze(0)
        is_float = given.is_floating_point()
        if like is not None and (is_float or (self._floats and given.dtype != torch.uint8)):
            given = given.to(like.dtype)
        if is_float and (not self._trusted or given.device.type == "cpu"):
            check_finite("Inputs", given)
        return given

    def _of_frame(self, given: Any, place: str) -> Any:
        """The numbers of a frame, or of one row of it, in the order of the columns in training."""
        wanted = (self.inputs.columns or {}).get(place)
        if is_series(given):
            if wanted is None:
                return column(given)
            given = given.to_frame().T
        frame = without_target(given, wanted or ())
        found = {place: tuple(map(str, frame.columns))}
        known = {} if wanted is None else {place: wanted}
        orders = orders_of_columns(found, known, "This data", "the training data")
        made = column(frame)
        return in_order(made, {"": orders[place]}) if orders else made

    def _scaled(self, inputs: Tensor) -> Tensor:
        if self._images and inputs.dtype == torch.uint8:
            return inputs.to(self.scale.dtype) * self.scale + self.shift
        return inputs * self.scale + self.shift if self._normalises else inputs

    # What is refused or warned of ---------------------------------------------------------------

    def _check(self, inputs: Tensor) -> None:
        self._refuse_other_shape(inputs)
        if self._trusted or inputs.numel() == 0 or not inputs.is_floating_point():
            return
        low, high = (float(each) for each in inputs.detach().aminmax())
        if low == high:
            return  # a dummy input, to try the model or to warm it up
        self._trusted = True
        sentence = None
        if self._images:
            sentence = self._range_warning(low, high)
        elif self._normalises:
            sentence = self._distance_warning(self._scaled(inputs.detach()))
        if sentence is not None:
            warn_user(sentence)

    def _refuse_other_shape(self, inputs: Tensor) -> None:
        shape, found = self.inputs.shape, list(inputs.shape)
        if self._images and inputs.dtype == torch.uint8:
            if inputs.dim() != 4 or found[1] != shape[0]:
                raise DataError(
                    f"uint8 inputs are taken for images [N, {shape[0]}, H, W], but these have the "
                    f"shape {found}."
                )
        elif self._floats and len(shape) == 1 and found[1:] != list(shape):
            raise DataError(
                f"The model was trained on tables of {shape[0]} columns, but these inputs have the "
                f"shape {found}."
            )

    def _distance_warning(self, normalised: Tensor) -> str | None:
        """Warn if a column, or a channel, is far from its mean in training."""
        samples = len(normalised)
        means = normalised.double().transpose(0, 1).flatten(1).mean(1)
        place = int(means.abs().argmax())
        distance = float(means[place])
        # One sample may have a rare value; the mean of many may not be as far away.
        if abs(distance) <= _FAR + _RARE / samples**0.5:
            return None
        names = (self.inputs.columns or {}).get("")
        name = repr(names[place]) if names else f"number {place}"
        what = "column" if normalised.dim() == 2 else "channel"
        return (
            f"The {what} {name} is on average {abs(distance):.0f} standard deviations "
            f"{'below' if distance < 0 else 'above'} its mean in training; give the numbers as "
            "they were there, because this model normalises them itself."
        )

    def _range_warning(self, low: float, high: float) -> str | None:
        mean, std = self.inputs.mean, self.inputs.std
        black, white = self.shift, 255 * self.scale + self.shift
        least, most = float(black.min()), float(white.max())
        if mean is not None and std is not None and low >= 0 and high <= 1:
            return (
                f"These floats all lie between 0 and 1, as images do before they are normalised, "
                f"but the model was trained on normalised ones, from {least:.3g} to {most:.3g}; "
                f"give it uint8 images, or subtract {_numbers(mean)} and divide by {_numbers(std)}."
            )
        # Twice the range: small changes to an image on purpose need no warning.
        if low < 2 * least - 1 or high > 2 * most + 1:
            return (
                f"These floats lie between {low:.3g} and {high:.3g}, but the images that the model "
                f"was trained on became floats from {least:.3g} to {most:.3g}; give it uint8 "
                "images."
            )
        return None


_FAR, _RARE = 3.0, 7.0
"""In standard deviations: how far the mean of very many samples may be from that of training, and
how much further that of a single one."""


def _traced() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def _numbers(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{each:.4g}" for each in values)
    return shown if len(values) == 1 else f"({shown})"
