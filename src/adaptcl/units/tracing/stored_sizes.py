"""Stored sizes: attributes such as `num_heads` that a forward pass reads, and a cut must change.

PyTorch's layers are known (`reconfigure.py`), but every model has its own attributes. While it is
traced, an observer notes which operations are given the number of some units as a size, and which
attributes of the running module hold that number. Whether they are the source of it is found by
trial: after the right ones are set, cutting equals zeroing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adaptcl.units.tracing.flow import Flow, OperationCall
from adaptcl.units.tracing.rules.movements import sizes_asked
from adaptcl.units.unit_map import FIXED, Kept, Layer, StoredSize, UnitMap

_SIZED = "view reshape unflatten expand broadcast_to split split_with_sizes narrow zeros new_zeros"
_TAKING_SIZES = frozenset(_SIZED.split())

_TRIALS = 40
"""How many sets of attributes are tried at most."""


@dataclass(frozen=True)
class SizedOperation:
    """An operation whose result has as many units as one of its arguments says."""

    out: Tensor
    sizes: frozenset[int]
    module: str


class SizeObserver:
    """Notes the operations of a forward pass that take sizes."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._operations: list[SizedOperation] = []
        self.told: list[tuple[Tensor, str]] = []
        """Candidates of which an operation is told how many there are, and which that is."""

    def note(self, call: OperationCall, passed: bool) -> None:
        if call.name in _TAKING_SIZES and passed:
            leaves = tree_leaves((call.args, call.kwargs))
            sizes = frozenset(each for each in leaves if type(each) is int)
            module = self._flow.module
            self._operations += [SizedOperation(out, sizes, module) for out in call.outputs]
            if call.name in ("view", "reshape"):
                self._note_told(call)

    def attributes(self, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
        """Module, attribute and candidates of every size that may be read from an attribute."""
        modules = dict(model.named_modules())
        for each in self._operations:
            tag = self._flow.tag(each.out)
            if tag is not None and len(tag.ids) in each.sizes:
                for module, attribute in _holders(modules, each.module, len(tag.ids)):
                    yield module, attribute, tag.ids

    def _note_told(self, call: OperationCall) -> None:
        tag, sizes = self._flow.tag(call.out), sizes_asked(call)
        if tag is not None and sizes and sizes[tag.dim] != -1:
            self.told.append((tag.ids, f"{call.place} is told the size {sizes[tag.dim]}"))


def _holders(modules: Mapping[str, nn.Module], running: str, number: int) -> list[tuple[str, str]]:
    """The attributes that hold a number: of the running module, of those in it, or around it."""
    around = [running]
    while around[-1]:
        around.append(around[-1].rpartition(".")[0])
    inside = [name for name in modules if name.startswith(f"{running}.") or not running]
    for names in ([running], inside, *([name] for name in around[1:])):
        found = [(name, each) for name in names for each in _attributes(modules[name], number)]
        if found:
            return found
    return []


def _attributes(module: nn.Module, number: int) -> list[str]:
    if type(module).__module__.startswith("torch.nn."):
        return []
    values = vars(module).items()
    return [name for name, value in values if type(value) is int and value == number]


def choose_sizes(
    model: nn.Module, units: UnitMap, part: Kept, agrees: Callable[[UnitMap, Kept], bool]
) -> UnitMap:
    """Keep those of the possible stored sizes that must be set for a cut to equal zeroing.

    Modules of the same class use their attributes alike, so these are tried together. Cutting all
    layers to a small `part` takes least time, but fails if any other layer is wrong.
    """
    kinds = {name: type(module) for name, module in model.named_modules()}
    by_kind: dict[tuple[type, str], list[StoredSize]] = {}
    for size in units.sizes:
        if bool((size.ids != FIXED).any()):
            by_kind.setdefault((kinds[size.module], size.attribute), []).append(size)
    units = replace(units, sizes=())
    groups = _sharing_layers(units, list(by_kind.values()))
    for group in groups:
        layers = _layers_of(units, [size for sizes in group for size in sizes])
        # Of layers that are the same in every block, the first takes least time to fail.
        last = next(each for each in layers if each.place_in_block == layers[-1].place_in_block)
        some = dict.fromkeys((tuple(layers), (layers[0],), (last,)))
        for kept in [*([part] if len(groups) == 1 else []), *(_halved(units, e) for e in some)]:
            if (chosen := _first_right(units, group, kept, agrees)) is not None:
                units = replace(units, sizes=units.sizes + tuple(chosen))
                break
    return units


def _first_right(
    units: UnitMap,
    group: Sequence[Sequence[StoredSize]],
    kept: Kept,
    agrees: Callable[[UnitMap, Kept], bool],
) -> list[StoredSize] | None:
    """The first set of attributes with which a model can be so cut; None if there is none."""
    for chosen in _subsets(group):
        sizes = [size for each in chosen for size in each]
        if agrees(replace(units, sizes=units.sizes + tuple(sizes)), kept):
            return sizes
    return None


def _halved(units: UnitMap, layers: Sequence[Layer]) -> Kept:
    kept = units.everything()
    for layer in layers:
        kept[layer.units.start + max(1, len(layer.units) // 2) : layer.units.stop] = False
    return kept


def _subsets(
    group: Sequence[Sequence[StoredSize]],
) -> Iterator[Sequence[Sequence[StoredSize]]]:
    """None of the attributes, all of them, and then sets of one, two and more."""
    yield ()
    yield group
    smaller = (each for count in range(1, len(group)) for each in combinations(group, count))
    for _, each in zip(range(_TRIALS), smaller, strict=False):
        yield each


def _sharing_layers(
    units: UnitMap, attributes: Sequence[list[StoredSize]]
) -> list[list[list[StoredSize]]]:
    """The attributes in groups: those that count units of the same layer must fit each other."""
    groups: list[tuple[set[str], list[list[StoredSize]]]] = []
    for sizes in attributes:
        names = {layer.name for layer in _layers_of(units, sizes)}
        together = [sizes]
        for group in [each for each in groups if each[0] & names]:
            groups.remove(group)
            names, together = names | group[0], [*group[1], *together]
        groups.append((names, together))
    return [together for _, together in groups]


def _layers_of(units: UnitMap, sizes: Sequence[StoredSize]) -> list[Layer]:
    counted = {unit for size in sizes for unit in size.ids.tolist()}
    return [layer for layer in units.layers if not counted.isdisjoint(layer.units)]
