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
from adaptcl.seeds import generator
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


# *No adjacent*: one random order, identical for all workers and constant over time.
#
# Takes adjacency away from *Index* and leaves the rest: the paper finds that it learns as well,
# so adjacency does not matter.


class NoAdjacent:
    """A random order of the units of each layer, drawn from the run's seed alone."""

    summary = "one random order, identical for all workers and constant"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """The values of *Index*, shuffled within each layer so that layers shrink as there."""
        dice = generator(view.seed, "no-adjacent")
        importance = torch.ones(view.units.count)
        for layer in view.units.layers:
            width = len(layer.units)
            position = torch.randperm(width, generator=dice)
            importance[layer.units.start : layer.units.stop] = 1 - position / width
        return importance


# *No constant*: index order from a new random start at each pruning, identical for all workers.
#
# Takes constancy away from *Index*. The paper finds that the global model converges, but to a
# lower accuracy.


class NoConstant:
    """Index order that starts elsewhere at each pruning, at the same share of every layer."""

    summary = "by index from a new start at each pruning, identical for all workers"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """Depends on the seed and the number of the pruning, never on the worker."""
        start = float(torch.rand((), generator=generator(view.seed, "no-constant", view.pruning)))
        return from_start(view.units, start)


# *No identical*: index order from a random start of each worker's own, constant over time.
#
# Takes identity away from *Index*: workers keep different units. The paper finds that the global
# model then does not converge, so identity is what matters most.


class NoIdentical:
    """Index order that starts elsewhere for each worker, at the same share of every layer."""

    summary = "by index from a random start of each worker's own, constant"
    frozen = False

    def importance(self, view: ServerView) -> Tensor:
        """Depends on the seed and the worker, never on the pruning."""
        start = float(torch.rand((), generator=generator(view.seed, "no-identical", view.worker)))
        return from_start(view.units, start)
