"""Who takes part in a round: some of the workers, drawn anew each time (McMahan et al., 2017).

With thousands of workers a server asks only some of them in each round. The draw depends on the
seed, the round and who could be asked, and on nothing else, so a run that was interrupted draws
as it would have done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaptcl.errors import SettingError
from adaptcl.seeds import generator


def draw(available: Sequence[int], count: int, seed: int, round_: int) -> list[int]:
    """`count` of the available workers, or all if there are no more, in their order."""
    if count >= len(available):
        return list(available)
    dice = generator(seed, "participants", round_)
    places = torch.randperm(len(available), generator=dice)[:count].sort().values
    return [available[place] for place in places.tolist()]


def refuse_too_many(participants: int, workers: int) -> None:
    """An error if more workers were to be asked than there are."""
    if participants > workers:
        raise SettingError(
            f"participants is {participants}, but there are only {workers} workers; "
            "0 asks all of them."
        )
