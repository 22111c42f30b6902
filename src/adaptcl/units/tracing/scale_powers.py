"""Scale powers: with which power an activation scales when all that its unit owns is scaled.

By-worker aggregation scales everything trained that a unit owns by the share s of the workers that
hold the unit (or by what is left of it while it fades). The output of a convolution is then scaled
by s; behind a depthwise convolution, which belongs to the same unit, by s²; and not at all if the
filter is frozen. The statistics of a batch norm must be scaled like the activation in front of it,
so tracing finds its *power* of s.

A layer that mixes units has the power of its row, 1 or 0, and a norm has the power of its scale,
whatever their input. Every other operation is tried: it runs on random inputs, and again on the
same inputs scaled as s = ½ would scale them. A power that is not whole (about 1.2 for a SiLU) is
rounded: the nearest is better than none.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.units.tensors import tensors_in
from adaptcl.units.tracing.flow import ByTensor, Flow, OperationCall, Tag

_CONVOLUTIONS = {f"conv{n}d" for n in (1, 2, 3)}
_TRANSPOSED = {f"conv_transpose{n}d" for n in (1, 2, 3)}
_TRACKING = {"batch_norm", "instance_norm"}
_WEIGHT = {
    **dict.fromkeys(("linear", "embedding", "embedding_bag", *_CONVOLUTIONS, *_TRANSPOSED), 1),
    **dict.fromkeys(_TRACKING, 3),
    "group_norm": 2,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), 2),
}
"""By layer, the position of its weight among the arguments, or of a list of its weights."""


class ScalePowerObserver:
    """Finds the power of each activation of a forward pass."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.statistics: dict[str, Tensor] = {}
        """By running statistic, the power of its input at each index."""
        self._powers: ByTensor[Tensor] = WeakTensorKeyDictionary()
        """By activation, the power at each index of its units; 1 if it is missing."""
        self._generator = torch.Generator().manual_seed(0)

    def note(self, call: OperationCall, passed: bool) -> None:
        tags = [self._flow.tag(each) for each in call.outputs]
        tagged = {place: tag for place, tag in enumerate(tags) if tag is not None}
        if passed and tagged:
            powers = self._of_layer if call.name in _WEIGHT else self._of_operation
            for place, power in powers(call, tagged).items():
                self._powers[call.outputs[place]] = power

    def _of_layer(self, call: OperationCall, outputs: Mapping[int, Tag]) -> dict[int, Tensor]:
        """The power of each output of a layer; notes the power of the input of a norm."""
        weight = call.get(_WEIGHT[call.name], "weight")
        weight = weight[0] if isinstance(weight, list | tuple) else weight
        trained = int(weight is not None and weight.requires_grad)
        found = {place: torch.full_like(tag.ids, trained) for place, tag in outputs.items()}
        power_in = self._power(call.get(0, "input"))
        if power_in is None:
            return found
        if call.name in _TRACKING:
            for statistic in (call.get(1, "running_mean"), call.get(2, "running_var")):
                if statistic is not None:
                    self._note_power(self._flow.name(statistic), power_in)
        groups = call.get(6, "groups", 1) if call.name in _CONVOLUTIONS else 1
        if groups > 1 and self._flow.name(weight) not in self._flow.alike:
            # Each group reads and writes channels of the same unit.
            by_group = power_in.reshape(groups, -1).amin(1)
            for power in found.values():
                power += by_group.repeat_interleave(len(power) // groups)
        return found

    def _note_power(self, statistic: str, powers: Tensor) -> None:
        # A norm that is used twice may have inputs of two powers; the lower one changes less.
        self.statistics[statistic] = torch.minimum(powers, self.statistics.get(statistic, powers))

    def _of_operation(self, call: OperationCall, outputs: Mapping[int, Tag]) -> dict[int, Tensor]:
        """The power of each output of an operation without weights, found by running it."""
        whole: dict[int, Tensor] = {}
        scaled: dict[int, Tensor] = {}
        for tensor in call.operands:
            if (scale := self._scale(tensor)) is not None:
                values = torch.rand(tensor.shape, generator=self._generator) + 0.1
                whole[id(tensor)] = values.to(tensor)
                scaled[id(tensor)] = (values * scale).to(tensor)
        try:
            before, after = (_sizes(call, each, outputs) for each in (whole, scaled))
        except (RuntimeError, IndexError):  # an in-place change of shape cannot be repeated
            return {}
        ratios = {place: before[place] / after[place] for place in outputs}
        return {
            place: ratio.log2().round().nan_to_num(0, 0, 0).clamp_min(0).to(torch.int64)
            for place, ratio in ratios.items()
        }

    def _power(self, tensor: Tensor) -> Tensor | None:
        """The power at each index of an activation's units; None if it has none."""
        tag = self._flow.tag(tensor)
        if tag is None:
            return None
        known = self._powers.get(tensor)
        return torch.ones_like(tag.ids) if known is None else known

    def _scale(self, tensor: Tensor) -> Tensor | None:
        """The factor of an operand if s = ½; None if it has no units."""
        tag, powers = self._flow.tag(tensor), self._power(tensor)
        if tag is not None and powers is not None and tensor.is_floating_point():
            shape = [1] * tensor.dim()
            shape[tag.dim] = len(powers)
            return (0.5**powers).reshape(shape)
        if self._flow.is_parameter(tensor):
            name = self._flow.name(tensor)
            slots = (self._flow.slots.get((name, dim)) for dim in range(tensor.dim()))
            if any(slot is not None and slot[1] for slot in slots):
                return torch.tensor(0.5 if tensor.requires_grad else 1.0)
        return None


def _sizes(
    call: OperationCall, inputs: Mapping[int, Tensor], outputs: Mapping[int, Tag]
) -> dict[int, Tensor]:
    """How large each output is at each index of its units, for these inputs."""
    # An operand that the operation writes into has units, so a stand-in replaces it here.
    results = list(tensors_in(call.replay(lambda tensor: inputs.get(id(tensor), tensor))))
    return {place: _size(results[place], tag.dim) for place, tag in outputs.items()}


def _size(tensor: Tensor, dim: int) -> Tensor:
    others = [each for each in range(tensor.dim()) if each != dim]
    values = tensor.abs() if tensor.is_floating_point() else tensor
    return values.sum(others, dtype=torch.float64).cpu() if others else values.double().cpu()
