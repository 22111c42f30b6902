"""The models of the zoo: of each library small ones of many families, with random weights.

Libraries that are not installed are left out. torchvision needs no build for this PyTorch: the only
operators that it declares while it is imported are stood in for.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adaptcl.units.tensors import Tensors
from benchmarks.zoo import handmade, texts_and_images

Make = Callable[[], tuple[nn.Module, Tensors]]
LIBRARIES = {
    "transformers": "transformers",
    "timm": "timm",
    "torchvision": "torchvision.models",
    "monai": "monai.networks.nets",
    "torch_geometric": "torch_geometric.nn",
}
"""The packages that models come from, and the module that has them; the others are hand-made."""

_TIMM = """
    test_byobnet test_convnext test_convnext2 test_convnext3 test_efficientnet
    test_efficientnet_evos test_efficientnet_gn test_mambaout test_nfnet test_resnet test_vit
    test_vit2 test_vit3 test_vit4 test_vit_relpos test_coatnet cs3darknet_focus_s cspnext_tiny
    dla46x_c edgenext_xx_small efficientformerv2_s0 efficientvit_b0 efficientvit_m0 fasternet_t0
    fastvit_t8 ghostnet_050 iformer_t inception_next_atto lcnetv2_small lcnet_035
    mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 pvt_v2_b0 regnetx_002 regnety_002
    repghostnet_050 rexnet_100 starnet_s050 swiftformer_xs ese_vovnet19b_slim_dw
    xcit_nano_12_p16_224 gmlp_ti16_224
"""
_TORCHVISION = """
    densenet121 efficientnet_b0 googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf
    resnet18 shufflenet_v2_x0_5 squeezenet1_1
