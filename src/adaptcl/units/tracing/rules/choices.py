"""Choices: which of several dimensions shrinks in a cut, left open until an operation decides it.

`view(n, length, 3, heads, size)` spreads the outputs of a layer over three dimensions. A cut can
shrink any one of them, and only what follows tells which: attention works with fewer heads, a
convolution behind `view(n, channels, 7, 7)` with fewer channels. So the tags of all options are
followed side by side. Every operation is tried with each of them, and options that it cannot pass
are dropped. A choice is made when one option is left, when the options end up in the same
dimension, or where two choices meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

from torch import Tensor

from adaptcl.units.tracing.flow import Flow, OpenTag, OperationCall, Rule, Tag


class Choice:
    """One activation whose units lie along one of several dimensions."""

    def __init__(
        self,
        out: Tensor,
        tags: Sequence[Tag],
        default: int,
        couple: Callable[[Tag], None],
        place: str,
        *,
        must_pass: bool = False,
    ) -> None:
        """`couple` makes one of the tags true; `default` is the usual one. `place` is the operation
        that opens the choice. With `must_pass` there are no units at all unless an option passes
        every operation."""
        self.must_pass = must_pass
        self._out = out
        self._tags = tags
        self._default = default
        self._couple = couple
        self._place = place
        self.options = list(range(len(tags)))
        self._passed: list[tuple[Rule, OperationCall]] = []

    @property
    def default(self) -> int:
        return self._default if self._default in self.options else self.options[0]

    def defer(self, options: Sequence[int], rule: Rule, call: OperationCall) -> None:
        """Note an operation that all of these options pass, and drop the other options."""
        self.options = list(options)
        self._passed.append((rule, call))

    def settle(self, flow: Flow, option: int) -> None:
        """Choose an option, and apply the rules of all operations passed since."""
        self.options = [option]
        for _, call in self._passed:
            for out in call.outputs:
                flow.opened.pop(out, None)
        tag = self._tags[option]
        place, flow.coupling.place = flow.coupling.place, self._place
        self._couple(tag)
        flow.put(self._out, tag.ids, tag.dim, tag.zero)
        passed, self._passed = self._passed, []
        for rule, call in passed:
            follow(flow, rule, call)
        flow.coupling.place = place


def enter(flow: Flow, tensor: Tensor) -> None:
    """Let a parameter or a buffer take part in an operation as an activation does.

    Its units lie along any of its dimensions, and own it: positions that are added, the scales of a
    frozen batch norm, a table of biases with a column for each head.
    """
    if not flow.is_state(tensor) or not tensor.is_floating_point():
        return
    if flow.tag(tensor) is not None or flow.opened.get(tensor) is not None:
        return
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    tags = [Tag(flow.coupling.fresh(tensor.shape[dim]), dim, zero=True) for dim in dims]

    def own(tag: Tag) -> None:
        flow.own(tensor, tag.dim, tag.ids)

    if len(tags) > 1:
        choice = Choice(tensor, tags, len(tags) - 1, own, flow.coupling.place, must_pass=True)
        flow.open(tensor, OpenTag(choice, dict(enumerate(tags))))
    elif tags:
        own(tags[0])
        flow.put(tensor, tags[0].ids, tags[0].dim, zero=True)


def follow(flow: Flow, rule: Rule | None, call: OperationCall) -> bool:
    """Apply the rule of an operation; if it has none or declines, pin everything that it reaches.

    Returns whether the operation was passed.
    """
    flow.coupling.place = call.place
    reached = [each for each in call.operands if flow.concerns(each)]
    if not reached:
        return True
    choices = _open_choices(flow, call.operands)
    options = tuple(choice.default for choice in choices)
    if rule is not None and choices:
        found = _outcomes(flow, rule, call, choices)
        if _stays_open(flow, rule, call, choices, found):
            return True
        if found and options not in found:
            options = next(iter(found))
        if not found and any(choice.must_pass for choice in choices):
            rule = None
    for choice, option in zip(choices, options, strict=True):
        choice.settle(flow, option)
    mixed = any(flow.mixed.get(each) is not None for each in call.operands)
    if rule is not None and not mixed and _applies(flow, rule, call):
        return True
    for tensor in [*reached, *call.outputs]:
        flow.pin(tensor, f"a cut is not known to pass through {call.place}")
    return False


def _open_choices(flow: Flow, operands: Sequence[Tensor]) -> list[Choice]:
    found = (flow.opened.get(each) for each in operands)
    return list(dict.fromkeys(each.choice for each in found if each is not None))


def _outcomes(
    flow: Flow, rule: Rule, call: OperationCall, choices: Sequence[Choice]
) -> dict[tuple[int, ...], list[Tag | None]]:
    """By options of the choices that pass this operation, the tags of what it gives."""
    found: dict[tuple[int, ...], list[Tag | None]] = {}
    for options in product(*(choice.options for choice in choices)):
        with _trial(flow, call, dict(zip(choices, options, strict=True))):
            pins = flow.coupling.pins
            if _applies(flow, rule, call) and flow.coupling.pins == pins:
                found[options] = [_expected(flow, out) for out in call.outputs]
    # Units that are still there can be cut; units that an operation sums up may not be.
    lasting = {options: tags for options, tags in found.items() if any(tags)}
    return lasting or found


def _stays_open(
    flow: Flow,
    rule: Rule,
    call: OperationCall,
    choices: Sequence[Choice],
    found: Mapping[tuple[int, ...], list[Tag | None]],
) -> bool:
    """Leave the only choice open if the dimension of the result depends on it."""
    if len(choices) != 1 or len(found) < 2 or not _differ(list(found.values())):
        return False
    (choice,) = choices
    for place, out in enumerate(call.outputs):
        tags = {options[0]: tags[place] for options, tags in found.items()}
        flow.open(out, OpenTag(choice, {one: tag for one, tag in tags.items() if tag}))
    choice.defer([options[0] for options in found], rule, call)
    return True


def _expected(flow: Flow, out: Tensor) -> Tag | None:
    """The tag of an activation, or the usual one if this operation opens another choice."""
    opened = flow.opened.get(out)
    return flow.tag(out) if opened is None else opened.tags[opened.choice.default]


def _differ(outcomes: Sequence[Sequence[Tag | None]]) -> bool:
    """Whether every output has a tag for all options, and in a dimension that depends on them."""
    by_output = list(zip(*outcomes, strict=True))
    return all(all(tags) for tags in by_output) and any(
        len({tag.dim for tag in tags if tag is not None}) > 1 for tags in by_output
    )


@contextmanager
def _trial(flow: Flow, call: OperationCall, options: Mapping[Choice, int]) -> Iterator[None]:
    """The flow as it is with these options, for a rule whose effects are forgotten at the end."""
    with flow.trial([*call.operands, *call.outputs]):
        for tensor in call.operands:
            if (opened := flow.opened.get(tensor)) is not None:
                tag = opened.tags[options[opened.choice]]
                flow.put(tensor, tag.ids, tag.dim, tag.zero)
        yield


def _applies(flow: Flow, rule: Rule, call: OperationCall) -> bool:
    try:
        return rule(flow, call)
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return False  # the rule does not know this way of calling the operation
