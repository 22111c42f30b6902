"""Ctrl-C and SIGTERM end a command even where Python loses the exception.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. Inside a finaliser or a
weakref callback, which the garbage collector may call at any moment, Python prints the exception
and goes on. A server that lost its Ctrl-C like this would go on waiting for its workers. So the
signal is also noted here, and loops that may wait for long look at the note.
"""

from __future__ import annotations

import signal
import threading


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


def raise_if_interrupted() -> None:
    """Raise again an interrupt that Python has lost."""
    if _Note.interrupted:
        raise KeyboardInterrupt


def _interrupt(*_: object) -> None:
    _Note.interrupted = True
    raise KeyboardInterrupt
