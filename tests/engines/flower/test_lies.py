"""Workers that answer nonsense; the run goes on and says what happened."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.flower.frames import Frame, pack_kept
from adaptcl.events import Event, Warned, WorkerLost

if TYPE_CHECKING:
    from tests.engines.flower.conftest import Site


def _honestly(content: bytes) -> bytes:
    return content


def _changed(content: bytes, **tensors: torch.Tensor) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, tensors={**frame.tensors, **tensors}).to_bytes()


def _wrong_shape(content: bytes) -> bytes:
    return _changed(content, **{"payload:classifier.bias": torch.zeros(9)})


def _not_a_number(content: bytes) -> bytes:
    return _changed(content, **{"payload:classifier.bias": torch.full((10,), float("nan"))})


def _missing_units(content: bytes) -> bytes:
    kept = torch.ones(176, dtype=torch.bool)
    kept[0] = False
    return _changed(content, kept=pack_kept(kept))


def _too_many_units(content: bytes) -> bytes:
    return _changed(content, kept=torch.ones(999, dtype=torch.uint8))


def _long_gone(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "round": 0}).to_bytes()


def _infinite_loss(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "loss": float("inf")}).to_bytes()


def _noise(content: bytes) -> bytes:
    return b"\xff" * 1000


def _code(content: bytes) -> bytes:
    return b"cos\nsystem\n(S'touch /tmp/owned'\ntR."


def warnings(events: list[Event]) -> str:
    return "\n".join(each.message for each in events if isinstance(each, Warned))


def test_answers_that_cannot_be_used_change_nothing_but_the_log(site: Site) -> None:
    site.worker(0)
    site.worker(1)
    site.worker(
        2,
        [
            *(_wrong_shape, _not_a_number, _honestly),
            *(_missing_units, _too_many_units, _honestly),
            *(_long_gone, _infinite_loss, _honestly),
            *(_noise, _code, _honestly),
        ],
    )
    chosen = site.settings(strategy="fedavg", rounds=12)
    (result,) = site.serve(chosen)
    said = warnings(site.events)
    for word in (
        "must be [10]",
        "not finite",
        "without being told to",
        "not those of 176 units",
        "answered for round 0",
        "loss is inf",
        "cannot be read",
    ):
        assert word in said
    assert said.count("Worker 2's answer was not used") == 8
    assert {each.reason for each in site.of(WorkerLost, 2)} == {"its answer could not be used"}
    assert not site.of(WorkerLost, 0) + site.of(WorkerLost, 1)
    assert all(torch.isfinite(t).all() for t in result.model.state_dict().values())
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.02


def test_a_worker_that_only_lies_gets_no_more_tasks(site: Site) -> None:
    site.worker(0)
    site.worker(1)
    site.worker(2, [_noise] * 99)
    chosen = site.settings(strategy="fedavg", rounds=8)
    (result,) = site.serve(chosen)
    assert "Worker 2 gets no more tasks after 3 such answers" in warnings(site.events)
    assert len(site.of(WorkerLost, 2)) == 3
    assert [w.worker for w in result.rounds[-1].workers] == [0, 1]
    # A third of the data is never seen, which is all that the lies may cost.
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.05
