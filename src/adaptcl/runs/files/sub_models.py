"""The workers' sub-models so far, stored so that they can be cut again later.

Their tensors are those of the global model. So only the kept units of each worker are stored, and
where they are in the tensors: a few bits for each unit and worker.
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
from adaptcl.training.objectives.evaluation import score
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.units import Kept, Layer, Slot, UnitMap, flops, kept_key, retention, submodel
from adaptcl.units.unit_map import Average, StoredSize


class Savings(NamedTuple):
    """How much smaller the workers' sub-models are than the whole model."""

    retention: tuple[float, ...]  # by worker
    params_saved: float
    flops_saved: float

    @classmethod
    def of(cls, units: UnitMap, kept: Sequence[Kept]) -> Savings:
        # Ten thousand workers share a few sub-models.
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
    """The kept units of every worker."""

    slots: tuple[Slot, ...]
    distinct: tuple[Kept, ...]  # the different sub-models; many of a thousand workers may share one
    of_worker: tuple[int, ...]  # for each worker, the index of its sub-model in `distinct`
    alike: frozenset[str] = frozenset()  # as in the `UnitMap`
    sizes: tuple[StoredSize, ...] = ()  # as in the `UnitMap`
    averages: tuple[Average, ...] = ()  # as in the `UnitMap`

    @classmethod
    def of(cls, units: UnitMap, kept: Sequence[Kept]) -> SubModels:
        keys = [kept_key(each) for each in kept]
        distinct = dict(zip(keys, kept, strict=True))
        place = {key: number for number, key in enumerate(distinct)}
        of_worker = tuple(place[key] for key in keys)
        return cls(
            units.slots,
            tuple(distinct.values()),
            of_worker,
            units.alike,
            units.sizes,
            units.averages,
        )

    def cut(self, model: nn.Module, worker: int) -> nn.Module:
        """A worker's sub-model as a smaller module, with the values of the whole model."""
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
        units = UnitMap(
            self.slots, layers, shapes, frozenset(), frozenset(), (),
            alike=self.alike, sizes=self.sizes, averages=self.averages,
        )  # fmt: skip
        return submodel(model, units, kept)

    def tested(
        self, model: nn.Module, samples: Samples, objective: Objective = CLASSIFICATION
    ) -> tuple[float, ...]:
        """The main metric of each worker's sub-model; equal sub-models are tested once."""
        found: dict[int, float] = {}
        for worker, which in enumerate(self.of_worker):
            if which not in found:
                tested = score(self.cut(model, worker), samples, objective)
                found[which] = tested.metrics[tested.main]
        return tuple(found[which] for which in self.of_worker)

    def to_tree(self) -> Tree:
        return {
            "slots": [[each.tensor, each.dim, each.ids, each.owned] for each in self.slots],
            "distinct": list(self.distinct),
            "of_worker": torch.tensor(self.of_worker),
            "alike": sorted(self.alike),
            "sizes": [[each.module, each.attribute, each.ids] for each in self.sizes],
            "averages": [[each.module, each.dim, each.ids] for each in self.averages],
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> SubModels:
        of_worker: Tensor = tree["of_worker"]
        return cls(
            tuple(Slot(*each) for each in tree["slots"]),
            tuple(tree["distinct"]),
            tuple(of_worker.tolist()),
            frozenset(tree["alike"]),
            tuple(StoredSize(*each) for each in tree.get("sizes", [])),
            tuple(Average(*each) for each in tree.get("averages", [])),
        )
