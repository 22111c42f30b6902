"""Rules for layers: operations with weights.

A layer *reads* the units of its input along one dimension of its weight and *creates* new ones
along another. Layers that keep channels apart (batch norm, depthwise convolution, PReLU) create
none: their entries belong to the units of their input.
"""

from __future__ import annotations

from torch import Tensor

from adaptcl.units.tracing.flow import Flow, OperationCall, Rule, Tag


def linear(flow: Flow, call: OperationCall) -> bool:
    """Columns read the last dimension; rows are new units. Units along another dimension stay."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    if not flow.is_parameter(weight) or not _parameter_or_none(flow, bias):
        return False
    flow.count_work(weight, call.out.numel() // weight.shape[0])
    tag = flow.live_tag(activation)
    if tag is not None and tag.dim != activation.dim() - 1:
        for each in (weight, bias):
            if each is not None:
                flow.pin(each)
        flow.put(call.out, tag.ids, tag.dim, tag.zero and bias is None)
        return True
    if not read(flow, activation, activation.dim() - 1, weight, 1):
        return False
    _create(flow, call.out, call.out.dim() - 1, weight, 0, bias)
    return True


def convolution(flow: Flow, call: OperationCall) -> bool:
    """Dimension 1 of the weight reads the channels; dimension 0 holds new units."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    channel = activation.dim() - weight.dim() + 1
    groups = call.get(6, "groups", 1)
    if not _parameter_or_none(flow, bias):
        return False
    if not flow.is_parameter(weight):
        return groups == weight.shape[0] and _filtered(flow, call, channel)
    flow.count_work(weight, call.out.numel() // weight.shape[0])
    if groups > 1:
        return _grouped(flow, call, channel, groups)
    if not read(flow, activation, channel, weight, 1):
        return False
    _create(flow, call.out, channel, weight, 0, bias)
    return True


def _filtered(flow: Flow, call: OperationCall, channel: int) -> bool:
    """A filter for each channel that is no parameter: one that blurs, or a reshaped weight."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    tag, rows = flow.tag(activation), flow.tag(weight)
    if tag is None or tag.dim != channel or len(tag.ids) != len(weight):
        return False
    if rows is not None:
        if rows.dim != 0:
            return False
        flow.coupling.couple(rows.ids, tag.ids)
    elif flow.is_state(weight):
        flow.own(weight, 0, tag.ids)
    own(flow, tag.ids, bias)
    zeroed = flow.is_state(weight) or (rows is not None and rows.zero)
    flow.put(call.out, tag.ids, channel, zero=tag.zero or zeroed)
    return True


def _grouped(flow: Flow, call: OperationCall, channel: int, groups: int) -> bool:
    """A group of channels, both read and written, is one unit: groups must stay equally large."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    tag = flow.tag(activation)
    if tag is None or tag.dim != channel:
        return False
    read, written = len(tag.ids) // groups, weight.shape[0] // groups
    if read > 1:
        flow.grouped.add(flow.name(weight))
    if flow.name(weight) in flow.alike:
        return _alike(flow, call, channel, groups)
    first = tag.ids[::read]
    flow.coupling.couple(tag.ids, first.repeat_interleave(read))
    rows = first.repeat_interleave(written)
    own(flow, rows, weight, bias)
    flow.put(call.out, rows, channel, zero=True)
    return True


def _alike(flow: Flow, call: OperationCall, channel: int, groups: int) -> bool:
    """Channels at the same position in every group are one unit: all groups get narrower alike."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    tag = flow.tag(activation)
    assert tag is not None
    split = tag.ids.reshape(groups, -1)
    flow.coupling.couple(split.flatten(), split[:1].expand_as(split).flatten())
    flow.read(weight, 1, Tag(split[0], 1, tag.zero))
    rows = flow.rows(weight, 0, groups)
    own(flow, rows, bias)
    flow.put(call.out, rows, channel, zero=True)
    return True


def transposed_convolution(flow: Flow, call: OperationCall) -> bool:
    """Like a convolution, with the first two dimensions of the weight swapped."""
    activation, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    if not flow.is_parameter(weight) or not _parameter_or_none(flow, bias):
        return False
    flow.count_work(weight, activation.numel() // weight.shape[0])
    channel = activation.dim() - weight.dim() + 1
    if call.get(6, "groups", 1) > 1 or not read(flow, activation, channel, weight, 0):
        return False
    _create(flow, call.out, channel, weight, 1, bias)
    return True


def embedding(flow: Flow, call: OperationCall) -> bool:
    """Columns are new units: the row of each token has an entry for every unit."""
    weight = call.get(1, "weight")
    if not flow.is_parameter(weight) or call.get(3, "max_norm") is not None:
        return False
    _create(flow, call.out, call.out.dim() - 1, weight, 1, None)
    return True


def channel_norm(flow: Flow, call: OperationCall) -> bool:
    """Batch and instance norm: scale, shift and statistics belong to the unit of their channel."""
    tag = flow.tag(call.get(0, "input"))
    entries = [call.get(1, "running_mean"), call.get(2, "running_var")]
    entries += [call.get(3, "weight"), call.get(4, "bias")]
    present = [each for each in entries if each is not None]
    if tag is None or tag.dim != 1 or not all(flow.is_state(each) for each in present):
        return False
    own(flow, tag.ids, *present)
    scaled = entries[2] is not None and entries[3] is not None
    flow.put(call.out, tag.ids, 1, zero=tag.zero or scaled)
    return True


def group_norm(flow: Flow, call: OperationCall) -> bool:
    """A group of channels, normalised together, is one unit."""
    groups, weight, bias = call.get(1, "num_groups"), call.get(2, "weight"), call.get(3, "bias")
    tag = flow.tag(call.get(0, "input"))
    if tag is None or tag.dim != 1 or weight is None or bias is None:
        return False
    if groups == 1:
        return _norm_over_units(flow, call, weight, bias)
    if not flow.is_parameter(weight) or not flow.is_parameter(bias):
        return False
    size = len(tag.ids) // groups
    flow.coupling.couple(tag.ids, tag.ids[::size].repeat_interleave(size))
    own(flow, tag.ids, weight, bias)
    flow.put(call.out, tag.ids, 1, zero=True)
    return True


def token_norm(flow: Flow, call: OperationCall) -> bool:
    """Layer and RMS norm: over units, or along them, as with heads.

    The scales are the same for all units along which they normalise. A shift makes a unit that is
    zero something else.
    """
    activation, shape = call.get(0, "input"), call.get(1, "normalized_shape")
    weight = call.get(2, "weight")
    bias = call.get(3, "bias") if call.name == "layer_norm" else None
    tag = flow.tag(activation)
    if tag is not None and tag.dim == activation.dim() - 1 and len(shape) == 1:
        return _norm_over_units(flow, call, weight, bias)
    if tag is None or tag.dim >= activation.dim() - len(shape):
        return False
    for entries in (weight, bias):
        if entries is not None:
            flow.pin(entries)
    flow.put(call.out, tag.ids, tag.dim, tag.zero and bias is None)
    return True


def _norm_over_units(
    flow: Flow, call: OperationCall, weight: Tensor | None, bias: Tensor | None
) -> bool:
    """Mean and variance stay the same if those cut count as zeros; they own scale and shift."""
    activation = call.get(0, "input")
    tag = flow.tag(activation)
    entries = [each for each in (weight, bias) if each is not None]
    if tag is None or not all(map(flow.is_parameter, entries)) or not flow.average(activation):
        return False
    own(flow, tag.ids, *entries)
    flow.put(call.out, tag.ids, tag.dim, zero=weight is not None or call.name == "rms_norm")
    return True


def prelu(flow: Flow, call: OperationCall) -> bool:
    """A slope per channel belongs to its unit; a single slope belongs to none."""
    activation, weight = call.get(0, "input"), call.get(1, "weight")
    tag = flow.tag(activation)
    if tag is None or not flow.is_parameter(weight):
        return False
    if weight.numel() > 1:
        if tag.dim != 1:
            return False
        own(flow, tag.ids, weight)
    flow.put(call.out, tag.ids, tag.dim, tag.zero)
    return True


def _parameter_or_none(flow: Flow, bias: Tensor | None) -> bool:
    return bias is None or flow.is_parameter(bias)


def read(flow: Flow, activation: Tensor, dim: int, weight: Tensor, weight_dim: int) -> bool:
    """Let a dimension of a weight follow the units that it is multiplied with."""
    tag = flow.tag(activation)
    if tag is not None and tag.dim != dim:
        tag = flow.live_tag(activation)
    if tag is None:
        flow.fix(weight, weight_dim)
        return True
    if tag.dim != dim:
        return False
    flow.read(weight, weight_dim, tag)
    return True


def _create(
    flow: Flow, out: Tensor, dim: int, weight: Tensor, weight_dim: int, bias: Tensor | None
) -> None:
    rows = flow.rows(weight, weight_dim)
    if bias is not None:
        flow.claim(bias, 0, rows, owned=True)
    flow.put(out, rows, dim, zero=True)


def own(flow: Flow, ids: Tensor, *entries: Tensor | None) -> None:
    """Let the first dimension of these tensors belong to units."""
    for tensor in entries:
        if tensor is not None:
            flow.claim(tensor, 0, ids, owned=True)


LAYER_RULES: dict[str, Rule] = {
    "linear": linear,
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": transposed_convolution for n in (1, 2, 3)},
    **dict.fromkeys(("embedding", "embedding_bag"), embedding),
    **dict.fromkeys(("batch_norm", "instance_norm"), channel_norm),
    "group_norm": group_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), token_norm),
    "prelu": prelu,
}
