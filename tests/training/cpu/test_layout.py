"""Channels come last where that is safe, and the results are the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl import models
from adaptcl.data import Samples
from adaptcl.training import Recipe
from adaptcl.training.cpu.layout import cpu_layout, gpu_layout, laid_out
from adaptcl.training.devices import trainers
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import cut, trace

FIRST, LAST = torch.contiguous_format, torch.channels_last
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Functional(nn.Module):
    """A safe convolution, and one that only the forward pass shows."""

    def __init__(self, size: int, *, stride: int | tuple[int, int] = 1, when: str = "") -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.kernel = nn.Parameter(torch.randn(4, 4, size, size))
        self.stride = stride
        self.when = when

    def forward(self, images: Tensor) -> Tensor:
        images = self.first(images)
        stride = self.stride if self.when in ("", "train" if self.training else "eval") else 1
        return F.conv2d(images, self.kernel, stride=stride).mean((2, 3))


class Views(nn.Module):
    """Flattens as if the channels were first, whether PyTorch notices it or not."""

    def __init__(self, *, noticed: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.noticed = noticed

    def forward(self, images: Tensor) -> Tensor:
        images = self.first(images)
        if self.noticed:
            return images.view(len(images), -1)
        return images.as_strided((len(images), 4 * 16 * 16), (4 * 16 * 16, 1))


def test_a_net_without_strides_trains_with_channels_last() -> None:
    net = models.build("small", (1, 28, 28), 10, seed=1)
    assert cpu_layout(net, torch.zeros(2, 1, 28, 28)) is LAST


def test_a_single_convolution_that_could_go_wrong_is_enough() -> None:
    model = Functional(1)
    assert cpu_layout(model, IMAGES) is LAST
    for layer in (
        nn.Conv2d(3, 4, 1, stride=2),
        nn.Conv2d(3, 4, 3, stride=(1, 2)),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ConvTranspose2d(3, 4, 2, stride=2),
        nn.ConvTranspose2d(3, 4, 3),
        nn.Conv1d(3, 4, 1),
        nn.Conv3d(3, 4, 1),
    ):
        model.seldom_used = layer
        assert cpu_layout(model, IMAGES) is FIRST


def test_a_strided_convolution_that_is_no_module_is_found() -> None:
    for when in ("", "train", "eval"):
        assert cpu_layout(Functional(1, stride=2, when=when), IMAGES) is FIRST
    assert cpu_layout(Functional(1, stride=(1, 2)), IMAGES) is FIRST


def test_a_model_that_relies_on_channels_first_keeps_them() -> None:
    for noticed in (True, False):
        assert cpu_layout(Views(noticed=noticed), IMAGES) is FIRST
        assert gpu_layout(Views(noticed=noticed), IMAGES) is FIRST


class StackOfFilters(nn.Module):
    """A convolution beside a tensor that PyTorch knows no channels-last for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.stack = nn.Parameter(torch.randn(2, 4, 4, 3, 3))

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(self.first(images), self.stack.mean(0)).mean((2, 3))


def test_a_model_with_a_tensor_that_has_no_other_layout_keeps_the_usual_one() -> None:
    assert cpu_layout(StackOfFilters(), IMAGES) is FIRST


class InFours(nn.Module):
    """Its batch norm sees a quarter of a batch at a time while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        images = self.first(images)
        chunks = images.reshape(4, -1, *images.shape[1:]) if self.training else [images]
        return torch.cat([self.norm(each) for each in chunks]).mean((2, 3))


def test_a_model_that_cannot_train_on_the_example_keeps_the_usual_layout() -> None:
    assert cpu_layout(InFours(), IMAGES) is FIRST
    assert cpu_layout(InFours(), torch.cat([IMAGES] * 4)) is LAST


def test_models_without_convolutions_or_images_keep_the_usual_layout() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    assert cpu_layout(flat, IMAGES) is FIRST
    assert cpu_layout(nn.Linear(5, 2), torch.zeros(2, 5)) is FIRST
    assert cpu_layout(nn.Conv2d(3, 4, 3).double(), IMAGES.double()) is FIRST


def test_choosing_leaves_the_model_and_the_random_numbers_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    before, dice = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    cpu_layout(model, IMAGES)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(dice, torch.get_rng_state())


def test_inputs_keep_their_values_in_either_layout() -> None:
    for shape in ((5, 3, 4, 6), (5, 1, 4, 6), (1, 1, 4, 4), (5, 7), (2, 3, 8)):
        inputs = torch.randn(shape)
        assert laid_out(inputs, FIRST) is inputs
        last = laid_out(inputs, LAST)
        assert torch.equal(last, inputs)
        if len(shape) == 4:
            assert last.stride()[1:] == (1, shape[1] * shape[3], shape[1])


def down_to_two_pixels() -> nn.Module:
    """As deep as VGG16 where it matters: its last convolution sees images smaller than itself."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(96, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 96, 10),
    )  # fmt: skip


