"""Attention heads as units, in the ways that PyTorch, timm, Hugging Face and others write them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptcl.units import Kept, UnitMap, cut, describe, put_back, submodel, trace, zero
from adaptcl.units.size import smallest

WIDTH, HEADS, SIZE = 32, 8, 4
TOKENS = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(1))
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))


class TimmAttention(nn.Module):
    """As timm writes it: everything in one projection, and sizes in attributes."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.attn_dim = heads, width // heads, width
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        mixed: Tensor = self.proj(x.transpose(1, 2).reshape(n, length, self.attn_dim))
        return mixed


class ByHand(nn.Module):
    """Three projections and two products, with the number of heads in an attribute."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each(x)) for each in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class Blocks(nn.Module):
    """Two blocks with any kind of attention, on vectors."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(attention()), Block(attention()))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(x).mean(1))
        return scores


class ViT(Blocks):
    """A vision transformer in timm's form."""

    def __init__(self) -> None:
        super().__init__(lambda: TimmAttention(WIDTH, HEADS))
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.place = nn.Parameter(torch.randn(1, 17, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        scores: Tensor = self.head(self.blocks(x)[:, 0])
        return scores


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` on one input."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, **options)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.inner(x, x, x)[0]
        return mixed


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, dropout=0, batch_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(x).mean(1))
        return scores


class Logits(nn.Module):
    """A model of Hugging Face that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.model(tokens).logits
        return scores


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=128, max_position_embeddings=16, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, classifier_dropout=0, **options,
    )  # fmt: skip
    return Logits(BertForSequenceClassification(config))


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, attn_pdrop=0,
        embd_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0, **options,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


def llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=8, intermediate_size=128, max_position_embeddings=16, **options,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config))


FORMS: dict[str, tuple[Callable[[], nn.Module], Tensor, str, str]] = {
    "nn.MultiheadAttention": (
        lambda: Blocks(lambda: SelfAttention(batch_first=True)), VECTORS, "blocks.{}.attn.inner",
        "blocks",
    ),
    "nn.TransformerEncoderLayer": (Encoder, VECTORS, "blocks.layers.{}.self_attn", "blocks"),
    "by hand": (
        lambda: Blocks(lambda: ByHand(WIDTH, HEADS)), VECTORS, "blocks.{}.attn.q", "blocks",
    ),
    "ViT as in timm": (ViT, PICTURES, "blocks.{}.attn.qkv", "blocks"),
    "BERT": (
        bert, TOKENS, "model.bert.encoder.layer.{}.attention.self.query", "model.bert.encoder",
    ),
    "GPT-2": (gpt2, TOKENS, "model.transformer.h.{}.attn.c_attn", "model.transformer.h"),
    "Llama with grouped queries": (
        llama, TOKENS, "model.model.layers.{}.self_attn.q_proj", "model.model.layers",
    ),
    "BERT, attention step by step": (
        lambda: bert(attn_implementation="eager"), TOKENS,
        "model.bert.encoder.layer.{}.attention.self.query", "model.bert.encoder",
    ),
    "GPT-2, attention step by step": (
        lambda: gpt2(attn_implementation="eager"), TOKENS, "model.transformer.h.{}.attn.c_attn",
        "model.transformer.h",
    ),
    "Llama, attention step by step": (
        lambda: llama(attn_implementation="eager"), TOKENS,
        "model.model.layers.{}.self_attn.q_proj", "model.model.layers",
    ),
}  # fmt: skip
"""By form of attention: the model, an example, the names of the layers of heads, the blocks."""


def built(model: Callable[[], nn.Module]) -> nn.Module:
    """A model without zeros and ones, which could hide a wrong cut."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = model()
        for tensor in made.parameters():
            if tensor.dim() == 1:
                nn.init.uniform_(tensor, 0.3, 1.3)
    return made


def some_units(units: UnitMap, seed: int) -> Kept:
    kept = torch.rand(units.count, generator=torch.Generator().manual_seed(seed)) < 0.5
    for layer in units.layers:
        kept[layer.units.start + seed % len(layer.units)] = True
    return kept


def assert_cutting_equals_zeroing(model: nn.Module, units: UnitMap, example: Tensor) -> None:
    for seed in range(2):
        kept = some_units(units, seed)
        zeroed = copy.deepcopy(model)
        zeroed.load_state_dict(zero(model.state_dict(), units, kept))
        torch.testing.assert_close(
            submodel(model, units, kept)(example), zeroed(example), rtol=1e-4, atol=1e-5
        )


def block_parameters(units: UnitMap, kept: Kept, blocks: str) -> int:
    names = [name for name in units.parameters if name.startswith(f"{blocks}.")]
    held = cut(
        {name: torch.empty(units.shapes[name], device="meta") for name in names}, units, kept
    )
    return sum(each.numel() for each in held.values())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_heads_are_units_and_with_the_neurons_nearly_all_of_a_block_can_be_cut(form: str) -> None:
    pytest.importorskip("transformers")
    build, example, heads, blocks = FORMS[form]
    model = built(build)
    units = trace(model, example)
    assert {each.name: len(each.units) for each in units.layers if each.name in units.heads} == {
        heads.format(block): HEADS for block in range(2)
    }
    whole, least = units.everything(), smallest(units)
    assert block_parameters(units, least, blocks) < 0.25 * block_parameters(units, whole, blocks)
    with torch.no_grad():
        assert_cutting_equals_zeroing(model.eval(), units, example)
    assert_cutting_equals_zeroing(model.train(), units, example)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    put_back(cut(state, units, least), units, least, into=state)
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())


class Mixed(nn.Module):
    """Attention in whatever form, on the input itself."""

    def __init__(self, attention: nn.Module, after: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.attn, self.after, self.head = attention, after, nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.after(self.attn(x)))


def heads_found(model: nn.Module, example: Tensor = VECTORS) -> dict[str, int]:
    units = trace(model, example)
    if units.layers:
        with torch.no_grad():
            assert_cutting_equals_zeroing(model.eval(), units, example)
    return {each.name: len(each.units) for each in units.layers if each.name in units.heads}


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True, "bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True, "batch_first": True},
    ],
    ids=str,
)
def test_pytorchs_attention_loses_heads_with_all_its_options(options: dict[str, Any]) -> None:
    assert heads_found(built(lambda: Mixed(SelfAttention(**options)))) == {"attn.inner": HEADS}


class Cross(nn.Module):
    """Queries from one place, keys and values of other widths, with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 20)
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, kdim=12, vdim=20, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        padding = torch.zeros(len(x), 6, dtype=torch.bool)
        padding[:, 4:] = True
        mixed: Tensor = self.inner(
            x, F.relu(self.keys(x)), F.relu(self.values(x)), attn_mask=mask,
            key_padding_mask=padding, need_weights=False, is_causal=True,
        )[0]  # fmt: skip
        return mixed


def test_cross_attention_loses_heads_and_what_it_reads() -> None:
    model = built(lambda: Mixed(Cross()))
    units = trace(model, VECTORS)
    assert {layer.name: len(layer.units) for layer in units.layers} == {
        "attn.keys": 12, "attn.values": 20, "attn.inner": HEADS, "attn.inner.out_proj": WIDTH,
    }  # fmt: skip
    with torch.no_grad():
        assert_cutting_equals_zeroing(model.eval(), units, VECTORS)


def test_heads_stay_if_the_model_uses_the_weights_of_the_attention() -> None:
    class Weights(SelfAttention):
        def forward(self, x: Tensor) -> Tensor:
            mixed, weights = self.inner(x, x, x)
            shifted: Tensor = mixed + weights.sum()
            return shifted

    model = Mixed(Weights(batch_first=True))
    assert heads_found(model) == {}
    (described,) = (each for each in describe(model, VECTORS).modules if each.name == "attn.inner")
    assert described.pinned == ("a cut is not known to pass through sum in attn",)


def test_narrow_attention_gives_the_weights_of_the_heads_that_it_has() -> None:
    model = SelfAttention(batch_first=True).eval()
    units = trace(Mixed(model), VECTORS)
    kept = units.everything()
    kept[2:HEADS] = False
    narrow = submodel(Mixed(model).eval(), units, kept).get_submodule("attn.inner")
    of_all = model.inner(VECTORS, VECTORS, VECTORS, average_attn_weights=False)[1]
    x = VECTORS[0]
    for options, expected in (
        ({"average_attn_weights": False}, of_all[0, :2]),
        ({}, of_all[0, :2].mean(0)),
    ):
        torch.testing.assert_close(narrow(x, x, x, **options)[1], expected)


Split = Callable[[Tensor], Sequence[Tensor]]


class Layout(nn.Module):
    """One projection for all, whose outputs are split by the given function."""

    def __init__(self, split: Callable[[Layout, Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), HEADS
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self, self.qkv(x))
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


@pytest.mark.parametrize(
    "split",
    [
        lambda m, x: x.view(*x.shape[:2], m.heads, 3, SIZE).permute(3, 0, 2, 1, 4),
        lambda m, x: x.view(*x.shape[:2], m.heads, 3 * SIZE).transpose(1, 2).chunk(3, -1),
        lambda m, x: x.view(*x.shape[:2], m.heads, -1).transpose(1, 2).split(SIZE, -1),
        lambda m, x: x.view(*x.shape[:2], 3, m.heads, -1).permute(2, 0, 3, 1, 4),
        lambda m, x: [
            each.unflatten(-1, (-1, SIZE)).transpose(1, 2) * SIZE**0.25 for each in x.chunk(3, -1)
        ],
    ],
    ids=["heads then three", "heads then pieces", "size left open", "three then heads", "chunks"],
)  # fmt: skip
def test_heads_are_found_however_queries_keys_and_values_are_laid_out(
    split: Callable[[Layout, Tensor], Sequence[Tensor]],
) -> None:
    assert heads_found(built(lambda: Mixed(Layout(split)))) == {"attn.qkv": HEADS}


def test_a_number_of_heads_that_equals_their_size_is_still_told_apart() -> None:
    class Square(TimmAttention):
        def __init__(self) -> None:
            super().__init__(16, 4)
            self.enter = nn.Linear(WIDTH, 16)
            self.leave = nn.Linear(16, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            left: Tensor = self.leave(super().forward(self.enter(x).softmax(-1)))
            return left

    model = built(lambda: Mixed(Square()))
    assert heads_found(model)["attn.qkv"] == 4


def test_heads_stay_where_code_takes_their_number_from_the_width_of_its_input() -> None:
    class Old(TimmAttention):
        def forward(self, x: Tensor) -> Tensor:
            n, length, width = x.shape
            qkv = self.qkv(x).reshape(n, length, 3, self.num_heads, width // self.num_heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(q, k, v)
            out: Tensor = self.proj(mixed.transpose(1, 2).reshape(n, length, width))
            return out

    model = Mixed(Old(WIDTH, HEADS))
    assert heads_found(model) == {}
    (described,) = (each for each in describe(model, VECTORS).modules if each.name == "attn.qkv")
    assert "reshape in attn is told the size" in described.pinned[0]


def test_heads_are_named_in_the_description() -> None:
    table = str(describe(Mixed(TimmAttention(WIDTH, HEADS)), VECTORS))
    (line,) = (line for line in table.splitlines() if line.startswith("attn.qkv"))
    assert "8 heads" in line


class Einsum(nn.Module):
    """Bare weights with a dimension of heads, and `einsum` for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Parameter(torch.randn(WIDTH, HEADS, SIZE) / 6) for _ in range(3)
        )
        self.out = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnd,dhk->bhnk", x, each) for each in (self.q, self.k, self.v))
        weights = (torch.einsum("bhqk,bhsk->bhqs", q, k) / 2).softmax(-1)
        mixed = torch.einsum("bhqs,bhsk->bhqk", weights, v)
        return torch.einsum("bhqk,hkd->bqd", mixed, self.out)


def test_heads_of_bare_weights_in_einsum_are_found() -> None:
    assert heads_found(built(lambda: Mixed(Einsum()))) == {"attn": HEADS}


class BareWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(WIDTH, 10)), nn.Parameter(torch.randn(7, 10))
        self.shift, self.c = nn.Parameter(torch.rand(7)), nn.Parameter(torch.randn(WIDTH, 7))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x @ self.a)
        x = F.relu(torch.addmm(self.shift, x.flatten(0, 1), self.b.t()))
        return (self.c @ x.t()).t().reshape(2, 6, WIDTH)


def test_neurons_of_bare_weights_are_units() -> None:
    model = built(lambda: Mixed(BareWeights()))
    units = trace(model, VECTORS)
    rows = {(slot.tensor, slot.dim): slot.owned for slot in units.slots}
    assert rows == {
        ("attn.a", 1): True, ("attn.b", 1): False, ("attn.b", 0): True, ("attn.shift", 0): True,
        ("attn.c", 1): False,
    }  # fmt: skip
    assert [(layer.name, len(layer.units)) for layer in units.layers] == [
        ("attn", 10),
        ("attn.b", 7),
    ]
    with torch.no_grad():
        assert_cutting_equals_zeroing(model.eval(), units, VECTORS)
