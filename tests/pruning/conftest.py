"""What an order looks at, made from a small model in one call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adaptcl.data import Samples
from adaptcl.pruning import ServerView, WorkerView
from adaptcl.training.objectives.objective import CLASSIFICATION
from adaptcl.units import Kept, UnitMap, submodel, trace


class Folded(nn.Module):
    """Four neurons, added in pairs: two units of two rows each."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 4)
        self.head = nn.Linear(2, 2)

    def folded(self, x: Tensor) -> Tensor:
        """What the head reads."""
        one, two = self.hidden(x).chunk(2, dim=1)
        return one + two  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.folded(x))  # type: ignore[no-any-return]


ServerViews = Callable[..., ServerView]
WorkerViews = Callable[..., WorkerView]


@pytest.fixture
def narrow_and_wide() -> UnitMap:
    """Two layers: units 0 to 3 and 4 to 11."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return trace(model, torch.zeros(1, 3))


@pytest.fixture
def server_view(narrow_and_wide: UnitMap) -> ServerViews:
    """What the server sees of a model; without one, of the narrow and the wide layer."""

    def view(
        model: nn.Module | None = None,
        example: Tensor | None = None,
        worker: int = 0,
        pruning: int = 0,
        seed: int = 0,
    ) -> ServerView:
        if model is None or example is None:
            return ServerView(narrow_and_wide, {}, worker, pruning, seed)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return ServerView(trace(model, example), state, worker, pruning, seed)

    return view


@pytest.fixture
def worker_view() -> WorkerViews:
    """What a worker sees: the model, cut to `kept`, and its samples."""

    def view(
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor | None = None,
        kept: Kept | None = None,
        batch_size: int = 4,
        seed: int = 0,
    ) -> WorkerView:
        units = trace(model, inputs[:1])
        kept = units.everything() if kept is None else kept
        labels = torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels
        samples = Samples(inputs, labels)
        return WorkerView(
            units, submodel(model, units, kept), kept, samples, batch_size, seed, CLASSIFICATION
        )

    return view


@pytest.fixture
def folded() -> Folded:
    """A model whose units have two rows each."""
    torch.manual_seed(0)
    return Folded()
