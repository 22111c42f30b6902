"""How fast an activation grows with what its unit owns, which merging statistics has to know.

Merged by worker, all that a unit owns and that is trained is scaled by the share s of the workers
that hold the unit; where it fades slowly, by the share s that is left of it. What a convolution
gives is scaled by s then; behind a depthwise convolution, which belongs to the same unit, by s²;
and not at all where the filter is frozen. The statistics of a batch norm must be scaled like the
activation in front of it, so its *power* of s is found here.

A layer that mixes units gives the power of its own row, 1 or 0, and a norm with a scale that of its
scale, whatever comes in. Any other operation is asked: it runs on stand-ins, and again on the same
stand-ins as s = ½ would make them. A power that is no whole number (of a SiLU about 1.2) is
rounded: exact powers stay exact, and for the others the nearest is better than none.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from adaptcl.units.flow import Flow, FlowMode, OperationCall, Tag, tensors_in
from adaptcl.units.rules import HARMLESS, RULES

_CONVOLUTIONS = {f"conv{n}d" for n in (1, 2, 3)}
_TRANSPOSED = {f"conv_transpose{n}d" for n in (1, 2, 3)}
_TRACKING = {"batch_norm", "instance_norm"}
_WEIGHT = {
    **dict.fromkeys(("linear", "embedding", "embedding_bag", *_CONVOLUTIONS, *_TRANSPOSED), 1),
    **dict.fromkeys(_TRACKING, 3),
    "group_norm": 2,
}
"""By layer, which of its arguments is the weight."""


class GrowthMode(FlowMode):
    """Lets units flow through a forward pass, and follows the power of each activation."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow, RULES, HARMLESS)
        self.statistics: dict[str, Tensor] = {}
        """By running statistic, the power in front of it at each index."""
        self._powers: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        """By activation, the power at each index of its units; 1 where nothing is known."""
        self._dice = torch.Generator().manual_seed(0)

    def _passes(self, call: OperationCall) -> bool:
        passed = super()._passes(call)
        if passed:
            outputs = [(out, self._flow.tag(out)) for out in tensors_in(call.out)]
            tagged = {place: tag for place, (_, tag) in enumerate(outputs) if tag is not None}
            powers = self._of_layer if call.name in _WEIGHT else self._asked
            for place, power in powers(call, tagged).items():
                self._powers[outputs[place][0]] = power
        return passed

    def _of_layer(self, call: OperationCall, outputs: Mapping[int, Tag]) -> dict[int, Tensor]:
        """By result the power that a layer gives it; what stands before a norm is noted."""
        weight = call.get(_WEIGHT[call.name], "weight")
        own = int(weight is not None and weight.requires_grad)
        found = {place: torch.full_like(tag.ids, own) for place, tag in outputs.items()}
        given = self._power(call.get(0, "input"))
        if given is None:
            return found
        if call.name in _TRACKING:
            for statistic in (call.get(1, "running_mean"), call.get(2, "running_var")):
                if statistic is not None:
                    self._note(self._flow.name(statistic), given)
        groups = call.get(6, "groups", 1) if call.name in _CONVOLUTIONS else 1
        if groups > 1 and self._flow.name(weight) not in self._flow.alike:
            # Each group reads the channels of one unit, and gives channels of the same.
            by_group = given.reshape(groups, -1).amin(1)
            for power in found.values():
                power += by_group.repeat_interleave(len(power) // groups)
        return found

    def _note(self, statistic: str, powers: Tensor) -> None:
        # Before a norm that is used twice there may be two powers; the lower one changes less.
        self.statistics[statistic] = torch.minimum(powers, self.statistics.get(statistic, powers))

    def _asked(self, call: OperationCall, outputs: Mapping[int, Tag]) -> dict[int, Tensor]:
        """By result the power that the operation itself shows."""
        if not outputs:
            return {}
        whole: dict[int, Tensor] = {}
        scaled: dict[int, Tensor] = {}
        for tensor in tensors_in((call.args, call.kwargs)):
            if (scale := self._scale(tensor)) is not None:
                values = torch.rand(tensor.shape, generator=self._dice) + 0.1
                whole[id(tensor)] = values.to(tensor)
                scaled[id(tensor)] = (values * scale).to(tensor)
        try:
            before, after = (_sizes(call, each, outputs) for each in (whole, scaled))
        except (RuntimeError, IndexError):  # a shape changed in place cannot be changed again
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
        """What s = ½ multiplies an operand by; None if it is not of the units."""
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
    call: OperationCall, given: Mapping[int, Tensor], outputs: Mapping[int, Tag]
) -> dict[int, Tensor]:
    """How large each result is at each index of its units when some operands are given ones."""
    # What an operation writes into has units afterwards, so that is never the model's own.
    results = list(tensors_in(call.replay(lambda tensor: given.get(id(tensor), tensor))))
    return {place: _size(results[place], tag.dim) for place, tag in outputs.items()}


def _size(tensor: Tensor, dim: int) -> Tensor:
    others = [each for each in range(tensor.dim()) if each != dim]
    values = tensor.abs() if tensor.is_floating_point() else tensor
    return values.sum(others, dtype=torch.float64).cpu() if others else values.double().cpu()
