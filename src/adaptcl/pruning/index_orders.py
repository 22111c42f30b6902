"""Index and the paper's variants of it: No adjacent, No identical and No constant.

Index cuts units by their position in the layer, as HeteroFL does (Diao et al. 2020). It is the
simplest order that is identical for all workers and constant over time. The paper takes one
property away at a time to find out which of them matter. Positions are relative to the width of the
layer, so that all layers shrink in proportion.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adaptcl import seeds
from adaptcl.pruning.order import Computed, ServerView
from adaptcl.units import UnitMap


class Index:
    """The unit with the highest index is cut first."""

    summary = "by position in the layer, highest index first (HeteroFL)"
    computed: Computed = "every-pruning"

    def start(self, view: ServerView) -> float:
        """Where in each layer the order begins, a share of it from 0 to below 1."""
        return 0.0

    def importance(self, view: ServerView) -> Tensor:
        return from_start(view.units, self.start(view))


def from_start(units: UnitMap, start: float) -> Tensor:
    """Index order that begins at `start`.

    The unit at `start` has importance 1. With rising index, wrapping around at the end of the
    layer, it falls evenly to 1/n. So of every layer's n units, ⌈n·s⌉ are above 1 − s.
    """
    importance = torch.ones(units.count)
    for layer in units.layers:
        width = len(layer.units)
        first = math.floor(start * width)
        position = (torch.arange(width) - first) % width
        importance[layer.units.start : layer.units.stop] = 1 - position / width
    return importance


class NoAdjacent:
    """A random order of the units of each layer, identical for all workers and constant.

    It is Index without adjacency. The paper finds that it learns as well, so adjacency does not
    matter.
    """

    summary = "one random order, identical for all workers and constant"
    computed: Computed = "every-pruning"

    def importance(self, view: ServerView) -> Tensor:
        # The values of Index, shuffled within each layer, so that layers shrink as there.
        generator = seeds.generator(view.seed, "no-adjacent")
        importance = torch.ones(view.units.count)
        for layer in view.units.layers:
            width = len(layer.units)
            position = torch.randperm(width, generator=generator)
            importance[layer.units.start : layer.units.stop] = 1 - position / width
        return importance


class NoConstant(Index):
    """Index order from a new random start at each pruning, identical for all workers.

    It is Index without constancy. The paper finds that the global model converges, but to a lower
    accuracy.
    """

    summary = "by index from a new start at each pruning, identical for all workers"

    def start(self, view: ServerView) -> float:
        generator = seeds.generator(view.seed, "no-constant", view.pruning)
        return float(torch.rand((), generator=generator))


class NoIdentical(Index):
    """Index order from a random start that differs among workers, constant over time.

    It is Index without identity: workers keep different units. The paper finds that the global
    model then does not converge, so identity matters most.
    """

    summary = "by index from a random start of each worker's own, constant"

    def start(self, view: ServerView) -> float:
        generator = seeds.generator(view.seed, "no-identical", view.worker)
        return float(torch.rand((), generator=generator))
