"""A zoo of small nets that do what real ones do, each with what tracing must find in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.units import Description, describe, trace

IMAGE = (3, 8, 8)
CLASSES = 5


def conv_bn(c: int, o: int, k: int = 3, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c, o, k, padding=k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU6())


class Headed(nn.Module, ABC):
    """Image features averaged over space and classified."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, CLASSES)

    @abstractmethod
    def features(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x).mean((2, 3)))
        return scores


class VGG(Headed):
    def __init__(self) -> None:
        super().__init__(10)
        self.a, self.b, self.c = conv_bn(3, 6), conv_bn(6, 8), nn.Conv2d(8, 10, 3)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.c(F.max_pool2d(self.b(self.a(x)), 2)))


class GroupNormsAdded(Headed):
    """Groups of four beside groups of two: coupled, they stay together in fours."""

    def __init__(self) -> None:
        super().__init__(8)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8))
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(4, 8))
        self.outer = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(4, 8))

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return F.relu(x + self.outer(F.relu(self.inner(x))))


class ResNet(Headed):
    def __init__(self) -> None:
        super().__init__(12)
        self.stem = conv_bn(3, 6)
        self.one = nn.Sequential(conv_bn(6, 4), nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6))
        self.two = nn.Sequential(conv_bn(6, 5), nn.Conv2d(5, 12, 1), nn.BatchNorm2d(12))
        self.shortcut = nn.Conv2d(6, 12, 1)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.one(x))
        return F.relu(self.two(x) + self.shortcut(x))


class MobileNetV2(Headed):
    def __init__(self) -> None:
        super().__init__(7)
        self.stem = conv_bn(3, 4)
        self.expand, self.depth = conv_bn(4, 8, 1), conv_bn(8, 8, groups=8)
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.last = conv_bn(4, 7, 1)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.depth(self.expand(x)))
        out: Tensor = self.last(x)
        return out


class DenseNet(Headed):
    def __init__(self) -> None:
        super().__init__(12)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4, 3, padding=1, bias=False))
            for c in (4, 8)
        )
        self.norm = nn.BatchNorm2d(12)

    def features(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return F.relu(self.norm(torch.cat(found, 1)))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-2, -1)) / 2).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, length, width))
        x = x + self.mlp(self.norm2(x))
        scores: Tensor = self.head(x[:, 0])
        return scores


class Encoder(nn.Module):
    """PyTorch's own transformer layer, which hides its work in fused operations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.embed(x.flatten(1, 2))).mean(1))
        return scores


class ShuffleNet(Headed):
    def __init__(self, native: bool = False) -> None:
        super().__init__(8)
        self.stem, self.branch = conv_bn(3, 8), conv_bn(4, 4)
        self.last = conv_bn(8, 8, 1)
        self.shuffle = nn.ChannelShuffle(2) if native else None

    def features(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        x = torch.cat([left, self.branch(right)], dim=1)
        if self.shuffle is not None:
            x = self.shuffle(x)
        else:
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        out: Tensor = self.last(x)
        return out


class ShuffledGroups(Headed):
    """Grouped convolutions around a channel shuffle: no group can be cut alone."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.a, self.b = conv_bn(3, width), conv_bn(width, width, groups=4)
        self.shuffle = nn.ChannelShuffle(4)
        self.c = conv_bn(width, width, 1, groups=4)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(self.shuffle(self.b(self.a(x))))
        return out


class SqueezeExcite(Headed):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem = conv_bn(3, 8)
        self.down, self.up = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 1)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


Move = Callable[[Tensor], Tensor]


class Between(Headed):
    """Two convolutions, something done between them and something done after them."""

    def __init__(self, between: Move = F.relu, after: Move = F.relu, read: int = 8) -> None:
        super().__init__(6)
        self.a, self.between = conv_bn(3, 8), between
        self.b, self.after = conv_bn(read, 6), after

    def features(self, x: Tensor) -> Tensor:
        return self.after(self.b(self.between(self.a(x))))


def half_opens_half(x: Tensor) -> Tensor:
    value, gate = torch.chunk(x, 2, 1)
    return value * gate.sigmoid()


class CatInput(Headed):
    def __init__(self) -> None:
        super().__init__(6)
        self.a, self.b = conv_bn(3, 5), conv_bn(8, 6)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.cat([x, self.a(x)], 1))
        return out


class HardView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = conv_bn(3, 6), conv_bn(6, 4), nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.b(self.a(x)).view(-1, 256))
        return scores


