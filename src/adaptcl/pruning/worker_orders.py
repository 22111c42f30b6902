"""Orders that a worker computes from its filters (L1, FPGM) or its feature maps (HRank, Taylor).

The authors of L1 and FPGM prune each layer at a rate of its own. Here one order covers all layers,
so values are made comparable across layers.

A layer's feature map is the output of its module, in which tracing has found the units, passed on
through the functions that directly follow: its batch norm and, for HRank, its activation. These are
recognised when they are called, so it does not matter whether the model has modules for them or
calls `F.relu`. The model continues with a copy of the recorded tensor, because an in-place
activation would overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl import seeds
from adaptcl.pruning.order import (
    Computed,
    UnitMeans,
    WorkerView,
    filters,
    units_left,
)
from adaptcl.units import Layer, UnitMap
from adaptcl.units.tensors import OperationMode, first_output
from adaptcl.units.user_model import evaluating


class L1:
    """The mean |w| of a unit's filter (Li et al. 2016, "Pruning Filters for Efficient ConvNets").

    The authors rank the filters of a layer by Σ|w|; the mean is comparable across layers.
    """

    summary = "mean absolute weight of the filter (Li et al. 2016)"
    computed: Computed = "by-workers"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        for layer in filters(view):
            means.add(layer.ids, layer.rows.abs().mean(1))
        return means.by_unit()


class FPGM:
    """The distance of a unit's filter to the other filters of its layer.

    From He et al. 2019, "Filter Pruning via Geometric Median": a filter close to the geometric
    median of its layer can be replaced by the others, however large it is. As in the authors' code,
    closeness is the sum of the Euclidean distances to all filters of the layer: it is smallest near
    the median, and no median has to be computed. Divided by its mean, it is comparable across
    layers.
    """

    summary = "distance to the other filters of the layer (FPGM, He et al. 2019)"
    computed: Computed = "by-workers"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        for layer in filters(view):
            # The faster way by a matrix product loses the small distances between near filters.
            distance = torch.cdist(
                layer.rows, layer.rows, compute_mode="donot_use_mm_for_euclid_dist"
            ).sum(1)
            mean = distance.mean()
            means.add(layer.ids, distance / mean if mean > 0 else torch.ones_like(distance))
        return means.by_unit()


_BATCHES = 4  # how many batches are measured

_BATCH_NORM = frozenset({"batch_norm"})
_ACTIVATIONS = frozenset(
    f"{name}{inplace}"
    for name in ("relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "elu", "gelu", "silu")
    for inplace in ("", "_")
)


class _OrderOfMaps:
    """An order that looks at feature maps."""

    computed: Computed = "by-workers"

    def unmeasured(self, units: UnitMap) -> list[Layer]:
        """The layers without a feature map. Their units count like the mean of all others."""
        measured = {output.module for output in units.outputs}
        return [layer for layer in units.layers if layer.name not in measured]


class HRank(_OrderOfMaps):
    """Mean rank of a unit's feature maps after batch norm and activation, from 0 to 1.

    From Lin et al. 2020, "HRank: Filter Pruning using High-Rank Feature Map": a feature map of low
    rank carries little information. The authors find that the average rank of a map hardly depends
    on the images, so a few batches are enough. They prune each layer at a rate of its own; here one
    order covers all layers, so a rank is divided by the highest possible one. The map of a neuron
    is a single number: its mean rank is the share of samples for which it is not zero.
    """

    summary = "mean rank of the feature maps (HRank, Lin et al. 2020)"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        with torch.no_grad():
            for maps, _, _ in _feature_maps(view, _BATCH_NORM | _ACTIVATIONS):
                for each in maps:
                    means.add(each.ids, _relative_rank(each.as_images(each.values)))
        return means.by_unit()


def _relative_rank(maps: Tensor) -> Tensor:
    full = min(maps.shape[2:])
    # The decomposition fails for infinities and NaN; a diverged worker still gets an order.
    finite = torch.nan_to_num(maps.float(), posinf=0.0, neginf=0.0)
    if full == 1:
        return (finite != 0).any(-1).any(-1).float()
    ranks: Tensor = torch.linalg.matrix_rank(finite)
    return ranks / full


class Taylor(_OrderOfMaps):
    """|Σ activation × gradient| of a unit's feature map, averaged over samples.

    From Molchanov et al. 2017, "Pruning Convolutional Neural Networks for Resource Efficient
    Inference": to first order, this is how much the loss changes when the map is set to zero. It is
    the same before and after a ReLU, which passes both factors or neither. As in the paper, the
    values of each layer are divided by their L2 norm. Gradients are taken with respect to the maps
    alone: those of the parameters, which the optimiser may be using, are never touched.
    """

    summary = "change of the loss without the unit, to first order (Taylor, Molchanov et al. 2017)"

    def importance(self, view: WorkerView) -> Tensor:
        means = UnitMeans(view.units)
        with torch.enable_grad():
            for maps, outputs, targets in _feature_maps(view, _BATCH_NORM):
                # Summed, so that a sample's gradient does not depend on the size of its batch.
                loss = view.objective.total_loss(outputs, targets)
                if not maps or not loss.requires_grad:
                    continue
                gradients = torch.autograd.grad(
                    loss, [each.values for each in maps], materialize_grads=True
                )
                for each, gradient in zip(maps, gradients, strict=True):
                    effect = each.as_images(each.values.detach() * gradient).sum((2, 3))
                    means.add(*_absolute_by_unit(each.ids, effect))
        return _normalised(means.by_unit(), view)


def _absolute_by_unit(ids: Tensor, effect: Tensor) -> tuple[Tensor, Tensor]:
    """The units, and |Σ effect| over the channels of each: cutting a unit zeroes all of them."""
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


@dataclass
class _FeatureMap:
    """The output of one layer for one batch."""

    ids: Tensor  # the unit of each channel
    channel: int  # the dimension of the channels
    values: Tensor

    def as_images(self, tensor: Tensor) -> Tensor:
        """Reshape a tensor like `values` to [samples, channels, height, width].

        A missing height or width becomes 1.
        """
        by_channel = tensor.movedim(self.channel, 1)
        if by_channel.ndim == 2:
            return by_channel[:, :, None, None]
        return by_channel.flatten(2, -2) if by_channel.ndim > 3 else by_channel[:, :, None, :]


class _Recorder(OperationMode):
    """Records the outputs of some modules, passed on through the functions `follow`."""

    def __init__(self, follow: frozenset[str]) -> None:
        super().__init__()
        self.maps: list[_FeatureMap] = []
        self._follow = follow
        self._passed_on: dict[int, tuple[Tensor, _FeatureMap]] = {}

    def hook(self, dim: int, ids: Tensor) -> Callable[[nn.Module, Any, Any], Any]:
        """A forward hook that records the output of a module with these units in a dimension."""

        def record(module: nn.Module, inputs: Any, output: Any) -> Any:
            values = first_output(output)
            if values is None or values.ndim + dim < 1 or values.shape[dim] != len(ids):
                return None
            recorded = _FeatureMap(ids, values.ndim + dim, values)
            self.maps.append(recorded)
            passed_on = self._pass_on(recorded, values)
            return (passed_on, *output[1:]) if isinstance(output, tuple) else passed_on

        return record

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") in self._follow and args:
            recorded = self._passed_on.pop(id(args[0]), (None, None))[1]
            if recorded is not None:
                return self._pass_on(recorded, result)
        return result

    def _pass_on(self, recorded: _FeatureMap, values: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not values.requires_grad:
            values = values.detach().requires_grad_()
        recorded.values = values
        copy = values.clone()
        # The copy is kept alive while its id is looked up, so that no other tensor gets that id.
        self._passed_on[id(copy)] = (copy, recorded)
        return copy


def _feature_maps(
    view: WorkerView, follow: frozenset[str]
) -> Iterator[tuple[list[_FeatureMap], Any, Any]]:
    """Feature maps, the model's outputs and the targets of each of some random batches."""
    generator = seeds.generator(view.seed, "feature maps")
    chosen = torch.randperm(len(view.samples), generator=generator)[: _BATCHES * view.batch_size]
    modules, layers = dict(view.model.named_modules()), {e.name: e for e in view.units.layers}
    with evaluating(view.model), _differentiable(view.model):
        for indexes in torch.split(chosen, view.batch_size):
            inputs, targets = view.samples.batch(indexes.to(view.samples.device))
            recorder = _Recorder(follow)
            hooks = []
            for output in view.units.outputs:
                ids = units_left(output.ids, layers[output.module], view.kept)
                hook = recorder.hook(output.dim, ids)
                hooks.append(modules[output.module].register_forward_hook(hook))
            try:
                with recorder:
                    outputs = view.objective.outputs(view.model, inputs, targets)
            finally:
                for handle in hooks:
                    handle.remove()
            yield recorder.maps, outputs, targets


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Let recurrent layers be differentiated on a GPU, which they are only in training mode.

    There they differ by their dropout alone.
    """
    recurrent = {each: each.dropout for each in model.modules() if isinstance(each, nn.RNNBase)}
    for module in recurrent:
        module.training, module.dropout = True, 0.0
    try:
        yield
    finally:
        for module, dropout in recurrent.items():
            module.training, module.dropout = False, dropout