@pytest.mark.parametrize("retention", [1.0, 0.1])
def test_training_gives_the_same_in_either_layout_within_rounding(retention: float) -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (3, 16, 16)
    net = down_to_two_pixels()
    units = trace(net, torch.zeros(2, *shape))
    kept = torch.rand(units.count, generator=generator) < retention
    for layer in units.layers:
        kept[layer.units.start] = True
    before = cut(net.state_dict(), units, kept)
    inputs = torch.randn(12, *shape, generator=generator)
    recipe = Recipe(learning_rate=0.01, momentum=0.9, weight_decay=0.01)

    def trained(layout: torch.memory_format, precision: torch.dtype) -> tuple[Tensor, Tensor]:
        samples = Samples(inputs.to(precision), torch.arange(12) % 10)
        ours = PlainTrainer(copy.deepcopy(net).to(precision), units, samples, layout)
        model = ours.load(kept, before)
        batches = [torch.arange(8), torch.arange(4, 12)]
        losses = ours.run(batches, None, recipe, lasso_lambda=1e-4)
        moved = [tensor - before[name] for name, tensor in model.named_parameters()]
        return losses, torch.cat([each.detach().double().flatten() for each in moved])

    exact, path = trained(FIRST, torch.float64)
    found, same_path = trained(LAST, torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)
    assert float((same_path - path).norm() / path.norm()) < 1e-9

    # Batch norm over few pixels makes much of the last bit, so one rounding is judged by another.
    _, usual = trained(FIRST, torch.float32)
    losses, rounded = trained(LAST, torch.float32)
    assert float(losses[0]) == pytest.approx(float(exact[0]), rel=1e-4)
    usual_error = float((usual - path).norm() / path.norm())
    assert float((rounded - path).norm() / path.norm()) < 3 * usual_error + 1e-5


def test_all_workers_of_a_process_and_one_that_is_alone_train_in_the_same_layout() -> None:
    net = models.build("small", (1, 12, 12), 10, seed=1)
    units = trace(net, torch.zeros(2, 1, 12, 12))
    labels = torch.arange(6)
    samples = [Samples(torch.randn(6, 1, 12, 12), labels) for _ in range(3)]
    alone = trainers(net, units, [samples[1]], "float32")[0]
    for each in [*trainers(net, units, samples, "float32"), alone]:
        weights = each.load(units.everything(), dict(net.state_dict())).state_dict()
        assert weights["features.4.weight"].is_contiguous(memory_format=LAST)


# On a GPU every convolution is right in channels-last; how it is chosen can be tried here.


def test_a_gpu_tests_with_channels_last_also_where_there_are_strides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Flatten())
    before = copy.deepcopy(model.state_dict())
    assert gpu_layout(model, IMAGES) is LAST
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_gpu_tests_inputs_that_are_no_images_in_their_layout() -> None:
    assert gpu_layout(nn.Linear(6, 4), torch.randn(2, 6)) is FIRST


class Flat(nn.Module):
    """No convolution, and a `view` of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(3 * 16 * 16, 4)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.only(images.view(len(images), -1))
        return scores


def test_a_gpu_tests_a_model_that_flattens_its_images_itself() -> None:
    assert gpu_layout(Flat(), IMAGES) is FIRST