class Shared(Headed):
    def __init__(self) -> None:
        super().__init__(6)
        self.stem, self.again = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.again(F.relu(self.again(F.relu(self.stem(x))))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(192, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(F.relu(self.b(F.relu(self.a(F.relu(self.stem(x.flatten(1))))))))
        return scores


class TiedTransposed(nn.Module):
    """An autoencoder's decoder reads the encoder's weight the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(192, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.encode(x.flatten(1))), self.encode.weight.t())


class Functional(nn.Module):
    """Free parameters, functions for everything, results in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 3, 3, 3))
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.shift = nn.Parameter(torch.rand(6, 1, 1))
        self.temperature = nn.Parameter(torch.ones(1))
        self.weight = nn.Parameter(torch.randn(CLASSES, 96))

    def forward(self, x: Tensor) -> dict[str, tuple[Tensor, ...]]:
        x = F.conv2d(x, self.kernel, padding=1) * self.scale
        x += self.shift
        x = F.avg_pool2d(F.leaky_relu_(x / self.temperature), 2)
        x = F.linear(torch.flatten(x, 1), self.weight)
        return {"scores": (x, x.argmax(1))}


class BufferAdded(Headed):
    def __init__(self) -> None:
        super().__init__(5)
        self.a, self.b = conv_bn(3, 6), conv_bn(6, 5)
        self.register_buffer("mean", torch.rand(6, 1, 1))
        self.mean: Tensor

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x) - self.mean)
        return out


class GroupedCat(Headed):
    """One of two groups holds all that `b` brings forth and a bit of `a`."""

    def __init__(self) -> None:
        super().__init__(6)
        self.a, self.b, self.c = conv_bn(3, 4), conv_bn(4, 2), conv_bn(6, 6, groups=2)

    def features(self, x: Tensor) -> Tensor:
        x = self.a(x)
        out: Tensor = self.c(torch.cat([x, self.b(x)], 1))
        return out


class SpatialAttention(Headed):
    def __init__(self) -> None:
        super().__init__(6)
        self.a, self.mask = conv_bn(3, 6), nn.Conv2d(6, 1, 3, padding=1)

    def features(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return x * torch.sigmoid(self.mask(x))


class Decoder(nn.Module):
    """A latent vector unfolded into an image by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(192, 10)
        self.unfold = nn.Linear(10, 6 * 4)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.elu(self.unfold(F.elu(self.encode(x.flatten(1)))))
        h = F.leaky_relu(self.up(h.view(len(x), -1, 2, 2)))
        image: Tensor = self.out(F.pad(h, (2, 2, 2, 2)))
        return image


class Sequence(nn.Module):
    """Convolution over time, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(24, 6, 3)
        self.norm, self.b = nn.BatchNorm1d(6), nn.Conv1d(6, 5, 1)
        self.rnn, self.head = nn.GRU(5, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.b(F.hardswish(self.norm(self.a(x.reshape(len(x), 24, 8))))))
        scores: Tensor = self.head(self.rnn(x.permute(0, 2, 1))[0][:, -1])
        return scores


def mlp(*norm: nn.Module) -> nn.Module:
    first, last = nn.Linear(192, 7), nn.Linear(9, CLASSES)
    middle = [nn.Linear(7, 9), *norm, nn.PReLU(9)]
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), *middle, last)


@dataclass(frozen=True)
class Animal:
    """A net and the units that tracing must find: the number in each layer."""

    build: Callable[[], nn.Module]
    layers: dict[str, int]


