"""Network reconfiguration: a physically smaller module that holds only the kept units."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from adaptcl.units.cut import Places, kept_places, select, with_fixed
from adaptcl.units.narrow_modules import NarrowAttention, average_as_whole, narrow_attention
from adaptcl.units.unit_map import Kept, UnitMap


def submodel(
    model: nn.Module,
    units: UnitMap,
    kept: Kept,
    state: Mapping[str, Tensor] | None = None,
    *,
    copied: bool = True,
) -> nn.Module:
    """A copy of the model cut to its kept units.

    It holds copies of the sub-model's tensors in `state` (see `cut`), or else of the model's
    values; unless `copied`, it holds the tensors in `state` themselves. Training mode, device and
    `requires_grad` are those of the model.
    """
    places = kept_places(units, kept)
    # `deepcopy` uses the copies that it finds in its memo, so the full-size tensors are never
    # copied, and a tensor with two names stays one tensor.
    memo: dict[int, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in memo:
            memo[id(tensor)] = _copied(name, tensor, places, state, copied)
    smaller = copy.deepcopy(model, memo)
    for name, module in smaller.named_modules():
        _resize(module, whole_groups=f"{name}.weight".lstrip(".") not in units.alike)
    for module in smaller.modules():
        if isinstance(module, nn.TransformerEncoder) and _holds_narrow_attention(module):
            module.use_nested_tensor = False  # its layers no longer take padded texts packed
    stays = with_fixed(kept)
    for each in units.averages:
        average_as_whole(smaller.get_submodule(each.module), each.dim, stays[each.ids])
    for size in units.sizes:
        setattr(smaller.get_submodule(size.module), size.attribute, int(stays[size.ids].sum()))
    return smaller


def _holds_narrow_attention(module: nn.Module) -> bool:
    return any(isinstance(each, NarrowAttention) for each in module.modules())


def _copied(
    name: str,
    tensor: Tensor,
    places: Mapping[str, Places],
    state: Mapping[str, Tensor] | None,
    copied: bool,
) -> Tensor:
    if state is None:
        values = select(tensor.detach(), places[name])
    else:
        values = state[name].detach().to(tensor.device, tensor.dtype, copy=copied)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def _resize(module: nn.Module, *, whole_groups: bool) -> None:
    """Set the sizes that a module stores to those of its tensors."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvNd) and module.transposed:
        module.in_channels = module.weight.shape[0]
        module.out_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        if module.groups > 1 and whole_groups:  # the groups that are left have their old size
            module.groups = module.weight.shape[0] // (module.out_channels // module.groups)
        module.out_channels = module.weight.shape[0]
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.GroupNorm):
        if module.affine:  # whole groups are cut, unless there is only one
            size = module.num_channels // module.num_groups
            module.num_channels = len(module.weight)
            module.num_groups = max(1, module.num_channels // size)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        if module.weight is not None:
            module.normalized_shape = tuple(module.weight.shape)
    elif isinstance(module, _BatchNorm | _InstanceNorm):
        entries = module.weight if module.affine else module.running_mean
        if entries is not None:
            module.num_features = len(entries)
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.embedding_dim = module.weight.shape[1]
    elif type(module) is nn.MultiheadAttention:
        narrow_attention(module)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif isinstance(module, nn.RNNBase):
        of_input, of_state = module.all_weights[0][:2]
        module.input_size = of_input.shape[1]
        if not module.proj_size:  # else it keeps its hidden units
            module.hidden_size = of_state.shape[1]
        module.flatten_parameters()  # on a GPU, cuDNN wants them in one piece
