"""Running a user's forward pass where PyTorch would take a shortcut, and what is not run at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adaptcl.errors import TraceError
from adaptcl.units import describe, submodel, trace
from adaptcl.units.tracing.forward import WithoutFusedLayers


class Padded(nn.Module):
    """PyTorch's encoder on texts of different lengths, which it packs in eval mode."""

    def __init__(self, *, nested: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.table = nn.Embedding(9, 8, padding_idx=0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(self.table(x), src_key_padding_mask=x == 0)
        scores: Tensor = self.head(hidden[:, 0])
        return scores


TEXTS = torch.tensor([[1, 2, 3, 4, 0, 0], [5, 6, 0, 0, 0, 0]])


@pytest.mark.slow
def test_an_encoder_of_padded_texts_has_the_same_units_however_pytorch_packs_them() -> None:
    nested, padded = (trace(Padded(nested=nested), TEXTS) for nested in (True, False))
    assert nested.layers == padded.layers
    parts = [f"encoder.layers.{n}.{part}" for n in range(2) for part in ("self_attn", "linear1")]
    assert [layer.name for layer in nested.layers] == ["table", *parts]
    assert describe(Padded(), TEXTS) == describe(Padded(nested=False), TEXTS)


@pytest.mark.parametrize("part", ["table", "linear1", "self_attn"])
def test_a_cut_encoder_of_padded_texts_gives_the_same_with_and_without_the_shortcut(
    part: str,
) -> None:
    model = Padded().eval()
    units = trace(model, TEXTS)
    kept = units.everything()
    for layer in units.layers:
        if layer.name.endswith(part):
            kept[layer.units.start + 1 : layer.units.stop] = False
    smaller = submodel(model, units, kept)
    with torch.no_grad():
        fast = smaller(TEXTS)
        with WithoutFusedLayers():
            slow = smaller(TEXTS)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


class Spectral(nn.Module):
    """Multiplies what it is given by complex numbers."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        weight = torch.randn(5, dtype=torch.complex64)
        self.weight = nn.Parameter(weight, requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)
        return mixed


def test_a_complex_parameter_is_refused_by_name_unless_it_is_never_trained() -> None:
    example = torch.randn(2, 4)
    with pytest.raises(TraceError, match=r"'1' \(Spectral\) has a parameter 'weight' of complex"):
        trace(nn.Sequential(nn.Linear(4, 8), Spectral(trained=True)), example)
    trace(nn.Sequential(nn.Linear(4, 8), Spectral(trained=False)), example)


def test_a_state_beside_the_tensors_is_refused_by_name() -> None:
    class Remembers(nn.Identity):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

    with pytest.raises(TraceError, match=r"'1' \(Remembers\) has a state beside its tensors"):
        trace(nn.Sequential(nn.Linear(4, 8), Remembers()), torch.randn(2, 4))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Renames(nn.Sequential):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {f"my.{name}": each for name, each in super().state_dict(*args, **kwargs).items()}


class Copies(nn.Sequential):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: each.clone() for name, each in super().state_dict(*args, **kwargs).items()}


class TakesNothing(nn.Sequential):
    def state_dict(self) -> Any:  # type: ignore[override]
        return super().state_dict()


@pytest.mark.parametrize("kind", [Renames, Copies, TakesNothing])
def test_a_state_dict_that_is_not_that_of_pytorch_is_refused(kind: type[nn.Sequential]) -> None:
    with pytest.raises(TraceError, match="does not have the state dict that PyTorch gives"):
        trace(kind(*net()), torch.randn(2, 4))


def test_a_hook_may_use_its_module_but_not_one_that_workers_have_copies_of() -> None:
    units = trace(net(), torch.randn(2, 4))
    model = net()
    model[0].register_forward_hook(lambda module, inputs, output: output * module.bias)
    assert trace(model, torch.randn(2, 4)).layers == units.layers
    model = net()
    model[0].register_forward_hook(lambda module, inputs, output: output * model[0].bias)
    refused = r"'0' \(Linear\) has a hook that holds a part of this"
    with pytest.raises(TraceError, match=refused):
        trace(model, torch.randn(2, 4))
    model = net()
    held = [model[0]]
    model[0].register_forward_hook(lambda module, inputs, output: output * held[0].bias)
    with pytest.raises(TraceError, match=refused):
        trace(model, torch.randn(2, 4))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = self.head((self.a(x) + self.b(y)).relu())
        return scores


X, Y = np.random.default_rng(0).normal(size=(2, 4)), torch.randn(2, 3)


@pytest.mark.parametrize("example", [(X, Y), [X, Y], {"y": Y, "x": X}])
def test_an_example_can_be_several_tensors_and_arrays(example: Any) -> None:
    assert describe(Both(), example).cuttable_parameters == 77
    doubles: Any = {"x": X, "y": Y.double()}
    assert describe(Both().double(), doubles).cuttable_parameters == 77


@pytest.mark.parametrize(
    ("example", "held"),
    [(None, "None"), (((X,), Y), "a tuple"), ([[1.0, 2.0]], "a list"), ({"x": 3.0}, "a float")],
)
def test_what_is_no_example_is_named(example: Any, held: str) -> None:
    with pytest.raises(TraceError, match=f"is or holds {held}, but it must be a batch of inputs"):
        describe(Both(), example)
