"""What a codec says of its bytes beforehand: exact, or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptcl
from adaptcl import Result
from adaptcl.codecs import Memory, Parcel, Payload, Reader
from adaptcl.codecs.codec import Plain
from adaptcl.errors import CodecError
from adaptcl.events import Event, UpdateArrived
from adaptcl.units import State


@dataclass(frozen=True)
class NoSettings:
    """There is nothing to set."""


class Large:
    """Changes above the mean, and where they are: nobody knows how many before they are trained."""

    summary = "the larger changes"
    Settings = NoSettings

    def __init__(self, settings: NoSettings) -> None:
        pass

    def encode(self, parcel: Parcel, memory: Memory) -> tuple[Payload, Memory]:
        tensors: State = {}
        for name, trained in parcel.state.items():
            change = (trained - parcel.reference[name]).flatten()
            places = (change.abs() > change.abs().mean()).nonzero().flatten()
            tensors |= {f"at:{name}": places.int(), f"by:{name}": change[places]}
        return Payload(tensors), memory

    def size(self, parcel: Parcel) -> int | None:
        return None

    def decode(self, payload: Payload, reference: State) -> State:
        reader, state = Reader(payload), {}
        for name, before in reference.items():
            places = reader.take(f"at:{name}", torch.int32, (None,)).long()
            change = reader.take(f"by:{name}", torch.float32, (len(places),))
            state[name] = before.flatten().index_add(0, places, change).view(before.shape)
        reader.close()
        return state


class UpperBound(Large):
    """Says how much it is at most."""

    def size(self, parcel: Parcel) -> int | None:
        return 2 * sum(tensor.nbytes for tensor in parcel.state.values())


class Silent(Plain):
    """Knows its size and does not say it."""

    def size(self, parcel: Parcel) -> Any:
        return None


@pytest.fixture(scope="module")
def samples() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(80, 8, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs.sum(1) > 0).long()


def run(samples: tuple[Tensor, Tensor], codec: Any, **settings: Any) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    given = {"workers": 3, "rounds": 4, "bandwidth_max": 0.01, **settings}
    if given["strategy"] == "adaptcl":
        given["max_importance_lost"] = 1.0  # what is tested is the clock
    return adaptcl.run(model, samples, samples, codec=codec, **given)


@pytest.mark.parametrize("strategy", ["fedavg", "fedasync-s", "adaptcl"])
def test_a_size_that_depends_on_the_values_makes_the_time_it_takes(
    samples: tuple[Tensor, Tensor], strategy: str
) -> None:
    heard: list[Event] = []
    result = run(samples, Large, strategy=strategy, listeners=[heard.append])
    workers = [worker for record in result.rounds for worker in record.workers]
    assert len({worker.bytes_received for worker in workers}) > 3
    bandwidths: dict[int, set[float]] = {}
    for each in workers:
        # Where a task has changed nothing, there is nothing to send.
        assert (each.receive_s > 0) == (each.bytes_received > 0)
        if each.bytes_received:
            rate = round(each.bytes_received / each.receive_s, 3)
            bandwidths.setdefault(each.worker, set()).add(rate)
    assert all(len(rates) == 1 for rates in bandwidths.values())
    arrivals = [each.virtual_time_s for each in heard if isinstance(each, UpdateArrived)]
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("strategy", ["fedavg", "fedasync-s", "adaptcl"])
def test_a_run_is_the_same_whether_the_codec_tells_its_size_or_not(
    samples: tuple[Tensor, Tensor], strategy: str
) -> None:
    told, untold = (run(samples, codec, strategy=strategy) for codec in ("plain", Silent))
    assert told.rounds == untold.rounds


def test_a_codec_that_says_another_size_is_refused_with_both(
    samples: tuple[Tensor, Tensor],
) -> None:
    with pytest.raises(CodecError) as refused:
        run(samples, UpperBound, strategy="fedavg", workers=1)
    said = 2 * 4 * (8 * 16 + 16 + 16 * 2 + 2)
    assert re.fullmatch(
        rf"The codec {__name__}:UpperBound has said that this update takes {said:,} bytes, but it "
        r"takes \d{3}; its `size` must be exact, or give None where that depends on the values\.",
        str(refused.value),
    )
