from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from adaptcl.report.progress import PATIENCE, bar


class Clock:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def terminal(page: StringIO, *, is_terminal: bool = True) -> Console:
    return Console(file=page, force_terminal=is_terminal, width=80)


def test_a_short_step_shows_nothing(clock: Clock) -> None:
    page = StringIO()
    with bar("reading digits", console=terminal(page), clock=clock) as progress:
        for done in range(10):
            clock.now += PATIENCE / 20
            progress(done, 10)
    assert page.getvalue() == ""


def test_a_long_step_shows_how_far_it_is(clock: Clock) -> None:
    page = StringIO()
    with bar("reading cifar10", console=terminal(page), clock=clock) as progress:
        clock.now += 2 * PATIENCE
        progress(30_000, 60_000)
    assert "reading cifar10" in page.getvalue()
    assert "30000/60000" in page.getvalue()


def test_bytes_are_shown_as_bytes_even_if_the_total_is_unknown(clock: Clock) -> None:
    page = StringIO()
    with bar("fetching cifar10", in_bytes=True, console=terminal(page), clock=clock) as progress:
        clock.now += 2 * PATIENCE
        progress(1_500_000, None)
    assert "1.5" in page.getvalue()
    assert "MB" in page.getvalue()


def test_without_a_terminal_there_is_no_bar(clock: Clock) -> None:
    page = StringIO()
    with bar("reading", console=terminal(page, is_terminal=False), clock=clock) as progress:
        clock.now += 2 * PATIENCE
        progress(1, 2)
    assert page.getvalue() == ""


def test_an_interruption_restores_the_terminal(clock: Clock) -> None:
    page = StringIO()

    def interrupted() -> None:
        with bar("reading", console=terminal(page), clock=clock) as progress:
            clock.now += 2 * PATIENCE
            progress(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert page.getvalue().rindex(shown) > page.getvalue().rindex(hidden)
