"""The model and each node's data. Replace both with your own."""

from __future__ import annotations

from torch import nn

from adaptcl import models
from adaptcl.data import Samples, load, partition
from adaptcl.seeds import generator

SEED = 1
CODEC = "int8"


def build_model() -> nn.Module:
    """The same model on the server and on every node."""
    return models.build("small", (1, 8, 8), 10, SEED)


def test_data() -> Samples:
    """The data on which the server tests the global model."""
    return load("digits", None).test


def node_data(part: int, parts: int) -> Samples:
    """One node's share of the digits."""
    samples = load("digits", None).train
    dealt = partition.iid(samples.labels, parts, generator(SEED, "partition"))
    return samples.take(dealt[part])
