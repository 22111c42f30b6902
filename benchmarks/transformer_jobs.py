"""Three transformers with data that every machine has: a ViT, a BERT and a GPT-2.

The ViT sees the shipped pictures of clothes. The texts are chapters of the language reference that
comes with every Python: BERT says which chapter some words are from, GPT-2 which character follows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl import data
from adaptcl.data import Samples
from adaptcl.data.convert import as_samples

_CHAPTERS = (
    "specialnames", "compound", "types", "formatstrings", "string-methods", "typesseq", "debugger",
    "typesmapping",
)  # fmt: skip
_WORDS, _KNOWN_WORDS = 24, 500
"""Words of a text that BERT reads, and how many different ones it tells apart."""
_LETTERS = 64
"""Characters of a text that GPT-2 reads."""
_TEST = 5
"""One text in so many is for testing."""


@dataclass(frozen=True)
class TransformerSize:
    """Width, blocks and heads of a transformer; its hidden layers are four times as wide."""

    width: int
    depth: int
    heads: int


@dataclass(frozen=True)
class TransformerJob:
    """A transformer and what it learns."""

    model: nn.Module
    train: Samples
    test: Samples
    objective: str


def vit_job(size: TransformerSize) -> TransformerJob:
    clothes = data.load("fashion", None)
    return TransformerJob(ViT(size), clothes.train, clothes.test, "classification")


class Attention(nn.Module):
    """Attention as timm writes it: everything in one projection, and sizes in attributes."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.num_heads, self.head_dim = size.heads, size.width // size.heads
        self.attn_dim = size.width
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.proj = nn.Linear(size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out: Tensor = self.proj(mixed.reshape(n, length, self.attn_dim))
        return out


class Block(nn.Module):
    """Attention and a hidden layer, each behind a layer norm and around it an addition."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        width = size.width
        self.norm1, self.attn, self.norm2 = (
            nn.LayerNorm(width),
            Attention(size),
            nn.LayerNorm(width),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """timm's vision transformer on grey pictures of 28×28 pixels, in 16 patches."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, size.width, 7, stride=7)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, size.width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.depth)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        scores: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return scores


def bert_job(size: TransformerSize) -> TransformerJob:
    from transformers import BertConfig, BertForSequenceClassification

    chapters = [re.findall(r"[a-z]+", topics[name].lower()) for name in _CHAPTERS]
    common = Counter(word for words in chapters for word in words).most_common(_KNOWN_WORDS - 1)
    number = {word: 1 + place for place, (word, _) in enumerate(common)}
    texts, labels = [], []
    for label, words in enumerate(chapters):
        some = torch.tensor([number.get(word, 0) for word in words]).unfold(0, _WORDS, _WORDS)
        texts.append(some)
        labels.append(torch.full((len(some),), label))
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=_KNOWN_WORDS, hidden_size=size.width, num_hidden_layers=size.depth,
            num_attention_heads=size.heads, intermediate_size=4 * size.width,
            max_position_embeddings=_WORDS, id2label=dict(enumerate(_CHAPTERS)),
        )
    )  # fmt: skip
    return _text_job(model, Samples(torch.cat(texts), torch.cat(labels)), "classification")


def gpt2_job(size: TransformerSize) -> TransformerJob:
    from transformers import GPT2Config, GPT2LMHeadModel

    text = re.sub(r"[^!-~]+", " ", " ".join(topics[name] for name in _CHAPTERS))
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(each) for each in text])
    texts = tokens.unfold(0, _LETTERS, _LETTERS)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(characters), n_embd=size.width, n_layer=size.depth, n_head=size.heads,
            n_positions=_LETTERS, bos_token_id=0, eos_token_id=0, use_cache=False,
        )
    )  # fmt: skip
    return _text_job(model, as_samples(texts, "tokens"), "language-modelling")


def _text_job(model: nn.Module, texts: Samples, objective: str) -> TransformerJob:
    is_test = torch.arange(len(texts)) % _TEST == 0
    train, test = (texts.take(which.nonzero().flatten()) for which in (~is_test, is_test))
    return TransformerJob(model, train, test, objective)


JOBS: dict[str, Callable[[TransformerSize], TransformerJob]] = {
    "ViT": vit_job,
    "BERT": bert_job,
    "GPT-2": gpt2_job,
}
