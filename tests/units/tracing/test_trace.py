from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_pruning as tp
from torch import Tensor, nn

from adaptcl.errors import TraceError
from adaptcl.units import FIXED, UnitMap, submodel, trace, zero
from adaptcl.units.tracing.trace import follow_units


def found(units: UnitMap) -> dict[str, int]:
    return {layer.name: len(layer.units) for layer in units.layers}


def some_units(units: UnitMap, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(units.count, generator=generator) < 0.6
    for layer in units.layers:
        kept[layer.units.start + seed % len(layer.units)] = True
    return kept


def test_in_every_net_exactly_the_units_that_can_be_cut_are_found(zoo: Mapping[str, Any]) -> None:
    assert {name: found(each.units) for name, each in zoo.items()} == {
        name: each.layers for name, each in zoo.items()
    }
    for each in zoo.values():
        count = each.units.count
        assert [n for layer in each.units.layers for n in layer.units] == list(range(count))
        owned = {int(n) for slot in each.units.slots if slot.owned for n in slot.ids} - {FIXED}
        assert owned == set(range(count))


@torch.no_grad()
def test_the_rules_alone_are_right_except_about_sizes_in_the_code(zoo: Mapping[str, Any]) -> None:
    by_rules = {
        name: found(follow_units(each.net, each.images).units) for name, each in zoo.items()
    }
    wrong = [name for name, each in zoo.items() if by_rules[name] != each.layers]
    assert wrong == ["ViT-like", "hard-coded view", "hard-coded slice"]


def test_a_unit_that_is_not_zero_when_zeroed_owns_the_columns_that_read_it(
    zoo: Mapping[str, Any],
) -> None:
    owned = {
        name: {(s.tensor, s.dim): s.owned for s in zoo[name].units.slots}["head.weight", 1]
        for name in ("sigmoid that is read", "sigmoid under a batch norm with shift")
    }
    assert list(owned.values()) == [True, False]


@pytest.mark.parametrize("animal", ["DenseNet-like", "hard-coded view", "MLP"], indirect=True)
def test_a_batch_of_one_finds_the_same_units(net: nn.Module, images: Tensor) -> None:
    assert found(trace(net, images[:1])) == found(trace(net, images))


@pytest.mark.parametrize("animal", ["ResNet-like", "functional"], indirect=True)
def test_the_model_is_left_as_it_was(net: nn.Module, images: Tensor) -> None:
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    rng = torch.get_rng_state()
    trace(net, images)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(module.training for module in net.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("name", ["VGG-like", "ResNet-like", "MobileNetV2-like", "DenseNet-like"])
def test_channels_are_coupled_as_torch_pruning_couples_them(
    zoo: Mapping[str, Any], name: str
) -> None:
    net, units, images = zoo[name].net, zoo[name].units, zoo[name].images
    ours: dict[int, set[tuple[str, str, int]]] = {}
    for slot in units.slots:
        module, _, kind = slot.tensor.rpartition(".")
        if kind == "weight":
            for index, unit in enumerate(slot.ids.tolist()):
                side = "out" if slot.dim == 0 else "in"
                ours.setdefault(unit, set()).add((module, side, index))
    ours.pop(FIXED, None)
    graph = tp.DependencyGraph().build_dependency(net, images)
    names = {target: name for name, target in net.named_modules()}
    seen = 0
    for unit, members in ours.items():
        module, _, index = next(m for m in sorted(members) if m[1] == "out")
        root = net.get_submodule(module)
        prune: Any = graph.get_pruner_of_module(root).prune_out_channels
        group = graph.get_pruning_group(root, prune, idxs=[index])
        theirs = {
            (names[item.dep.target.module], _side(graph, item.dep), i)
            for item in group
            if item.dep.target.module in names
            for i in item.idxs
        }
        assert theirs == members, unit
        seen += 1
    assert seen == units.count > 0


def _side(graph: Any, dependency: Any) -> str:
    module = dependency.target.module
    depthwise = isinstance(module, nn.Conv2d) and module.groups == module.in_channels
    if depthwise or isinstance(module, nn.BatchNorm2d):
        return "out"
    return "out" if graph.is_out_channel_pruning_fn(dependency.handler) else "in"


@pytest.mark.parametrize("animal", ["ResNet-like"], indirect=True)
def test_fixed_modules_and_all_that_is_added_to_them_are_never_cut(
    net: nn.Module, images: Tensor
) -> None:
    assert found(trace(net, images, fixed=["one.1", "shortcut"])) == {"one.0.0": 4, "two.0.0": 5}


def test_a_fixed_pattern_that_matches_nothing_is_answered_with_similar_names() -> None:
    def part(channels: int) -> tuple[str, nn.Module]:
        return "conv1", nn.Conv2d(channels, 4, 1)

    model = nn.Sequential()
    model.add_module("body", nn.Sequential(OrderedDict([part(3)])))
    model.add_module("neck", nn.Sequential(OrderedDict([part(4)])))
    model.add_module("head", nn.Conv2d(4, 2, 1))
    listed = "'body', 'body.conv1', 'neck', 'neck.conv1', 'head'"
    for tail, pattern, hint in [
        ((), "conv1", "did you mean one of 'body.conv1', 'neck.conv1'?"),
        ((), "hedd", "did you mean 'head'?"),
        ((), "xyz*", f"there are {listed}."),
        ((nn.Identity(),), "xyz*", f"there are {listed} and others."),
    ]:
        for module in tail:
            model.add_module("tail", module)
        with pytest.raises(TraceError) as refused:
            trace(model, torch.randn(2, 3, 4, 4), fixed=[pattern])
        assert str(refused.value) == f"No module of the model has a name like {pattern!r}; {hint}"


def test_a_model_without_modules_inside_has_no_names_to_fix() -> None:
    with pytest.raises(TraceError, match=r"'a'; there are no modules inside it\.$"):
        trace(nn.Linear(3, 2), torch.randn(2, 3), fixed=["a"])


def test_a_class_is_refused_where_an_instance_is_meant() -> None:
    with pytest.raises(TraceError, match=r"instance: Flatten\(\) instead of Flatten\.$"):
        trace(nn.Flatten, torch.randn(2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("animal", ["shared module"], indirect=True)
def test_work_of_a_shared_module_counts_each_use(net: nn.Module, images: Tensor) -> None:
    work = {w.weight: w.positions for w in trace(net, images).work}
    assert work == {"stem.weight": 64, "again.weight": 128, "head.weight": 1}


@pytest.mark.parametrize("animal", ["transformer layer"], indirect=True)
def test_work_of_a_sequence_counts_each_token(net: nn.Module, images: Tensor) -> None:
    work = {w.weight: w.positions for w in trace(net, images).work}
    assert work["layer.linear1.weight"] == 24
    assert work["layer.self_attn.in_proj_weight"] == 24


@pytest.mark.parametrize(
    ("layer", "positions"),
    [(nn.GRU(4, 6, batch_first=True), 7), (nn.LSTM(4, 6, 2, batch_first=True), 7)],
)
def test_work_of_a_recurrent_layer_counts_each_step(layer: nn.Module, positions: int) -> None:
    work = {w.weight: w.positions for w in trace(layer, torch.randn(2, 7, 4)).work}
    assert work == {name: positions for name, _ in layer.named_parameters() if "weight" in name}


def test_work_of_a_product_with_a_bare_parameter_counts() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(4, 6))
            self.b = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.a).matmul(self.b)

    work = {w.weight: w.positions for w in trace(Bare(), torch.randn(2, 7, 4)).work}
    assert work == {"a": 7, "b": 7}


def test_the_scales_of_all_norms_that_keep_units_apart_are_known() -> None:
    for norm in (nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True)):
        model = nn.Sequential(nn.Conv2d(3, 8, 1), norm, nn.Conv2d(8, 4, 1))
        assert trace(model, torch.randn(2, 3, 4, 4)).bn_scales == {"1.weight"}


def test_what_is_not_trained_is_known_under_all_its_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    assert trace(model, torch.randn(2, 4)).frozen == {"0.weight", "1.weight"}


@pytest.mark.parametrize("animal", ["tied weights"], indirect=True)
def test_a_tied_weight_has_slots_under_both_names_but_counts_once(
    net: nn.Module, images: Tensor
) -> None:
    units = trace(net, images)
    slots = {(slot.tensor, slot.dim): slot.ids.tolist() for slot in units.slots}
    assert slots["a.weight", 0] == slots["b.weight", 0] == slots["b.weight", 1]
    assert "a.weight" in units.parameters
    assert "b.weight" not in units.parameters


@pytest.mark.parametrize("animal", ["MLP with batch norm"], indirect=True)
def test_bn_scales_are_those_of_units_that_can_be_cut(net: nn.Module, images: Tensor) -> None:
    assert trace(net, images).bn_scales == {"4.weight"}
    assert trace(net, images, fixed=["3"]).bn_scales == set()


TOKENS = torch.arange(24).view(3, 8)


class Text(nn.Module):
    """A net for tokens: a table, one convolution along the text, and scores."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.conv = nn.Conv1d(6, 5, 3, padding=1)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        seen: Tensor = F.relu(self.conv(self.table(tokens).transpose(1, 2))).amax(2)
        scores: Tensor = self.head(seen)
        return scores


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Text(nn.Embedding(24, 6)), {"table": 6, "conv": 5}),
        (Text(nn.Embedding(24, 6, padding_idx=0)), {"table": 6, "conv": 5}),
        (Text(nn.Embedding(24, 6, max_norm=1.0)), {"conv": 5}),
        (nn.Sequential(nn.EmbeddingBag(24, 6), nn.Linear(6, 5), nn.Linear(5, 3)), {"0": 6, "1": 5}),
        (nn.Sequential(nn.EmbeddingBag(24, 6, mode="max"), nn.Linear(6, 3)), {"0": 6}),
    ],
)
def test_the_columns_of_a_table_of_tokens_are_units(
    model: nn.Module, layers: dict[str, int]
) -> None:
    units = trace(model, TOKENS)
    assert found(units) == layers
    for seed in range(3):
        kept = some_units(units, seed)
        zeroed = submodel(model, units, units.everything(), zero(model.state_dict(), units, kept))
        torch.testing.assert_close(submodel(model, units, kept)(TOKENS), zeroed(TOKENS))


def test_a_model_that_takes_no_tokens_is_told_that_they_are_whole_numbers() -> None:
    with pytest.raises(TraceError, match=r"failed on inputs int64 \[2, 8\]"):
        trace(nn.Linear(8, 3), TOKENS)


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 8, 8)], ids=["no channels", "no samples"])
def test_a_batch_without_one_of_its_axes_gets_a_hint(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    with pytest.raises(TraceError, match=r"A batch for Conv2d has 4 axes, .*inputs.unsqueeze"):
        trace(model, torch.rand(shape))


class Within(nn.Module):
    """Any module as part of a net whose other units can be cut."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Conv2d(3, 6, 3), inner, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.inner(self.first(x)).mean((2, 3)))
        return scores


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no more")


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class Rolls(nn.Module):
    """Draws its random numbers elsewhere than from PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class ReturnsText(nn.Module):
    def forward(self, x: Tensor) -> str:
        return "text"


class Sorts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=1).values


class NumpyDetour(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy()[:, ::-1].copy())


@pytest.mark.parametrize("inner", [Sorts(), NumpyDetour()])
def test_what_no_rule_knows_is_never_cut(inner: nn.Module, images: Tensor) -> None:
    assert found(trace(Within(inner), images)) == {}


def test_an_error_in_the_forward_pass_names_the_module(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"'inner' \(Raises\) failed .*no more"):
        trace(Within(Raises()), images)


def test_an_example_of_the_wrong_shape_names_the_module(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"'first' \(Conv2d\) failed"):
        trace(Within(nn.Identity()), images[:, :2])


def test_a_module_whose_random_numbers_cannot_be_repeated_is_named(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"'inner' \(Rolls\) gives different outputs"):
        trace(Within(Rolls()), images)
    assert found(trace(Within(AlwaysDrops()), images)) == {"first": 6}


def test_torchscript_is_refused_by_name(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"'inner' .* TorchScript"):
        trace(Within(torch.jit.script(nn.ReLU())), images)


def test_a_lazy_module_is_refused_by_name(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"'inner' .* is lazy"):
        trace(Within(nn.LazyConv2d(6, 1)), images)


def test_a_model_that_returns_no_tensor_is_refused(images: Tensor) -> None:
    with pytest.raises(TraceError, match=r"\(ReturnsText\) returns str"):
        trace(ReturnsText(), images)


def test_an_empty_example_is_refused(images: Tensor) -> None:
    with pytest.raises(TraceError, match="at least one sample"):
        trace(nn.Identity(), images[:0])


class FrozenNorm(nn.Module):
    """Batch norm of which everything is a buffer, as torchvision's `FrozenBatchNorm2d`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.running_mean: Tensor
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (each.reshape(1, -1, 1, 1) for each in self.buffers())
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


def test_a_frozen_batch_norm_belongs_to_its_channels_and_never_changes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), FrozenNorm(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    units = trace(model, torch.randn(2, 3, 4, 4))
    assert found(units) == {"0": 6}
    assert units.constants == {f"1.{name}" for name, _ in model[1].named_buffers()}


def test_a_buffer_that_training_changes_is_no_constant() -> None:
    class Centred(FrozenNorm):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.running_mean += 0.1 * x.mean((0, 2, 3))
            return super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 6, 1), Centred(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    units = trace(model, torch.randn(2, 3, 4, 4))
    assert "1.running_mean" not in units.constants
    assert "1.running_var" in units.constants


class WithBiases(nn.Module):
    """Attention with a scale that all heads share, and a column of biases for each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(8, 3 * 4 * heads), nn.Linear(4 * heads, 3)
        self.table, self.scale = nn.Parameter(torch.randn(9, heads)), nn.Parameter(torch.rand(4))
        places = torch.arange(5)
        self.register_buffer("distances", places[:, None] - places + 4)
        self.distances: Tensor

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        biases = self.table[self.distances.view(-1)].view(length, length, -1).permute(2, 0, 1)
        scores = (q * self.scale @ k.transpose(-2, -1) + biases.unsqueeze(0)).softmax(-1)
        mixed: Tensor = self.proj((scores @ v).transpose(1, 2).flatten(2))
        return mixed


@pytest.mark.parametrize("heads", [4, 2])
def test_a_table_of_biases_is_cut_with_the_heads(heads: int) -> None:
    units = trace(WithBiases(heads), torch.randn(2, 5, 8))
    assert found(units) == {"qkv": heads}
    assert ("table", 1) in {(slot.tensor, slot.dim) for slot in units.slots if slot.owned}


class OnGraph(nn.Module):
    """A graph convolution: rows are gathered along edges and summed up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("edges", torch.randint(0, 5, (2, 12)))
        self.edges: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        start, end = self.edges
        along = x.index_select(1, start)
        ends = end.view(1, -1, 1).expand_as(along)
        scores: Tensor = self.second(x.new_zeros(x.shape).scatter_add_(1, ends, along).relu())
        return scores


class DenseGraph(OnGraph):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.rand(5, 5))
        self.weights: Tensor

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second((self.weights @ self.first(x)).relu())
        return scores


