"""The log names those who were turned away, and cannot be filled by them."""

from __future__ import annotations

from adaptcl.engines.network.server.admission import Log, TurnedAway


def test_the_same_is_said_once_in_ten_minutes() -> None:
    said: list[TurnedAway] = []
    now = 0.0
    log = Log(said.append, lambda: now)
    for second in range(1201):
        now = float(second)
        log.note("Somebody was turned away.")
    assert said == [TurnedAway("Somebody was turned away.")] * 3


def test_a_thousand_strangers_fill_no_log() -> None:
    said: list[TurnedAway] = []
    log = Log(said.append, lambda: 0.0)
    for stranger in range(1000):
        log.note(f"Somebody at 192.0.2.{stranger} was turned away.")
    assert len(said) == 20
