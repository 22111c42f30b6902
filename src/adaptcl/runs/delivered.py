"""A trained model together with the step from images to the floats it was trained on.

Training turns images into floats batch by batch. Who uses the model later has images, and should
not need to know how that was done.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adaptcl.data.samples import Inputs, scaling
from adaptcl.errors import DataError, warn_user


class Delivered(nn.Module):
    """A trained model that takes what it was trained on.

    uint8 images [N, C, H, W] are scaled and normalised as in training. Anything else goes to the
    model as it is, so floats must be scaled and normalised already. There is a warning if floats
    look as if they were not: all between 0 and 1 although training normalised its images, or far
    outside the range of training. `model` is the model itself, which takes no uint8 images, and
    `inputs` describes what it was trained on.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self._images = inputs.kind == "uint8"
        self._trusted = not self._images
        """Whether a batch was checked already. One is enough, and checking makes a GPU wait."""
        if self._images:
            device = next((each.device for each in model.parameters()), None)
            scale, shift = scaling(inputs.shape[0], inputs.mean, inputs.std, device)
            self.register_buffer("scale", scale, persistent=False)
            self.register_buffer("shift", shift, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        # An exported model must not depend on the values it was exported with.
        exporting = torch.compiler.is_compiling() or _traced()
        if self._images and inputs.dtype == torch.uint8:
            if not exporting:
                self._refuse_other_shape(inputs)
            inputs = inputs.to(self.scale.dtype) * self.scale + self.shift
        elif not self._trusted and not exporting:
            self._check_range(inputs)
        scores: Tensor = self.model(inputs)
        return scores

    def _refuse_other_shape(self, images: Tensor) -> None:
        channels = self.inputs.shape[0]
        if images.dim() != 4 or images.shape[1] != channels:
            raise DataError(
                f"uint8 inputs are taken for images [N, {channels}, H, W], but these have the "
                f"shape {list(images.shape)}."
            )

    def _check_range(self, floats: Tensor) -> None:
        """Warn if floats are outside the range of training."""
        if floats.numel() == 0:
            return
        low, high = (float(each) for each in floats.aminmax())
        if low == high:
            return  # a dummy input, to try the model or to warm it up
        self._trusted = True
        sentence = self._range_warning(low, high)
        if sentence is not None:
            warn_user(sentence)

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


def _traced() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def _numbers(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{each:.4g}" for each in values)
    return shown if len(values) == 1 else f"({shown})"
