"""The models that ship with AdaptCL: a new one is one file and one line in `MODELS`.

A model is a factory: it takes the shape of one input and the number of classes, and returns an
`nn.Module`. Models in `MODELS` have a short name; `package.module:build` names any other that can
be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from adaptcl.custom import call_custom, custom_function, hint_at_name
from adaptcl.errors import SettingError, describe_type, hint_at_value, suggest_instance
from adaptcl.models.resnet18 import resnet18
from adaptcl.models.resnet50 import PAPER_FIXED, resnet50
from adaptcl.models.vgg import small, vgg16
from adaptcl.settings import is_custom

__all__ = ["MODELS", "ModelSpec", "build", "find"]


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be built for any input shape and number of classes."""

    name: str
    build: Callable[[tuple[int, ...], int], nn.Module]
    summary: str
    fixed: tuple[str, ...] = ()  # patterns for names of modules whose output is never cut


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec("vgg16", vgg16, "VGG16 for small images, 15.0 M parameters (the paper's)"),
        ModelSpec(
            "resnet50",
            resnet50,
            "ResNet50 for small images, 23.5 M parameters, block outputs fixed (the paper's)",
            fixed=PAPER_FIXED,
        ),
        ModelSpec("resnet18", resnet18, "ResNet18 for small images, 11.2 M parameters"),
        ModelSpec("small", small, "four convolutions, 66 k parameters, trains on a laptop"),
    )
}

_TAKES = ("shape", "classes")  # what a factory is called with


def find(name: str) -> ModelSpec:
    """The shipped model of that name, or the custom one that `package.module:build` names."""
    if name in MODELS:
        return MODELS[name]
    if not is_custom(name):
        raise SettingError(
            f"There is no model {name!r}; choose one of {', '.join(sorted(MODELS))}, "
            "or give your own as package.module:build"
            f"{hint_at_name(name, _TAKES) or hint_at_value(name, MODELS)}"
        )
    factory = custom_function(name, "a model", _TAKES, "an nn.Module")
    if isinstance(factory, nn.Module):
        raise SettingError(
            f"The model {name!r} is an nn.Module already; name a function or class that builds "
            "one, so that its initial values can follow from the seed."
        )
    return ModelSpec(name, factory, f"built by {name}")


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model. Its initial values depend on `seed` alone."""
    spec = find(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = call_custom(name, spec.build, shape, classes)
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"The model {name!r} gives {describe_type(model)}, not an "
            f"nn.Module{suggest_instance(model)}."
        )
    return model
