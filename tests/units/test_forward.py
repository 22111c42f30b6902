"""Running a user's forward pass where PyTorch would take a shortcut, and what is not run at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adaptcl.errors import TraceError
from adaptcl.units import describe, submodel, trace
from adaptcl.units.forward import WithoutFusedLayers


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
    assert [layer.name for layer in nested.layers] == [
        f"encoder.layers.{number}.{part}"
        for number in range(2)
        for part in ("self_attn", "linear1")
    ]
    assert describe(Padded(), TEXTS) == describe(Padded(nested=False), TEXTS)


@pytest.mark.parametrize("part", ["linear1", "self_attn"])
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
