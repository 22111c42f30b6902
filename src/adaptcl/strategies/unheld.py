"""What no sub-model holds counts as cut in the model that is delivered.

The server's own model keeps the last value of it, so that a lost worker's units stay defined and a
sub-model can grow. But nobody trains it any more, so whoever gets the model gets zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaptcl.strategies.holders import Holders
from adaptcl.units import Kept, State, UnitMap, zero


def unheld_zeroed(
    state: State, units: UnitMap, sub_models: Sequence[Kept], *, by_worker: bool
) -> State:
    """The model with zeros for the units that no sub-model holds.

    Merged by worker, also for what two units share that nobody holds together: held by one worker
    of W it would be divided by W, so held by none it is nothing.
    """
    held = torch.stack(list(sub_models)).any(0)
    state = state if bool(held.all()) else zero(state, units, held)
    if not by_worker or any(bool(kept.all()) for kept in sub_models):
        return state
    holders = Holders(units, next(iter(state.values())).device)
    for kept in sub_models:
        holders.add(kept, 1.0)
    trained = {name for name in units.by_tensor if units.tied.get(name, name) in units.parameters}
    zeroed = {
        name: torch.where(weight > 0, state[name], 0)
        for name, weight in holders.weights().items()
        if name in trained - units.frozen and not bool((weight > 0).all())
    }
    return {**state, **zeroed}
