"""Hidden units of recurrent layers: where they are found, what a cut gives, and what keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl.units import Kept, UnitMap, cut, describe, put_back, submodel, trace, zero
from adaptcl.units.tracing.rules.recurrent import BIDIRECTIONAL, GIVEN_STATE, PACKED, PROJECTED

WORDS, WIDTH, HIDDEN, CLASSES, STEPS = 20, 5, 6, 3, 7
TEXTS = torch.randint(WORDS, (4, STEPS), generator=torch.Generator().manual_seed(0))

Kind = Callable[..., nn.RNNBase]
Pooled = Callable[[Tensor, Tensor], Tensor]
"""What is read of all outputs and the last states."""


def last_step(output: Tensor, _: Tensor) -> Tensor:
    return output[:, -1]


def mean_over_time(output: Tensor, _: Tensor) -> Tensor:
    return output.mean(1)


def last_state(_: Tensor, state: Tensor) -> Tensor:
    return state[-1]


class Classifier(nn.Module):
    """Texts to classes: an embedding, a recurrent layer and what is read of it."""

    def __init__(
        self,
        kind: Kind,
        layers: int = 1,
        pooled: Pooled = last_step,
        **options: Any,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.rnn = kind(WIDTH, HIDDEN, layers, **{"batch_first": True, **options})
        self.pooled = pooled
        read = options.get("proj_size", HIDDEN) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(read, CLASSES)

    def first_state(self, x: Tensor) -> Any:
        return None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if not self.rnn.batch_first:
            x = x.transpose(0, 1)
        output, state = self.rnn(x, self.first_state(x))
        if not self.rnn.batch_first:
            output = output.transpose(0, 1)
        state = state[0] if isinstance(state, tuple) else state
        scores: Tensor = self.head(self.pooled(output, state))
        return scores


class GivenZeros(Classifier):
    """Zeros as the first state, of a size that the model stores."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.hidden = HIDDEN

    def first_state(self, x: Tensor) -> Any:
        zeros = x.new_zeros(1, len(x), self.hidden)
        return (zeros, torch.zeros((1, len(x), self.hidden))) if self.rnn.mode == "LSTM" else zeros


class LearnedState(Classifier):
    def __init__(self) -> None:
        super().__init__(nn.GRU)
        self.start = nn.Parameter(torch.rand(1, 1, HIDDEN))

    def first_state(self, x: Tensor) -> Any:
        return self.start.expand(-1, len(x), -1).contiguous()


class FilledZeros(Classifier):
    """A state of zeros that is written to before it is used."""

    def first_state(self, x: Tensor) -> Any:
        return torch.zeros(1, len(x), HIDDEN).fill_(0.5)


class EncoderDecoder(Classifier):
    """The last state of one layer is the first of another."""

    def __init__(self) -> None:
        super().__init__(nn.GRU, pooled=mean_over_time)
        self.encoder = nn.GRU(WIDTH, HIDDEN, batch_first=True)

    def first_state(self, x: Tensor) -> Any:
        return self.encoder(x)[1]


class Packed(Classifier):
    def forward(self, tokens: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), torch.full((len(tokens),), STEPS), batch_first=True
        )
        scores: Tensor = self.head(self.rnn(packed)[1][-1])
        return scores


def half(units: UnitMap) -> Kept:
    kept = units.everything()
    for layer in units.layers:
        kept[layer.units.start + 1 : layer.units.stop : 2] = False
    return kept


def check_cut_equals_zeroing(model: nn.Module, layers: dict[str, int]) -> None:
    units = trace(model, TEXTS)
    assert {each.name: len(each.units) for each in units.layers} == layers
    kept = half(units)
    smaller, zeroed = submodel(model, units, kept), submodel(model, units, units.everything())
    zeroed.load_state_dict(zero(model.state_dict(), units, kept))
    assert not torch.allclose(zeroed(TEXTS), model(TEXTS))
    for training in (False, True):
        torch.testing.assert_close(smaller.train(training)(TEXTS), zeroed.train(training)(TEXTS))


@pytest.mark.parametrize("pooled", [last_step, mean_over_time, last_state])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_hidden_units_and_the_embedding_in_front_of_them_can_be_cut(
    kind: Kind, layers: int, pooled: Pooled
) -> None:
    check_cut_equals_zeroing(Classifier(kind, layers, pooled), {"embed": WIDTH, "rnn": HIDDEN})


