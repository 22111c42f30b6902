"""Rules for recurrent layers: each of `nn.LSTM`, `nn.GRU` and `nn.RNN` is a single operation.

A hidden unit has a row in every gate, in the weights for the input and in those for the state, and
a column that reads its state. All layers of such a module have the same width. So the units at one
position of all of them are one unit, which the output and both final states hold at that position.

A unit whose rows are zero keeps a state of zero, as the new value that the gates let in is tanh(0).
Its first state must be zero for that: no state is given, or zeros, or units of another layer, which
become one with these.
"""

from __future__ import annotations

from torch import Tensor

from adaptcl.units.tensors import tensors_in
from adaptcl.units.tracing.coupling import PINNED
from adaptcl.units.tracing.flow import Flow, OperationCall, Rule
from adaptcl.units.tracing.rules.layers import own, read

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""By operation, how many rows of a weight a hidden unit has."""

BIDIRECTIONAL = "hidden units of a bidirectional layer are not cut"
PROJECTED = "hidden units of a layer with `proj_size` are not cut"
GIVEN_STATE = "its first state is given and is neither zero nor made of units"
PACKED = "it reads packed sequences"


def recurrent(flow: Flow, call: OperationCall) -> bool:
    """Columns of the first layer read the input; hidden units are new units."""
    if not isinstance(call.get(3, "has_biases"), bool):
        flow.explain(call.args[3], PACKED)
        return False
    output, *last_states = call.out
    states, weights = list(tensors_in(call.get(1, "hx"))), call.get(2, "params")
    for weight in weights:
        if weight.dim() == 2 and flow.is_parameter(weight):
            flow.count_work(weight, output.numel() // output.shape[-1])
    if not all(map(flow.is_parameter, weights)):
        return False
    why = _obstacle(flow, call, weights[1], states)
    if why is not None:
        flow.explain(weights, why)
        return not any(map(flow.concerns, states)) and _read_only(flow, call, weights)
    if not _read_input(flow, call, weights[0]):
        return False
    rows = flow.rows(weights[0], 0, groups=_GATES[call.name])
    own(flow, rows, *weights[1:])
    hidden = rows[: output.shape[-1]]
    for weight in weights[1:]:
        if weight.dim() == 2:
            flow.claim(weight, 1, hidden, owned=False)
    for state in states:
        if (tag := flow.tag(state)) is not None:
            flow.coupling.couple(tag.ids, hidden)
    for tensor in (output, *states, *last_states):
        flow.put(tensor, hidden, tensor.dim() - 1, zero=True)
    return True


def _obstacle(
    flow: Flow, call: OperationCall, recurrent_weight: Tensor, states: list[Tensor]
) -> str | None:
    """Why no hidden unit can be cut, if that is so."""
    rows, columns = recurrent_weight.shape
    if call.get(7, "bidirectional"):
        return BIDIRECTIONAL
    if rows != columns * _GATES[call.name]:
        return PROJECTED
    return None if all(_may_start(flow, state) for state in states) else GIVEN_STATE


def _may_start(flow: Flow, state: Tensor) -> bool:
    """Whether the entry of a zeroed unit in a first state is zero, and can be cut."""
    tag = flow.tag(state)
    if tag is None:
        return flow.is_zeros(state)
    pinned = PINNED in flow.coupling.roots(tag.ids)
    return tag.zero and tag.dim == state.dim() - 1 and not pinned


def _read_input(flow: Flow, call: OperationCall, weight: Tensor) -> bool:
    activation = call.get(0, "input")
    return read(flow, activation, activation.dim() - 1, weight, 1)


def _read_only(flow: Flow, call: OperationCall, weights: list[Tensor]) -> bool:
    """Let the first layer follow the units of its input, and cut nothing else."""
    directions = 1 + call.get(7, "bidirectional")
    of_direction = len(weights) // (call.get(4, "num_layers") * directions)
    first = weights[: directions * of_direction : of_direction]
    for weight in weights:
        if any(weight is each for each in first):
            flow.fix(weight, 0)
            if not _read_input(flow, call, weight):
                return False
        else:
            flow.pin(weight)
    return True


RECURRENT_RULES: dict[str, Rule] = dict.fromkeys(_GATES, recurrent)
