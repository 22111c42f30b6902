"""The workers' sub-models at the end of a run, kept so that they can be cut without the run.

What is kept is not the tensors, which are the global model's, but which units each worker has and
where in the tensors they are: a few bits for each unit and worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError, RunFolderError
from adaptcl.storage import Tree
from adaptcl.training.evaluation import accuracy
from adaptcl.units import Kept, Layer, Slot, UnitMap, flops, kept_key, retention, submodel


class Savings(NamedTuple):
    """What the workers' sub-models are less than the whole model."""

    retention: tuple[float, ...]
    """By worker."""
    params_saved: float
    flops_saved: float

    @classmethod
    def of(cls, units: UnitMap, kept: Sequence[Kept]) -> Savings:
        """Of the sub-models that a strategy ends with."""
        # Of ten thousand workers most have one of a few sub-models.
        distinct = {kept_key(each): each for each in kept}
        share = {key: retention(units, each) for key, each in distinct.items()}
        work = {key: flops(units, each) for key, each in distinct.items()}
        keys = [kept_key(each) for each in kept]
        whole = flops(units, units.everything())  # 0 where none can be counted
        retentions = tuple(share[key] for key in keys)
        return cls(
            retentions,
            1 - sum(retentions) / len(retentions),
            1 - sum(work[key] for key in keys) / whole / len(keys) if whole else 0.0,
        )


@dataclass(frozen=True, eq=False)
class SubModels:
    """Which units every worker has."""

    slots: tuple[Slot, ...]
    distinct: tuple[Kept, ...]
    """The different sub-models there are: of a thousand workers many may have the same."""
    of_worker: tuple[int, ...]
    """By worker, which of them it has."""
    alike: frozenset[str] = frozenset()
    """As in the `UnitMap`."""

    @classmethod
    def of(cls, units: UnitMap, kept: Sequence[Kept]) -> SubModels:
        """Those that a strategy ends with."""
        keys = [kept_key(each) for each in kept]
        distinct = dict(zip(keys, kept, strict=True))
        place = {key: number for number, key in enumerate(distinct)}
        of_worker = tuple(place[key] for key in keys)
        return cls(units.slots, tuple(distinct.values()), of_worker, units.alike)

    def cut(self, model: nn.Module, worker: int) -> nn.Module:
        """A worker's sub-model with the values of a whole model: a smaller module."""
        if not 0 <= worker < len(self.of_worker):
            raise AdaptCLError(
                f"There is no worker {worker}: they are numbered 0 to {len(self.of_worker) - 1}."
            )
        kept = self.distinct[self.of_worker[worker]]
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        for slot in self.slots:
            if len(shapes.get(slot.tensor, ())) <= slot.dim or (
                shapes[slot.tensor][slot.dim] != len(slot.ids)
            ):
                raise RunFolderError(f"The run had another model: they differ in {slot.tensor}.")
        layers = (Layer("", range(len(kept))),) if len(kept) else ()
        units = UnitMap(self.slots, layers, shapes, frozenset(), frozenset(), (), alike=self.alike)
        return submodel(model, units, kept)

    def accuracies(self, model: nn.Module, samples: Samples) -> tuple[float, ...]:
        """The accuracy of each worker's sub-model; equal sub-models are tested once."""
        found: dict[int, float] = {}
        for worker, which in enumerate(self.of_worker):
            if which not in found:
                found[which] = accuracy(self.cut(model, worker), samples)
        return tuple(found[which] for which in self.of_worker)

    def to_tree(self) -> Tree:
        """What is written to a file."""
        return {
            "slots": [[each.tensor, each.dim, each.ids, each.owned] for each in self.slots],
            "distinct": list(self.distinct),
            "of_worker": torch.tensor(self.of_worker),
            "alike": sorted(self.alike),
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> SubModels:
        """Read back what `to_tree` gave."""
        of_worker: Tensor = tree["of_worker"]
        return cls(
            tuple(Slot(*each) for each in tree["slots"]),
            tuple(tree["distinct"]),
            tuple(of_worker.tolist()),
            frozenset(tree["alike"]),
        )
