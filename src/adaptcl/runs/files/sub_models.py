"""The workers' sub-models so far, stored so that they can be cut again later.

Their tensors are those of the global model. So only the kept units of each worker are stored, with
the units of the model: a few bits for each unit and worker. Where the delivered model has measured
batch-norm statistics, each sub-model has its own: those of the whole model do not fit a part of it.
HeteroFL's smallest sub-model had 15 % with them and 57 % with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.errors import AdaptCLError
from adaptcl.storage import Tree
from adaptcl.training.objectives.evaluation import score
from adaptcl.training.objectives.objective import CLASSIFICATION, Objective
from adaptcl.units import Kept, State, UnitMap, flops, kept_key, retention, submodel
from adaptcl.units.as_json import units_from_json, units_to_json


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

    units: Mapping[str, Any]  # those of the model, as JSON
    distinct: tuple[Kept, ...]  # the different sub-models; many of a thousand workers may share one
    of_worker: tuple[int, ...]  # for each worker, the index of its sub-model in `distinct`
    statistics: tuple[State, ...] = ()
    """For each in `distinct` the tensors that were measured on it; empty if none was."""

    @classmethod
    def of(cls, units: UnitMap, kept: Sequence[Kept]) -> SubModels:
        keys = [kept_key(each) for each in kept]
        distinct = dict(zip(keys, kept, strict=True))
        place = {key: number for number, key in enumerate(distinct)}
        of_worker = tuple(place[key] for key in keys)
        # Only pruning needs to know where layers have their units, and these are pruned.
        described = {part: each for part, each in units_to_json(units).items() if part != "outputs"}
        return cls(described, tuple(distinct.values()), of_worker)

    @property
    def layers(self) -> dict[str, int]:
        """How many units each layer of the whole model has."""
        return dict(self.units["layers"])

    def cut(self, model: nn.Module, worker: int) -> nn.Module:
        """A worker's sub-model as a smaller module, with the values of the whole model."""
        if not 0 <= worker < len(self.of_worker):
            raise AdaptCLError(
                f"There is no worker {worker}: they are numbered 0 to {len(self.of_worker) - 1}."
            )
        return self._cut(model, self.of_worker[worker])

    def _cut(self, model: nn.Module, which: int) -> nn.Module:
        smaller = submodel(model, units_from_json(self.units, model), self.distinct[which])
        if self.statistics:
            smaller.load_state_dict(self.statistics[which], strict=False)
        return smaller

    def measured(self, model: nn.Module, measure: Callable[[nn.Module], State]) -> SubModels:
        """The same with what `measure` says of each sub-model; the whole model has it already."""
        found = [
            {} if bool(kept.all()) else measure(self._cut(model, which))
            for which, kept in enumerate(self.distinct)
        ]
        on_cpu = ({name: tensor.cpu() for name, tensor in each.items()} for each in found)
        return replace(self, statistics=tuple(on_cpu))

    def misses_statistics(self, worker: int) -> bool:
        """Whether a worker's sub-model is a part of the model, and nothing was measured on it."""
        return not self.statistics and not bool(self.distinct[self.of_worker[worker]].all())

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
            "units": self.units,
            "distinct": list(self.distinct),
            "of_worker": torch.tensor(self.of_worker),
            **({"statistics": list(self.statistics)} if self.statistics else {}),
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> SubModels:
        of_worker: Tensor = tree["of_worker"]
        statistics = tuple(tree.get("statistics", ()))
        return cls(tree["units"], tuple(tree["distinct"]), tuple(of_worker.tolist()), statistics)
