"""Workers that answer nonsense; the run goes on and says what happened."""

from __future__ import annotations

import dataclasses
import re
import threading
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.engines.network.frames import Frame, pack_kept
from adaptcl.errors import AdaptCLError
from adaptcl.events import Event, Warned, WorkerJoined, WorkerLost

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site


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


def _huge_loss(content: bytes) -> bytes:
    """A whole number that no floating-point number can hold."""
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "loss": 10**400}).to_bytes()


def _true_samples(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    return dataclasses.replace(frame, header={**frame.header, "samples": True}).to_bytes()


def _twice_the_samples(content: bytes) -> bytes:
    frame = Frame.from_bytes(content)
    samples = 2 * frame.header["samples"]
    return dataclasses.replace(frame, header={**frame.header, "samples": samples}).to_bytes()


def _noise(content: bytes) -> bytes:
    return b"\xff" * 1000


def _code(content: bytes) -> bytes:
    return b"cos\nsystem\n(S'touch /tmp/owned'\ntR."


def warnings(events: list[Event]) -> str:
    return "\n".join(each.message for each in events if isinstance(each, Warned))


def test_answers_that_cannot_be_used_change_nothing_but_the_log(site: Site) -> None:
    site.ask_again_at_once()
    site.worker(0)
    site.worker(1)
    site.worker(
        2,
        [
            *(_wrong_shape, _not_a_number, _honestly),
            *(_missing_units, _too_many_units, _honestly),
            *(_long_gone, _infinite_loss, _honestly),
            *(_noise, _code, _honestly),
            *(_huge_loss, _true_samples, _honestly),
        ],
    )
    chosen = site.settings(strategy="fedavg", rounds=15)
    (result,) = site.serve(chosen)
    said = warnings(site.events)
    for word in (
        "must be [10]",
        "not finite",
        "without being told to",
        "not those of 176 units",
        "answered for round 0",
        "its loss is inf",
        "cannot be read",
        "loss is 1000",
        "samples is True",
    ):
        assert word in said
    assert said.count("Worker 2's answer was not used") == 10
    assert {each.reason for each in site.of(WorkerLost, 2)} == {"its answer could not be used"}
    assert not site.of(WorkerLost, 0) + site.of(WorkerLost, 1)
    assert all(torch.isfinite(t).all() for t in result.model.state_dict().values())
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.02


def test_a_worker_that_only_lies_gets_no_more_tasks(site: Site) -> None:
    site.ask_again_at_once()
    site.worker(0)
    site.worker(1)
    lying = site.worker(2, [_noise] * 99)
    chosen = site.settings(strategy="fedavg", rounds=8)
    (result,) = site.serve(chosen)
    assert "Worker 2 gets no more tasks after 3 such answers" in warnings(site.events)
    assert len(site.of(WorkerLost, 2)) == 3
    assert [w.worker for w in result.rounds[-1].workers] == [0, 1]
    # A third of the data is never seen, which is all that the lies may cost.
    assert result.summary.accuracy >= site.undisturbed(chosen).summary.accuracy - 0.05
    lying.join()
    assert site.said_by[2][-1].startswith("The server has dismissed this worker: A message cannot")


def test_a_worker_that_changes_its_weight_is_told_why_it_must_not_and_may_come_back(
    site: Site,
) -> None:
    def back() -> bool:
        lost, joined = site.of(WorkerLost, 2), site.of(WorkerJoined, 2)
        return bool(lost) and site.events.index(joined[-1]) > site.events.index(lost[-1])

    def restart() -> None:
        site.wait_for_server()
        site.worker(2, [_honestly, _twice_the_samples]).join()
        site.worker(2)

    site.worker(0, [_honestly, site.after(back)])
    site.worker(1)
    threading.Thread(target=restart, daemon=True).start()
    chosen = site.settings(strategy="fedavg", rounds=3)
    (result,) = site.serve(chosen)
    sentence = r"worker 2 has (\d+) samples, but it had (\d+) when it began; .*start it with those"
    for text in (warnings(site.events), "\n".join(site.said_by[2])):
        found = re.search(sentence, text)
        assert found is not None
        assert int(found[1]) == 2 * int(found[2])
    assert len(site.of(WorkerLost, 2)) == 1
    theirs = site.undisturbed(chosen).model.state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)


def test_where_training_diverges_everywhere_the_run_ends_with_what_may_help(site: Site) -> None:
    site.ask_again_at_once()
    for number in range(3):
        site.worker(number)
    with pytest.raises(AdaptCLError, match=r"No worker is left: .*a lower learning_rate may help"):
        site.serve(site.settings(strategy="fedavg", learning_rate=1e30))
    assert warnings(site.events).count("a lower learning_rate may help") == 9
