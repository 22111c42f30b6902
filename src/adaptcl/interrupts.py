"""Ctrl-C and SIGTERM end a command even where Python loses the exception.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. Inside a finaliser or a
weakref callback, which the garbage collector may call at any moment, Python prints the exception
and goes on. A server that lost its Ctrl-C like this would go on waiting for its workers. So the
signal is also noted here, and loops that may wait for long look at the note.

While a command is imported there is nothing to end or to save, and an exception would come out of a
module that somebody else imports. Then a signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Note:
    """Whether an interrupt has come."""

    interrupted = False


def catch_signals() -> None:
    """Let Ctrl-C and SIGTERM interrupt this process for certain; does nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        return
    _Note.interrupted = False
    signal.signal(signal.SIGTERM, _interrupt)
    # Who started this process may want it to ignore Ctrl-C, as a shell does in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Around imports: Ctrl-C and SIGTERM end this process with one line."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = threading.current_thread() is threading.main_thread()
    chosen = [number for number, each in before.items() if ours and each is not signal.SIG_IGN]
    for number in chosen:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, before[number])


def raise_if_interrupted() -> None:
    """Raise again an interrupt that Python has lost."""
    if _Note.interrupted:
        raise KeyboardInterrupt


def _leave(*_: object) -> None:
    cleared = b"\r\033[K" if os.isatty(2) else b""
    os.write(2, cleared + b"adaptcl: interrupted.\n")
    os._exit(130)


def _interrupt(*_: object) -> None:
    _Note.interrupted = True
    raise KeyboardInterrupt
