from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as older_spectral_norm

from adaptcl.errors import TraceError
from adaptcl.pruning.budget import fit
from adaptcl.units import parameters
from adaptcl.units.describe import TRAINING_ONLY, UNKNOWN, UNUSED, ModuleDescription, describe
from adaptcl.units.tracing.check import UNLIKE_ZEROING, UNTRAINABLE
from adaptcl.units.tracing.coupling import LONE
from adaptcl.units.tracing.forward import BY_PATTERN, RETURNED


def by_name(model: nn.Module, images: Tensor, *fixed: str) -> dict[str, ModuleDescription]:
    return {each.name: each for each in describe(model, images, fixed).modules}


@pytest.mark.slow
def test_every_net_of_the_zoo_is_described_as_it_is_traced(zoo: Mapping[str, Any]) -> None:
    for traced in zoo.values():
        described = {each.name: each for each in traced.description.modules}
        cuttable = {name: described[name].cuttable for name in traced.layers}
        assert cuttable == traced.layers
        for name, each in described.items():
            assert each.cuttable <= each.units
            assert each.cuttable == 0 or name in traced.layers or each.coupled
            # Whatever is not cut has a reason, and nothing else has.
            assert bool(each.pinned) == (each.cuttable < each.units or each.units == 0)
            # Coupling is mutual.
            assert name not in each.coupled
            assert all(name in described[other].coupled for other in each.coupled)


@pytest.mark.slow
def test_the_parameters_that_can_be_cut_are_those_that_pruning_can_take(
    zoo: Mapping[str, Any],
) -> None:
    for traced in zoo.values():
        described, units = traced.description, traced.units
        assert described.parameters == sum(each.numel() for each in traced.net.parameters())
        left = described.parameters - described.cuttable_parameters
        assert left == pytest.approx(described.least_retention * described.parameters)
        importance = torch.rand(units.count, generator=torch.Generator().manual_seed(0))
        assert parameters(units, fit(units, units.everything(), importance, 0)) == left


def test_a_model_without_parameters_keeps_all_of_them() -> None:
    described = describe(nn.Sequential(), torch.randn(2, 20))
    assert described.least_retention == 1
    assert "0 of 0 parameters" in str(described)


def test_a_frame_is_an_example_as_its_numbers_are() -> None:
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(2, 3)
    frame = pandas.DataFrame(inputs.numpy()).assign(extra=True).iloc[:, 1:]
    assert describe(model, frame) == describe(model, inputs)


def test_units_without_batch_norm_are_counted() -> None:
    bare = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), *list(bare)[1:])
    for model, unscaled in ((bare, 9), (normed, 5)):
        described = describe(model, torch.randn(2, 3))
        assert described.unscaled == unscaled
        assert f"\n{unscaled} units have no batch norm" in str(described)


def test_the_reason_is_the_one_there_is(zoo: Mapping[str, Any]) -> None:
    for animal, module, reason in [
        ("VGG-like", "head", RETURNED),
        (
            "hard-coded view",
            "b.0",
            f"{UNLIKE_ZEROING}: view is told the size 256; "
            "if it is a fixed number, say flatten(1) or -1 instead",
        ),
        ("hard-coded slice", "a.0", UNLIKE_ZEROING),
        ("spatial attention", "mask", LONE),
        ("groups that could empty a layer", "b.0", LONE),
        (
            "shuffled narrow groups",
            "b.0",
            "bound together by conv2d in c.0: only all of them could be cut",
        ),
        (
            "GroupNorm without scales",
            "a.0",
            "a cut is not known to pass through group_norm in between",
        ),
        ("softmax over channels", "b.0", "a cut is not known to pass through softmax"),
    ]:
        (described,) = (each for each in zoo[animal].description.modules if each.name == module)
        assert described.pinned == (reason,)