ZOO = {
    "VGG-like": Animal(VGG, {"a.0": 6, "b.0": 8, "c": 10}),
    "ResNet-like": Animal(ResNet, {"stem.0": 6, "one.0.0": 4, "two.0.0": 5, "two.1": 12}),
    "MobileNetV2-like": Animal(MobileNetV2, {"stem.0": 4, "expand.0": 8, "last.0": 7}),
    "DenseNet-like": Animal(DenseNet, {"stem": 4, "layers.0.2": 4, "layers.1.2": 4}),
    "ViT-like": Animal(ViT, {"mlp.0": 16}),
    "transformer layer": Animal(Encoder, {"embed": 8, "layer.self_attn": 2, "layer.linear1": 16}),
    "ShuffleNet-like": Animal(ShuffleNet, {"stem.0": 4, "last.0": 8}),
    "native channel shuffle": Animal(lambda: ShuffleNet(native=True), {"stem.0": 4, "last.0": 8}),
    "shuffled groups": Animal(lambda: ShuffledGroups(32), {"a.0": 8, "b.0": 2, "c.0": 8}),
    "shuffled narrow groups": Animal(lambda: ShuffledGroups(16), {"a.0": 4, "c.0": 4}),
    "squeeze and excite": Animal(SqueezeExcite, {"stem.0": 8, "down": 3}),
    "sigmoid that is read": Animal(lambda: Between(after=torch.sigmoid), {"a.0": 8, "b.0": 6}),
    "softmax over space that is read": Animal(
        lambda: Between(after=lambda x: x.flatten(2).softmax(-1)[..., None]), {"a.0": 8, "b.0": 6}
    ),
    "sigmoid under a batch norm without shift": Animal(
        lambda: Between(nn.Sequential(nn.Sigmoid(), nn.BatchNorm2d(8, affine=False))),
        {"a.0": 8, "b.0": 6},
    ),
    "sigmoid under a batch norm with shift": Animal(
        lambda: Between(nn.Sequential(nn.Sigmoid(), nn.BatchNorm2d(8))), {"a.0": 8, "b.0": 6}
    ),
    "cat with the input": Animal(CatInput, {"a.0": 5, "b.0": 6}),
    "softmax over channels": Animal(
        lambda: Between(after=lambda x: F.softmax(x, dim=1)), {"a.0": 8}
    ),
    "hard-coded view": Animal(HardView, {"a.0": 6}),
    "hard-coded slice": Animal(lambda: Between(lambda x: x[:, :4] - x[:, 4:8], read=4), {"b.0": 6}),
    "shared module": Animal(Shared, {"stem": 6}),
    "tied weights": Animal(Tied, {"stem": 6}),
    "tied transposed weights": Animal(TiedTransposed, {"encode": 6}),
    "GroupNorm": Animal(lambda: Between(nn.GroupNorm(4, 8)), {"a.0": 4, "b.0": 6}),
    "GroupNorms added": Animal(GroupNormsAdded, {"stem.0": 2, "inner.0": 4}),
    "GroupNorm of one group": Animal(lambda: Between(nn.GroupNorm(1, 8)), {"a.0": 8, "b.0": 6}),
    "GroupNorm without scales": Animal(
        lambda: Between(nn.GroupNorm(4, 8, affine=False)), {"b.0": 6}
    ),
    "InstanceNorm": Animal(
        lambda: Between(nn.InstanceNorm2d(8, affine=True)), {"a.0": 8, "b.0": 6}
    ),
    "functional": Animal(Functional, {"": 6}),
    "buffer added": Animal(BufferAdded, {"a.0": 6, "b.0": 5}),
    "chunk as a gate": Animal(lambda: Between(half_opens_half, read=4), {"a.0": 4, "b.0": 6}),
    "grouped convolution": Animal(
        lambda: Between(conv_bn(8, 12, groups=4), read=12), {"a.0": 4, "b.0": 6}
    ),
    "grouped convolution of the input": Animal(
        lambda: nn.Sequential(conv_bn(3, 6, groups=3), nn.Flatten(), nn.Linear(384, CLASSES)), {}
    ),
    "groups that could empty a layer": Animal(GroupedCat, {"c.0": 3}),
    "spatial attention": Animal(SpatialAttention, {"a.0": 6}),
    "decoder": Animal(Decoder, {"encode": 10, "unfold": 6, "up": 4}),
    "sequence": Animal(Sequence, {"a": 6, "b": 5, "rnn": 4}),
    "MLP": Animal(mlp, {"1": 7, "3": 9}),
    "MLP with batch norm": Animal(lambda: mlp(nn.BatchNorm1d(9)), {"1": 7, "3": 9}),
}


class Traced:
    """A net of the zoo in eval mode, traced and described once. Tests must not change it."""

    def __init__(self, name: str, animal: Animal) -> None:
        self.name = name
        self.layers = animal.layers
        self.images = example()
        self.net = built(animal).eval()
        self.units = trace(self.net, self.images)

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def description(self) -> Description:
        return describe(self.net, self.images)


class Zoo(Mapping[str, Traced]):
    """All nets by name; each is traced when it is first asked for."""

    def __init__(self) -> None:
        self._traced: dict[str, Traced] = {}

    def __getitem__(self, name: str) -> Traced:
        if name not in self._traced:
            self._traced[name] = Traced(name, ZOO[name])
        return self._traced[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ZOO)

    def __len__(self) -> int:
        return len(ZOO)


def built(animal: Animal) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return animal.build()


def example() -> Tensor:
    return torch.randn(2, *IMAGE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def zoo() -> Zoo:
    return Zoo()


@pytest.fixture
def animal(request: pytest.FixtureRequest) -> Animal:
    """One net of the zoo by its name, with `parametrize("animal", [...], indirect=True)`."""
    return ZOO[request.param]


@pytest.fixture
def net(animal: Animal) -> nn.Module:
    """A fresh copy of the net, which a test may change."""
    return built(animal)


@pytest.fixture
def images() -> Tensor:
    return example()
