"""The events of a run, and how they reach the listeners.

A listener is a plain function of one event: the progress display is one, and a user may add
others. A run goes the same way with and without listeners, unless one raises `adaptcl.StopRun`:
then it ends after the round that is running. A listener of the user that raises anything else is
reported and gets no more events.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from adaptcl.errors import StopRun, warn_user
from adaptcl.records import RoundRecord, Summary
from adaptcl.training.objectives.metrics import Measure
from adaptcl.training.update_time import Timing


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or continues after `rounds_done` rounds."""

    strategy: str
    model: str
    data: str
    workers: int
    rounds: int
    rounds_done: int = 0
    metric: Measure = field(default_factory=Measure)
    """The main metric, by which tests are compared."""
    clock: str = ""
    """What the clock of a simulation assumes; empty where times are real."""


@dataclass(frozen=True)
class TaskSent:
    """A worker got a task (`virtual_time_s` on the run's clock)."""

    worker: int
    round: int
    virtual_time_s: float
    expected: Timing | None = None
    """When it is sent, trained and answered, as far as a simulation knows beforehand: a training of
    which nobody knows how long it takes is infinite. None where times are real."""


@dataclass(frozen=True)
class PhaseBegan:
    """On a network, what now happens with a worker's task: `sending`, `training` or `receiving`.

    A simulation says it beforehand, with `TaskSent`.
    """

    worker: int
    phase: str


@dataclass(frozen=True)
class UpdateArrived:
    """A worker's update reached the server at `virtual_time_s` of the run's clock."""

    worker: int
    round: int
    virtual_time_s: float


@dataclass(frozen=True)
class RoundFinished:
    """A round is closed and its record is final."""

    record: RoundRecord
    model: Callable[[], nn.Module] | None = field(default=None, repr=False, compare=False)
    """Makes the model that the run would deliver after this round, a copy in evaluation mode. It is
    there in every run; call it before the listener returns, because the run goes on."""


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone: it left, stopped answering, or the trace of a simulation says so.

    The global model keeps its units as they are.
    """

    worker: int
    round: int
    reason: str


@dataclass(frozen=True)
class WorkerSilent:
    """On a network, a worker with a task has not been heard of for a while. After `limit_s` seconds
    of silence it is lost; before, it may speak again, and nothing is said of that."""

    worker: int
    silent_s: float
    limit_s: float


@dataclass(frozen=True)
class WorkerJoined:
    """A worker joined or rejoined a run, on a network perhaps before the first round.

    A simulation says this only of workers that come back, as its trace has it.
    """

    worker: int
    round: int


@dataclass(frozen=True)
class Warned:
    """Something the user should know; the run continues."""

    message: str


@dataclass(frozen=True)
class Waiting:
    """On a network, nothing goes on without these workers. It is said again, ever more rarely."""

    workers: tuple[int, ...]
    least: int = 0
    """With how many workers a run goes on that has paused; 0 if it has not."""


@dataclass(frozen=True)
class RunFinished:
    """The run is over and its summary is final."""

    summary: Summary


Event = (
    RunStarted
    | TaskSent
    | PhaseBegan
    | UpdateArrived
    | RoundFinished
    | WorkerLost
    | WorkerSilent
    | WorkerJoined
    | Warned
    | Waiting
    | RunFinished
)
Listener = Callable[[Event], None]


class Listeners:
    """Passes every event on to all listeners of a run.

    The run needs some of them, such as its folder, so their errors end the run. The others are the
    user's: one that raises `StopRun` ends the run after the round, and one that raises anything
    else is reported and gets no more events.
    """

    def __init__(
        self,
        needed: Sequence[Listener],
        others: Sequence[Listener],
        ask_to_stop: Callable[[str], None],
    ) -> None:
        """`ask_to_stop` gets who asks for the end of the run."""
        self._needed = needed
        self._others = list(others)
        self._ask_to_stop = ask_to_stop

    def __call__(self, event: Event) -> None:
        for listener in self._needed:
            listener(event)
        for listener in [*self._others]:
            if listener not in self._others:
                continue  # dropped just now, because it failed on the warning about another
            try:
                listener(event)
            except StopRun as request:
                self._ask_to_stop(f"listener: {request}" if str(request) else "listener")
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
