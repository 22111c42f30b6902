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
from torch.overrides import TorchFunctionMode

from adaptcl.pruning.filters import filter_slot, units_of_rows
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
