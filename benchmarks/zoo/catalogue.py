"""The models of the zoo: of each library the smallest of every family, with random weights.

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
LIBRARIES = ("transformers", "timm", "torchvision", "monai", "torch_geometric")
"""The packages that models come from; the others are hand-made."""

_TIMM = """
    test_byobnet test_convnext test_convnext2 test_convnext3 test_efficientnet
    test_efficientnet_evos test_efficientnet_gn test_mambaout test_nfnet test_resnet test_vit
    test_vit2 test_vit3 test_vit4 test_vit_relpos test_coatnet cait_xxs24_224 coat_tiny
    convit_tiny cpubone_nano crossvit_tiny_240 cs3darknet_focus_s cspnext_tiny
    deit_tiny_patch16_224 densenet121 dla46x_c dpn48b edgenext_xx_small efficientformer_l1
    efficientformerv2_s0 efficientvim_m1 efficientvit_b0 efficientvit_m0
    vit_tiny_patch16_dinov3_qkvb fasternet_t0 fastvit_t8 gcvit_xxtiny ghostnet_050 hardcorenas_b
    hgnetv2_b0 hrnet_w18_small iformer_t inception_next_atto lcnetv2_small levit_128s
    lowformer_b0 poolformerv2_s12 gmlp_ti16_224 mixer_s32_224 resmlp_12_224 lcnet_035
    mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 pit_ti_224 pvt_v2_b0 regnetx_002
    regnety_002 regnetz_005 repghostnet_050 repvit_m0_9 repvgg_a0 res2net50_14w_8s resnest14d
    resnet10t ecaresnet26t resnetblur18 resnetv2_18 resnetv2_50x1_bit rexnet_100 selecsls42
    legacy_seresnet18 shvit_s1 skresnet18 starnet_s050 swiftformer_xs tiny_vit_5m_224
    tnt_s_patch16_224 visformer_tiny vit_tiny_r_s16_p8_224 ese_vovnet19b_slim_dw vgg11_bn
    legacy_xception xcit_nano_12_p16_224 nf_regnet_b0 nf_resnet26 gernet_s
"""
_TORCHVISION = """
    alexnet densenet121 efficientnet_b0 googlenet inception_v3 mnasnet0_5 mobilenet_v2
    mobilenet_v3_small regnet_x_400mf resnet18 resnet50 shufflenet_v2_x0_5 squeezenet1_1 vgg11
    convnext_tiny swin_t swin_v2_t
"""
_SEGMENTATION = "deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
_VIDEO = "r3d_18 mc3_18 s3d"
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
        side = 75 if name == "inception_v3" else _IMAGE
        yield name, partial(_torchvision, "", name, torch.randn(2, 3, side, side))
    for name in _SEGMENTATION.split():
        yield name, partial(_torchvision, ".segmentation", name, torch.randn(2, 3, 64, 64))
    for name in _VIDEO.split():
        yield name, partial(_torchvision, ".video", name, torch.randn(2, 3, 16, 64, 64))
    yield "resnet18, frozen batch norm", _frozen_resnet


def _torchvision(part: str, name: str, example: Tensor) -> tuple[nn.Module, Tensors]:
    module = importlib.import_module(f"torchvision.models{part}")
    extra: dict[str, Any] = {"weights_backbone": None} if part == ".segmentation" else {}
    if name in ("googlenet", "inception_v3"):
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
