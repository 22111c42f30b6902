"""*Index*: units go in the order of their position, as in HeteroFL (Diao et al. 2020).

The simplest order that is identical for all workers and constant over time, and the one whose
variants the paper uses to find out why it works. Positions are relative to the width of the
layer, so that all layers shrink in proportion.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptcl.pruning.order import ServerView
from adaptcl.units import UnitMap


class Index:
    """The unit with the highest index goes first."""

    summary = "by position in the layer, highest index first (HeteroFL)"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """1 for the first unit of a layer, falling evenly towards 0."""
        return from_start(view.units, 0.0)


def from_start(units: UnitMap, start: float) -> Tensor:
    """Index order that begins at `start`, a share of each layer from 0 to below 1.

    Counting goes up from the start and around the end; what is counted last goes first. Of n
    units, ⌈n·share⌉ have an importance above 1 − share: never none of them.
    """
    importance = torch.ones(units.count)
    for layer in units.layers:
        width = len(layer.units)
        first = math.floor(start * width)
        position = (torch.arange(width) - first) % width
        importance[layer.units.start : layer.units.stop] = 1 - position / width
    return importance
