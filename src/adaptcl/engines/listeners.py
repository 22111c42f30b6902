"""Hands the events of a run to all who listen; a user's listener that fails breaks nothing.

A listener may ask for the end of the run, by raising `StopRun`.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from adaptcl.engines.stop_rule import StopRule
from adaptcl.errors import StopRun, warn_user
from adaptcl.events import Event, Listener, Warned


class Listeners:
    """Passes every event on to all listeners of a run.

    The run needs some of them, such as its folder, so their errors end the run. The others are the
    user's: one that raises `StopRun` ends the run after the round, and one that raises anything
    else is reported and gets no more events.
    """

    def __init__(
        self, needed: Sequence[Listener], others: Sequence[Listener], stop_rule: StopRule
    ) -> None:
        self._needed = needed
        self._others = list(others)
        self._stop_rule = stop_rule

    def __call__(self, event: Event) -> None:
        for listener in self._needed:
            listener(event)
        for listener in [*self._others]:
            if listener not in self._others:
                continue  # dropped just now, because it failed on the warning about another
            try:
                listener(event)
            except StopRun as request:
                self._stop_rule.ask(f"listener: {request}" if str(request) else "listener")
            # Nobody reads the output any more, or the user wants warnings to be errors.
            except (BrokenPipeError, Warning):
                raise
            except Exception as error:
                self._drop(listener, error)

    def _drop(self, listener: Listener, error: Exception) -> None:
        self._others.remove(listener)
        name = getattr(listener, "__name__", type(listener).__name__)
        sentence = (
            f"The listener {name} raised {type(error).__name__}: {error} ({_place(error)}); it "
            "gets no more events, and the run goes on."
        )
        if self._others:
            self(Warned(sentence))
        else:
            warn_user(sentence)


def _place(error: Exception) -> str:
    """Where an error was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
