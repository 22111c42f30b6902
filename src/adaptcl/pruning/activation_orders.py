"""The feature maps of a sub-model's units on some of the worker's own samples.

A layer's map is first what its module puts out, then what the functions that directly follow
make of it: its batch norm and, where asked for, its activation. These are recognised as they are
called, so it does not matter whether the model has modules for them or calls `F.relu`. The
tensor that is recorded stays out of the model's hands (it goes on with a copy), because an
in-place activation would overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adaptcl.pruning.filters import Tally, filter_slot, units_of_rows
from adaptcl.pruning.order import WorkerView
from adaptcl.seeds import generator

BATCH_NORM = frozenset({"batch_norm"})
ACTIVATIONS = frozenset(
    f"{name}{inplace}"
    for name in ("relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "elu", "gelu", "silu")
    for inplace in ("", "_")
)


@dataclass
class FeatureMap:
    """What one layer put out for one batch."""

    ids: Tensor
    """The unit each channel belongs to."""
    channel: int
    """Which dimension the channels are."""
    values: Tensor

    def maps(self, tensor: Tensor) -> Tensor:
        """A tensor of the values' shape as [samples, channels, height, width].

        What has no height or width has a height or width of 1.
        """
        by_channel = tensor.movedim(self.channel, 1)
        if by_channel.ndim == 2:
            return by_channel[:, :, None, None]
        return by_channel.flatten(2, -2) if by_channel.ndim > 3 else by_channel[:, :, None, :]


class _Recorder(TorchFunctionMode):
    """Follows the outputs of some modules through the functions that come next."""

    def __init__(self, follow: frozenset[str]) -> None:
        super().__init__()
        self.maps: list[FeatureMap] = []
        self._follow = follow
        self._passed_on: dict[int, tuple[Tensor, FeatureMap]] = {}

    def watch(self, ids: Tensor) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        """A forward hook that starts recording at a module's output."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            if not isinstance(output, Tensor) or output.ndim < 2:
                return None
            channel = output.ndim - 1 if isinstance(module, nn.Linear) else 1
            if output.shape[channel] != len(ids):
                return None
            recorded = FeatureMap(ids, channel, output)
            self.maps.append(recorded)
            return self._pass_on(recorded, output)

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._follow and args:
            recorded = self._passed_on.pop(id(args[0]), (None, None))[1]
            if recorded is not None:
                return self._pass_on(recorded, result)
        return result

    def _pass_on(self, recorded: FeatureMap, values: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not values.requires_grad:
            values = values.detach().requires_grad_()
        recorded.values = values
        copy = values.clone()
        # Held here for as long as its identity is looked up, so that no other tensor gets it.
        self._passed_on[id(copy)] = (copy, recorded)
        return copy


def feature_maps(
    view: WorkerView, batches: int, follow: frozenset[str]
) -> Iterator[tuple[list[FeatureMap], Tensor, Tensor]]:
    """For each of some random batches: the feature maps, the model's output and the labels.

    The model is in evaluation mode meanwhile, and as it was before when the iterator is done.
    """
    device = next((p.device for p in view.model.parameters()), torch.device("cpu"))
    dice = generator(view.seed, "feature maps")
    chosen = torch.randperm(len(view.samples), generator=dice)[: batches * view.batch_size]
    modules = dict(view.model.named_modules())
    with _evaluating(view.model):
        for indexes in torch.split(chosen, view.batch_size):
            inputs, labels = view.samples.batch(indexes.to(view.samples.labels.device))
            recorder = _Recorder(follow)
            hooks = []
            for layer in view.units.layers:
                slot = filter_slot(view.units, layer)
                if slot is not None and slot.tensor == f"{layer.name}.weight":
                    hook = recorder.watch(units_of_rows(slot, layer, view.kept))
                    hooks.append(modules[layer.name].register_forward_hook(hook))
            try:
                with recorder:
                    output = view.model(inputs.to(device))
            finally:
                for handle in hooks:
                    handle.remove()
            yield recorder.maps, output, labels.to(device)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


# HRank (Lin et al. 2020, "HRank: Filter Pruning using High-Rank Feature Map").
#
# A feature map of low rank carries little information. The authors find the average rank of a map
# nearly the same for any few batches of images, so a few batches are enough.

_HRANK_BATCHES = 4


class HRank:
    """Mean rank of a unit's feature maps after batch norm and activation.

    The authors prune every layer at a rate chosen for it; here one order goes through all layers,
    so a rank is divided by the highest possible one. A neuron's map is a single number: its mean
    rank is the share of samples for which it is not zero.
    """

    summary = "mean rank of the feature maps (HRank, Lin et al. 2020)"

    def importance(self, view: WorkerView) -> Tensor:
        """Mean over samples of a few batches, from 0 (always zero) to 1 (always of full rank)."""
        tally = Tally(view.units)
        with torch.no_grad():
            for recorded, _, _ in feature_maps(view, _HRANK_BATCHES, BATCH_NORM | ACTIVATIONS):
                for each in recorded:
                    tally.add(each.ids, _relative_rank(each.maps(each.values)))
        return tally.means()


def _relative_rank(maps: Tensor) -> Tensor:
    full = min(maps.shape[2:])
    # The decomposition fails on what is not finite; a diverged worker still gets an order.
    finite = torch.nan_to_num(maps.float(), posinf=0.0, neginf=0.0)
    if full == 1:
        return (finite != 0).any(-1).any(-1).float()
    ranks: Tensor = torch.linalg.matrix_rank(finite)
    return ranks / full


# Taylor: Molchanov et al. 2017, "Pruning Convolutional Neural Networks for Resource Efficient
# Inference".
#
# How much the loss changes when a feature map is set to zero, to first order: the sum over the
# map of activation times gradient. It is the same before and after a ReLU, which passes both or
# neither.

_TAYLOR_BATCHES = 4


class Taylor:
    """|Σ activation × gradient| of a unit's feature map, averaged over samples.

    As the authors do, the values of each layer are divided by their L2 norm before layers are
    compared. Gradients are taken with respect to the maps alone: those of the parameters, which
    the optimiser may be using, are never touched.
    """

    summary = "change of the loss without the unit, to first order (Taylor, Molchanov et al. 2017)"

    def importance(self, view: WorkerView) -> Tensor:
        """Mean over samples of a few batches, normalised by layer."""
        tally = Tally(view.units)
        with torch.enable_grad():
            for recorded, output, labels in feature_maps(view, _TAYLOR_BATCHES, BATCH_NORM):
                if not recorded or not output.requires_grad:
                    continue
                # Summed, so that a sample's gradient does not depend on the size of its batch.
                loss = F.cross_entropy(output, labels, reduction="sum")
                gradients = torch.autograd.grad(
                    loss, [each.values for each in recorded], materialize_grads=True
                )
                for each, gradient in zip(recorded, gradients, strict=True):
                    effect = each.maps(each.values.detach() * gradient).sum((2, 3))
                    tally.add(*_together(each.ids, effect))
        return _normalised(tally.means(), view)


def _together(ids: Tensor, effect: Tensor) -> tuple[Tensor, Tensor]:
    """|Σ effect| of a unit's channels: cutting the unit zeroes all of them at once."""
    found, position = torch.unique(ids, return_inverse=True)
    sums = effect.new_zeros(len(effect), len(found))
    return found, sums.index_add_(1, position.to(effect.device), effect).abs_()


def _normalised(importance: Tensor, view: WorkerView) -> Tensor:
    normalised = importance.clone()
    for layer in view.units.layers:
        here = slice(layer.units.start, layer.units.stop)
        norm = torch.linalg.vector_norm(importance[here][view.kept[here]])
        if norm > 0:
            normalised[here] /= norm
    return normalised