def test_a_sum_over_products_needs_units_that_are_zero_when_zeroed() -> None:
    class Squares(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            opened = super().forward(x).sigmoid()
            return torch.einsum("nu,nu->n", opened, opened)

    (described,) = describe(Squares(3, 4), torch.randn(2, 3)).modules
    assert described.pinned == ("even zeroed, they are not zero at einsum",)


def test_a_layer_without_a_rule_has_no_units_and_pins_what_it_reads() -> None:
    described = describe(nn.Sequential(nn.Linear(3, 4), nn.GRUCell(4, 5)), torch.randn(2, 3))
    assert [each.pinned for each in described.modules] == [
        ("a cut is not known to pass through gru_cell in 1",),
        (UNKNOWN,),
    ]


@pytest.mark.parametrize("animal", ["ResNet-like"], indirect=True)
def test_a_pattern_is_the_reason_for_all_that_is_coupled_with_what_it_names(
    net: nn.Module, images: Tensor
) -> None:
    free, fixed = by_name(net, images), by_name(net, images, "shortcut")
    assert free["two.1"].coupled == ("shortcut",)
    assert free["two.1"].cuttable == 12
    assert fixed["shortcut"].pinned == (BY_PATTERN,)
    assert fixed["two.1"].pinned == (f"coupled with shortcut: {BY_PATTERN}",)
    for name in ("two.1", "shortcut"):
        assert fixed[name].coupled == ()
        assert (fixed[name].units, fixed[name].cuttable) == (12, 0)
    assert fixed["one.1"] == free["one.1"]
    assert fixed["head"].pinned == (RETURNED,)


def test_a_module_that_is_never_run_is_said_not_to_be() -> None:
    class Spare(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self[2](self[0](x).relu())
            return out

    model = Spare(nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2))
    assert by_name(model, torch.randn(2, 3))["1"].pinned == (UNUSED,)


def test_what_a_head_for_training_reads_and_the_head_itself_are_said_to_be_for_training() -> None:
    class Helped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 4)
            self.help, self.head = nn.Linear(6, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()
            scores: Tensor = self.head(self.last(x).relu())
            return scores + self.help(x) if self.training else scores

    described = by_name(Helped(), torch.randn(2, 3))
    assert {name: each.pinned for name, each in described.items()} == {
        "first": (UNTRAINABLE,),
        "last": (),
        "help": (TRAINING_ONLY,),
        "head": (RETURNED,),
    }


class Bare(nn.Module):
    """Bare parameters beside a layer."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.randn(1, 3)))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for each in self.parameters(recurse=False):
            x = x + each.cumprod(1)
        scores: Tensor = self.head(x)
        return scores


def test_bare_parameters_are_named() -> None:
    for names, listed in [
        (("cls",), "parameter cls"),
        (("cls", "pos"), "parameters cls and pos"),
        (("a", "b", "c"), "parameters a, b and c"),
    ]:
        described = by_name(Bare(*names), torch.randn(2, 3))[""]
        assert described.pinned == (f"no units are known in the bare {listed}",)


@pytest.mark.parametrize("animal", ["ResNet-like"], indirect=True)
def test_as_text_it_is_a_table(net: nn.Module, images: Tensor) -> None:
    assert str(describe(net, images, ["shortcut"])).splitlines() == [
        "module    kind    units  can be cut  remarks",
        "head      Linear      5           0  the model returns them",
        "stem.0    Conv2d      6           6  coupled with one.1",
        "one.0.0   Conv2d      4           4",
        "one.1     Conv2d      6           6  coupled with stem.0",
        "two.0.0   Conv2d      5           5",
        "two.1     Conv2d     12           0  coupled with shortcut: fixed by a pattern",
        "shortcut  Conv2d     12           0  fixed by a pattern",
        "773 of 965 parameters (80.1 %) can be cut; no sub-model retains less than 19.9 %, "
        "or a little more where blocks are cut (`width_multiple`)",
    ]


def test_the_table_shortens_long_couplings_and_names_the_model_itself() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))
            self.more = nn.ModuleList(nn.Linear(3, 4) for _ in range(2))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            total = nn.functional.linear(x, self.weight)
            for each in self.more:
                total = total + each(x)
            scores: Tensor = self.head(total)
            return scores

    text = str(describe(Sum(), torch.randn(2, 3)))
    assert "(the model)  Sum         4           4  coupled with more.0 and 1 more" in text
    assert "more.0       Linear      4           4  coupled with the model and 1 more" in text


@pytest.mark.parametrize("animal", ["transformer layer"], indirect=True)
def test_describing_leaves_the_model_and_the_random_numbers_as_they_were(
    net: nn.Module, images: Tensor
) -> None:
    net.train()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random_state = torch.get_rng_state()
    describe(net, images)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_what_cannot_be_traced_cannot_be_described() -> None:
    with pytest.raises(TraceError, match=r"The model is a str, but it must be an nn\.Module\.$"):
        describe("vgg16", torch.randn(2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("norm", "name", "kind"),
    [
        (parametrizations.weight_norm, "0.parametrizations.weight", "WeightNorm"),
        (parametrizations.spectral_norm, "0.parametrizations.weight", "SpectralNorm"),
        (older_spectral_norm, "0", "spectral_norm or pruning"),
    ],
)
def test_a_weight_that_is_computed_is_said_to_be_and_what_to_do(
    norm: Callable[[nn.Module], nn.Module], name: str, kind: str
) -> None:
    model = nn.Sequential(norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    (why,) = by_name(model, torch.randn(2, 3))[name].pinned
    assert why.startswith(f"its weight is computed in every pass by {kind}; take that off with ")


def test_a_layer_whose_reparametrization_is_taken_off_can_be_cut() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    assert describe(model, torch.randn(2, 3)).cuttable_parameters == 0
    parametrize.remove_parametrizations(model[0], "weight")
    assert describe(model, torch.randn(2, 3)).modules[0].cuttable == 4
