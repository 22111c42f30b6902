"""Small configurations of Hugging Face's models, one of each family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from adaptcl.units.tensors import Tensors

_WIDTH: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "num_labels": 3,
}
_TEXT: dict[str, Any] = {
    **_WIDTH,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGE: dict[str, Any] = {**_WIDTH, "image_size": 32, "patch_size": 8, "num_channels": 3}
_STAGES: dict[str, Any] = {
    "num_labels": 3,
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [16, 32, 48, 64],
    "num_channels": 3,
}
_TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("ForSequenceClassification", {}),
    "Roberta": ("ForSequenceClassification", {"max_position_embeddings": 40}),
    "DistilBert": (
        "ForSequenceClassification", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}
    ),
    "Electra": ("ForSequenceClassification", {"embedding_size": 64}),
    "Albert": ("ForSequenceClassification", {"embedding_size": 32}),
    "MPNet": ("ForSequenceClassification", {}),
    "DebertaV2": ("ForSequenceClassification", {}),
    "FNet": ("ForSequenceClassification", {}),
    "ModernBert": ("ForSequenceClassification", {}),
    "GPT2": ("LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "GPTNeoX": ("ForCausalLM", {}),
    "OPT": ("ForCausalLM", {"ffn_dim": 256, "word_embed_proj_dim": 64}),
    "Bloom": ("ForCausalLM", {"n_layer": 2, "n_head": 4}),
    "Llama": ("ForCausalLM", {"num_key_value_heads": 2}),
    "Mistral": ("ForCausalLM", {"num_key_value_heads": 2}),
    "Qwen2": ("ForCausalLM", {"num_key_value_heads": 2}),
    "Qwen3": ("ForCausalLM", {"num_key_value_heads": 2, "head_dim": 16}),
    "Gemma": ("ForCausalLM", {"num_key_value_heads": 2, "head_dim": 16}),
    "Phi": ("ForCausalLM", {}),
    "Mamba": ("ForCausalLM", {"state_size": 8}),
}  # fmt: skip
_IMAGES: dict[str, dict[str, Any]] = {
    "ViT": _IMAGE,
    "DeiT": _IMAGE,
    "Beit": _IMAGE,
    "Dinov2": _IMAGE,
    "ConvNext": _STAGES,
    "ConvNextV2": _STAGES,
    "ResNet": {**_STAGES, "embedding_size": 16},
    "RegNet": {**_STAGES, "embedding_size": 16, "groups_width": 8},
    "Swin": {
        **_STAGES, "image_size": 64, "patch_size": 4, "embed_dim": 16, "num_heads": [2, 2, 4, 4],
        "window_size": 2,
    },
    "Segformer": {**_STAGES, "num_attention_heads": [2, 2, 4, 4]},
    "PoolFormer": _STAGES,
}  # fmt: skip

Make = Callable[[], tuple[nn.Module, Tensors]]


def _text(family: str, task: str, settings: dict[str, Any]) -> tuple[nn.Module, Tensors]:
    return _built(family, task, {**_TEXT, **settings}), {
        "input_ids": torch.randint(3, 100, (2, 16)),
    }


def _pictures(family: str, settings: dict[str, Any]) -> tuple[nn.Module, Tensors]:
    side = settings.get("image_size", 64)
    model = _built(family, "ForImageClassification", settings)
    return model, {"pixel_values": torch.randn(2, 3, side, side)}


def _translation() -> tuple[nn.Module, Tensors]:
    settings = {
        "vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    texts = torch.randint(3, 100, (2, 16))
    return _built("T5", "ForConditionalGeneration", settings), {
        "input_ids": texts, "decoder_input_ids": texts[:, :8],
    }  # fmt: skip


def _speech() -> tuple[nn.Module, Tensors]:
    settings = {
        **_WIDTH, "conv_dim": (32, 32), "conv_kernel": (10, 3), "conv_stride": (5, 2),
        "num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 4,
        "num_conv_pos_embeddings": 16, "layerdrop": 0.0, "mask_time_prob": 0.0,
    }  # fmt: skip
    model = _built("Wav2Vec2", "ForSequenceClassification", settings)
    return model, {"input_values": torch.randn(2, 400)}


def _built(family: str, task: str, settings: dict[str, Any]) -> nn.Module:
    library = importlib.import_module("transformers")
    config = getattr(library, f"{family}Config")(**settings)
    config.use_cache = False
    model: nn.Module = getattr(library, f"{family}{task}")(config)
    return model


MODELS: dict[str, Make] = {
    **{name: partial(_text, name, *each) for name, each in _TEXTS.items()},
    **{name: partial(_pictures, name, each) for name, each in _IMAGES.items()},
    "T5": _translation,
    "Wav2Vec2": _speech,
}
"""By family, what makes a model and a batch for it."""
