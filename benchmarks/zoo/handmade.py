"""Models as people write them with PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.units.tensors import Tensors


class TextClassifier(nn.Module):
    """An embedding, a recurrent layer and a linear one."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layer = layer(32, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 3)

    def forward(self, texts: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.embed(texts))[0][:, -1])
        return scores


class Tokens(nn.Module):
    """PyTorch's transformer on texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 3)

    def forward(self, texts: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(self.embed(texts)).mean(1))
        return scores


class GraphNet(nn.Module):
    """Graph convolutions with a dense matrix of edges."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.rand(nodes, nodes).softmax(-1))
        self.edges: Tensor
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.edges @ self.second(F.relu(self.edges @ self.first(x)))
        return scores


class GatedConvolutions(nn.Module):
    """A WaveNet-like stack with `glu`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 32, 1)
        self.layers = nn.ModuleList(nn.Conv1d(32, 64, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + F.glu(layer(x), 1)
        scores: Tensor = self.head(x.mean(-1))
        return scores


def _texts() -> Tensor:
    return torch.randint(0, 100, (2, 12))


def _sigmoid_net() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.Sigmoid(), nn.Linear(128, 64), nn.Sigmoid(),
        nn.Linear(64, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensors]]] = {
    "LSTM": lambda: (TextClassifier(nn.LSTM), _texts()),
    "GRU": lambda: (TextClassifier(nn.GRU), _texts()),
    "nn.TransformerEncoder": lambda: (Tokens(), _texts()),
    "dense graph net": lambda: (GraphNet(12), torch.randn(2, 12, 16)),
    "gated convolutions": lambda: (GatedConvolutions(), torch.randn(2, 4, 16)),
    "sigmoid net": lambda: (_sigmoid_net(), torch.randn(2, 8, 8)),
}
"""By name, what makes a model and a batch for it."""
