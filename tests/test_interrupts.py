"""Ctrl-C ends a command even where Python loses the exception."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterator

import pytest

from adaptcl.interrupts import catch_signals, raise_if_interrupted


@pytest.fixture(autouse=True)
def _same_signals_afterwards() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    catch_signals()  # clears the note
    for each, handler in before.items():
        signal.signal(each, handler)


class Dying:
    """An object that somebody waits to see collected."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_inside_a_weakref_callback_is_raised_later(number: signal.Signals) -> None:
    """Python prints it there and goes on: "Exception ignored in …"."""
    catch_signals()
    raise_if_interrupted()
    one = Dying()
    seen = weakref.ref(one, lambda _: os.kill(os.getpid(), number))
    del one
    assert seen() is None
    with pytest.raises(KeyboardInterrupt):
        raise_if_interrupted()


def test_a_new_command_begins_without_the_interrupt_of_the_last() -> None:
    catch_signals()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    catch_signals()
    raise_if_interrupted()


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    catch_signals()
    os.kill(os.getpid(), signal.SIGINT)
    raise_if_interrupted()