@pytest.mark.parametrize(
    "model",
    [
        Classifier(nn.LSTM, 2, batch_first=False, bias=False),
        Classifier(nn.GRU, batch_first=False),
        Classifier(nn.RNN, 2),
        GivenZeros(nn.LSTM),
        GivenZeros(nn.GRU),
    ],
    ids=["time first", "time first in a GRU", "plain RNN", "zeros for an LSTM", "zeros for a GRU"],
)
def test_hidden_units_can_be_cut_however_the_layer_is_used(model: nn.Module) -> None:
    check_cut_equals_zeroing(model, {"embed": WIDTH, "rnn": HIDDEN})


def test_a_layer_that_starts_from_the_state_of_another_loses_the_same_units() -> None:
    check_cut_equals_zeroing(EncoderDecoder(), {"embed": WIDTH, "encoder": HIDDEN})


def test_a_smaller_layer_knows_its_sizes_and_can_be_put_back() -> None:
    model = Classifier(nn.LSTM, 2)
    units = trace(model, TEXTS)
    kept = half(units)
    smaller = submodel(model, units, kept).get_submodule("rnn")
    assert isinstance(smaller, nn.LSTM)
    assert (smaller.input_size, smaller.hidden_size) == (3, 3)
    assert smaller.weight_hh_l1.shape == (12, 3)
    state = model.state_dict()
    whole = {name: each.clone() for name, each in state.items()}
    small = cut(state, units, kept)
    put_back({name: torch.zeros_like(each) for name, each in small.items()}, units, kept, whole)
    assert not torch.equal(whole["rnn.weight_hh_l1"], state["rnn.weight_hh_l1"])
    put_back(small, units, kept, whole)
    assert all(torch.equal(whole[name], each) for name, each in state.items())


@pytest.mark.parametrize(
    ("model", "reason", "others"),
    [
        (Classifier(nn.LSTM, 2, bidirectional=True), BIDIRECTIONAL, {"embed": WIDTH}),
        (Classifier(nn.GRU, bidirectional=True), BIDIRECTIONAL, {"embed": WIDTH}),
        (Classifier(nn.LSTM, proj_size=4), PROJECTED, {"embed": WIDTH}),
        (FilledZeros(nn.GRU), GIVEN_STATE, {"embed": WIDTH}),
        (Packed(nn.LSTM, pooled=last_state), PACKED, {}),
    ],
    ids=["two directions", "two directions of a GRU", "proj_size", "filled", "packed"],
)
def test_hidden_units_that_cannot_be_cut_stay_with_a_reason(
    model: nn.Module, reason: str, others: dict[str, int]
) -> None:
    described = {each.name: each for each in describe(model, TEXTS).modules}
    assert (described["rnn"].cuttable, described["rnn"].pinned) == (0, (reason,))
    if others:
        check_cut_equals_zeroing(model, others)


def test_a_learned_first_state_belongs_to_the_hidden_units() -> None:
    check_cut_equals_zeroing(LearnedState(), {"embed": WIDTH, "rnn": HIDDEN})


@pytest.mark.parametrize("trained", [True, False])
def test_statistics_behind_hidden_units_grow_with_their_trained_rows(trained: bool) -> None:
    class Normed(Classifier):
        def __init__(self) -> None:
            super().__init__(nn.LSTM)
            self.rnn.requires_grad_(trained)
            self.norm = nn.BatchNorm1d(HIDDEN)

        def forward(self, tokens: Tensor) -> Tensor:
            scores: Tensor = self.head(self.norm(self.rnn(self.embed(tokens))[0][:, -1]))
            return scores

    found = trace(Normed(), TEXTS).scale_powers
    powers = [] if trained else [[0] * HIDDEN] * 2  # a power of 1 is not listed
    assert [each.tolist() for each in found.values()] == powers


def test_adaptcl_trains_smaller_recurrent_layers() -> None:
    texts = torch.randint(WORDS, (48, STEPS), generator=torch.Generator().manual_seed(1))
    data = texts, texts[:, -1] % CLASSES
    result = adaptcl.run(
        Classifier(nn.LSTM, 2), data, data, workers=2, rounds=2, sigma=4.0, pruning_interval=1,
        batch_size=8, train_time=20.0, threads=1,
    )  # fmt: skip
    assert len(result.rounds) == 2
    assert min(each.retention for each in result.rounds[-1].workers) < 1