"""
_SEGMENTATION = "deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
_IMAGE = 64


@dataclass(frozen=True)
class ZooModel:
    """One model with a batch of inputs, both made when they are needed."""

    library: str
    name: str
    make: Make

    @property
    def path(self) -> str:
        return f"{self.library}/{self.name}"

    def built(self) -> tuple[nn.Module, Tensors]:
        torch.manual_seed(0)
        return self.make()


def models() -> list[ZooModel]:
    """All models that can be built here."""
    found = [ZooModel("hand-made", name, make) for name, make in handmade.MODELS.items()]
    for library in LIBRARIES:
        if is_installed(library):
            found += [ZooModel(library, name, make) for name, make in _OF_LIBRARY[library]()]
    return found


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _of_transformers() -> Iterator[tuple[str, Make]]:
    yield from texts_and_images.MODELS.items()


def _of_timm() -> Iterator[tuple[str, Make]]:
    _declare_operators()
    for name in _TIMM.split():
        yield name, partial(_timm, name)


def _timm(name: str) -> tuple[nn.Module, Tensors]:
    model = importlib.import_module("timm").create_model(name, num_classes=10)
    settings = model.pretrained_cfg
    side = settings["input_size"][-1] if settings.get("fixed_input_size") else _IMAGE
    return model, torch.randn(2, 3, side, side)


def _of_torchvision() -> Iterator[tuple[str, Make]]:
    _declare_operators()
    for name in _TORCHVISION.split():
        yield name, partial(_torchvision, "", name, torch.randn(2, 3, _IMAGE, _IMAGE))
    for name in _SEGMENTATION.split():
        yield name, partial(_torchvision, ".segmentation", name, torch.randn(2, 3, _IMAGE, _IMAGE))
    yield "mc3_18", partial(_torchvision, ".video", "mc3_18", torch.randn(2, 3, 8, 32, 32))
    yield "resnet18, frozen batch norm", _frozen_resnet


def _torchvision(part: str, name: str, example: Tensor) -> tuple[nn.Module, Tensors]:
    module = importlib.import_module(f"torchvision.models{part}")
    extra: dict[str, Any] = {"weights_backbone": None} if part == ".segmentation" else {}
    if name == "googlenet":
        extra = {"aux_logits": False, "init_weights": False}
    return getattr(module, name)(weights=None, num_classes=10, **extra), example


def _frozen_resnet() -> tuple[nn.Module, Tensors]:
    norm = importlib.import_module("torchvision.ops").FrozenBatchNorm2d
    models = importlib.import_module("torchvision.models")
    return models.resnet18(num_classes=10, norm_layer=norm), torch.randn(2, 3, 64, 64)


_OPERATORS: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]


def _declare_operators() -> None:
    if not is_installed("torchvision"):
        return
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _of_monai() -> Iterator[tuple[str, Make]]:
    image = (2, 1, 64, 64)
    plane = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
    channels: dict[str, Any] = {"channels": (8, 16, 32), "strides": (2, 2)}
    kinds: dict[str, dict[str, Any]] = {
        "UNet": {**plane, **channels, "num_res_units": 2, "norm": "batch"},
        "AttentionUnet": {**plane, **channels},
        "BasicUNet": {**plane, "features": (8, 8, 16, 32, 32, 8)},
        "SegResNet": {**plane, "init_filters": 16},
        "VNet": plane,
        "DynUNet": {
            **plane, "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2],
            "filters": [8, 16, 32],
        },
        "HighResNet": plane,
        "DenseNet121": plane,
        "SEResNet50": {"spatial_dims": 2, "in_channels": 1, "num_classes": 3},
        "ResNet": {
            "block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 32, 64],
            "spatial_dims": 2, "n_input_channels": 1, "num_classes": 3,
        },
        "AutoEncoder": {**plane, "channels": (8, 16), "strides": (2, 2)},
        "Classifier": {"in_shape": image[1:], "classes": 3, **channels},
        "UNETR": {
            **plane, "img_size": 64, "feature_size": 8, "hidden_size": 48, "mlp_dim": 96,
            "num_heads": 4,
        },
        "SwinUNETR": {**plane, "feature_size": 12},
        "ViT": {
            "in_channels": 1, "img_size": (64, 64), "patch_size": 16, "spatial_dims": 2,
            "hidden_size": 48, "mlp_dim": 96, "num_heads": 4, "num_layers": 3,
            "classification": True,
        },
    }  # fmt: skip
    for name, settings in kinds.items():
        yield name, partial(_monai, name, settings, image)


def _monai(
    name: str, settings: dict[str, Any], shape: tuple[int, ...]
) -> tuple[nn.Module, Tensors]:
    nets = importlib.import_module("monai.networks.nets")
    return getattr(nets, name)(**settings), torch.randn(shape)


def _of_torch_geometric() -> Iterator[tuple[str, Make]]:
    for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN"):
        yield name, partial(_graph_net, name)


def _graph_net(name: str) -> tuple[nn.Module, Tensors]:
    nets = importlib.import_module("torch_geometric.nn")
    more = {"heads": 4} if name == "GAT" else {}
    net = getattr(nets, name)(16, 32, num_layers=3, out_channels=5, **more)
    return OnGraph(net, nodes=12), torch.randn(2, 12, 16)


class OnGraph(nn.Module):
    """A graph net on samples that all have the same random graph."""

    def __init__(self, net: nn.Module, nodes: int) -> None:
        super().__init__()
        self.net = net
        self.nodes = nodes
        self.register_buffer("edges", torch.randint(0, nodes, (2, 4 * nodes)))
        self.edges: Tensor

    def forward(self, x: Tensor) -> Tensor:
        edges = torch.cat([self.edges + self.nodes * sample for sample in range(len(x))], 1)
        found: Tensor = self.net(x.reshape(-1, x.shape[-1]), edges)
        return found.reshape(len(x), self.nodes, -1)


_OF_LIBRARY = {
    "transformers": _of_transformers,
    "timm": _of_timm,
    "torchvision": _of_torchvision,
    "monai": _of_monai,
    "torch_geometric": _of_torch_geometric,
}