@pytest.mark.parametrize("net", [OnGraph(), DenseGraph()], ids=["edges", "matrix"])
def test_hidden_units_pass_along_the_edges_of_a_graph(net: nn.Module) -> None:
    assert found(trace(net, torch.randn(2, 5, 4))) == {"first": 6}


def test_both_halves_of_a_glu_lose_the_same_units() -> None:
    model = nn.Sequential(nn.Conv1d(3, 8, 1), nn.GLU(1), nn.Conv1d(4, 2, 1))
    assert found(trace(model, torch.randn(2, 3, 5))) == {"0": 4}


def test_a_fixed_filter_of_each_channel_passes_units() -> None:
    class Blur(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            filters = torch.ones(1, 1, 3, 3).expand(x.shape[1], -1, -1, -1)
            return F.conv2d(x, filters, groups=x.shape[1])

    model = nn.Sequential(nn.Conv2d(3, 6, 1), Blur(), nn.Conv2d(6, 4, 1))
    assert found(trace(model, torch.randn(2, 3, 5, 5))) == {"0": 6}


def test_what_is_pinned_along_another_dimension_does_not_hide_new_units() -> None:
    """Layers that mix places and layers that mix channels, as in an MLP-Mixer."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
            self.places = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5))
            self.channels = nn.Sequential(nn.Linear(8, 9), nn.GELU(), nn.Linear(9, 8))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.places(self.norm(x).transpose(1, 2)).transpose(1, 2)
            scores: Tensor = self.head((x + self.channels(self.norm(x))).mean(1))
            return scores

    assert found(trace(Mixer(), torch.randn(2, 5, 8))) == {"places.0": 7, "channels.0": 9}


class StateSpace(nn.Module):
    """As Hugging Face writes Mamba: zeros of a stored size, and a weight in another form."""

    def __init__(self, width: int = 6, states: int = 3) -> None:
        super().__init__()
        self.width, self.states = width, states
        self.enter, self.leave = nn.Linear(4, 2 * width), nn.Linear(width, 4)
        self.conv = nn.Conv1d(width, width, 2, groups=width, padding=1)
        self.decay = nn.Parameter(torch.rand(width, states))
        self.mix = nn.Linear(width, states + 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = self.enter(x).transpose(1, 2).chunk(2, 1)
        weight = self.conv.weight.squeeze(1).unsqueeze(1)
        hidden = F.conv1d(hidden, weight, self.conv.bias, padding=1, groups=len(weight))
        hidden = F.silu(hidden[..., : x.shape[1]])
        inputs, rate = self.mix(hidden.transpose(1, 2)).split([self.states, 1], -1)
        hidden = hidden * rate.transpose(1, 2)
        state, decay = torch.zeros(len(x), self.width, self.states), -self.decay.exp()
        found = []
        for step in range(x.shape[1]):
            state = decay.exp() * state + hidden[..., step, None] * inputs[:, None, step]
            found.append((state @ inputs[:, step, :, None])[..., 0])
        out: Tensor = self.leave((torch.stack(found, -1) * F.silu(gate)).transpose(1, 2))
        return out


def test_the_channels_of_a_state_space_layer_are_units() -> None:
    units = trace(StateSpace(), torch.randn(2, 5, 4))
    assert found(units) == {"enter": 6}
    assert [(size.module, size.attribute) for size in units.sizes] == [("", "width")]
