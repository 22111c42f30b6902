"""An answer is read, or refused in a sentence; nothing in it ends the server."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl import models
from adaptcl.codecs.codec import Payload
from adaptcl.codecs.plain import Plain, PlainSettings
from adaptcl.engines.network.frames import Frame, printable
from adaptcl.engines.network.messages import update_frame
from adaptcl.engines.network.server.conduct import read_answer
from adaptcl.errors import AdaptCLError, UpdateError
from adaptcl.training import Cut, Recipe, Task, Update
from adaptcl.units import State, trace

MODEL = models.build("small", (1, 8, 8), 10, seed=1)
UNITS = trace(MODEL, torch.zeros(2, 1, 8, 8))
ASKED = Task(1, 7, MODEL.state_dict(), UNITS.everything(), Recipe())
OURS = Plain(PlainSettings())


class Zip(Plain):
    """A codec of somebody's own, which does not expect what others send."""

    def decode(self, payload: Payload, reference: State) -> State:
        zlib.decompress(b"\x1b[2J no zip")
        return reference


class Forgetful(Plain):
    def decode(self, payload: Payload, reference: State) -> State:
        return dict.fromkeys(reference, "no tensor")  # type: ignore[arg-type]


class Strict(Plain):
    def decode(self, payload: Payload, reference: State) -> State:
        raise AdaptCLError("not \x1b[2J mine" + 1000 * "!")


def answer(cut: Cut | None = None) -> Frame:
    state = MODEL.state_dict()
    return update_frame(
        Update(1, 7, state, UNITS.everything(), 9, 0.5, cut), Payload(state), seconds=2.5
    )


def test_an_answer_is_an_update_and_how_long_it_took() -> None:
    got = read_answer(answer().to_bytes(), ASKED, UNITS, OURS)
    assert (got.update.round, got.update.samples, got.seconds) == (7, 9, 2.5)


def test_an_error_in_a_codec_of_ones_own_is_a_refusal_that_says_whose_it_is() -> None:
    with pytest.raises(UpdateError) as refused:
        read_answer(answer().to_bytes(), ASKED, UNITS, Zip(PlainSettings()))
    assert str(refused.value) == (
        "it cannot be decoded (error: Error -3 while decompressing data: incorrect header check). "
        f"This happened in {__name__}:Zip, in Zip.decode, which is not AdaptCL's code."
    )


@pytest.mark.parametrize("codec", [Forgetful, Strict])
def test_whatever_a_codec_of_ones_own_does_is_a_refusal_fit_to_be_shown(
    codec: Callable[[PlainSettings], Plain],
) -> None:
    with pytest.raises(UpdateError, match="it cannot be decoded") as refused:
        read_answer(answer().to_bytes(), ASKED, UNITS, codec(PlainSettings()))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


def test_a_name_of_a_workers_making_neither_steers_a_terminal_nor_fills_it() -> None:
    sent = answer()
    names = {f"payload:\x1b[2J{n}" + 10_000 * "x": torch.zeros(1) for n in range(100)}
    with pytest.raises(UpdateError) as refused:
        read_answer(Frame(sent.header, {**sent.tensors, **names}).to_bytes(), ASKED, UNITS, OURS)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


def test_figures_of_a_pruning_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(UpdateError, match="a pruning that it was not told to do"):
        read_answer(answer(Cut(0.1, 1.0, 2.0)).to_bytes(), ASKED, UNITS, OURS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b]0;b\x07\nc", "a]0;bc"), ("φ × 3", "φ × 3"), ("x" * 500, "x" * 500)],
)
def test_a_text_is_shown_without_what_is_not_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_and_looks_so() -> None:
    assert printable("x" * 10**6) == "x" * 500 + "…"
