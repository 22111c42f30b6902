"""What workers tell of their data before a run: the server asks each, and says what came of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from adaptcl.data.description import LABEL, SampleForm, forms_in_words
from adaptcl.engines.network.agreement import (
    LocalStatistics,
    agreed,
    difference,
    odd_ones_out,
)
from adaptcl.engines.network.frames import Frame, printable
from adaptcl.engines.network.invitation import Question, dismissal
from adaptcl.engines.network.messages import (
    DESCRIBE,
    INVITE,
    JUDGED_LATER,
    WAIT,
    unlike_frame,
)
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.attendance import Quorum, tell_waiting
from adaptcl.engines.network.server.fleet import Came, Fleet, FleetEvent, Left, Replied
from adaptcl.engines.network.server.patience import Reminder, departure
from adaptcl.errors import UpdateError, listed, name_workers

_LISTED = 10  # how many classes a sentence names

ClassHolders = Mapping[str, list[int]]
"""The workers that have a class, by its name."""


def agree(
    fleet: Fleet, workers: int, question: Question, quorum: Quorum, say: Callable[[str], None]
) -> SampleForm:
    """Ask all workers for their statistics, and merge them.

    Once there are enough for the `quorum`, the others have only its seconds to tell.
    """
    hearing = _Hearing(fleet, workers, question, say)
    reminder = Reminder(fleet.now)
    enough_since: float | None = None
    while missing := hearing.missing:
        if reminder.is_due(missing):
            say(f"still waiting for {name_workers(missing)}")
            tell_waiting(fleet, hearing.found, missing, workers)
        left = math.inf
        if quorum.seconds is not None and len(hearing.found) >= quorum.begin:
            enough_since = fleet.now() if enough_since is None else enough_since
            left = enough_since + quorum.seconds - fleet.now()
        if left <= 0:
            hearing.refuse_odd_ones(len(hearing.found))  # the most frequent form counts now
            if len(hearing.found) >= quorum.begin:
                break
            enough_since = None
        else:
            for event in fleet.wait(min(left, reminder.due_in())):
                hearing.hear(event)
    if missing := hearing.missing:
        without = name_workers(missing)
        say(f"the model is built without the data of {without}; what comes later has to fit it")
    known = agreed(hearing.found)
    holders = holders_of_classes(hearing.found)
    say(agreement_in_words(known, holders, workers))
    for sentence in look_alikes(holders):
        say(f"warning: {sentence}")
    return known


class _Hearing:
    """What the workers that are there have told so far. One that leaves no longer counts, and is
    asked again when it comes back: its data may be others."""

    def __init__(
        self, fleet: Fleet, workers: int, question: Question, say: Callable[[str], None]
    ) -> None:
        self.found: dict[int, LocalStatistics] = {}
        self._fleet = fleet
        self._workers = workers
        self._question = question.frame().to_bytes()
        self._say = say
        self._asked: dict[int, str] = {}

    @property
    def missing(self) -> set[int]:
        return set(range(self._workers)) - self.found.keys()

    def hear(self, event: FleetEvent) -> None:
        match event:
            case Came(worker):
                self.found.pop(worker, None)
                self._asked[worker] = self._fleet.send(worker, DESCRIBE, self._question)
            case Left(worker, said_goodbye):
                if self.found.pop(worker, None) is not None:
                    why, whom = departure(said_goodbye=said_goodbye), name_workers(self.missing)
                    self._say(f"worker {worker} lost: {why}; waiting for {whom}")
            case Replied(worker, message) if self._asked.get(worker) == message:
                self._note(worker, event.content)
            case TurnedAway(sentence):
                self._say(sentence)

    def refuse_odd_ones(self, of: int) -> None:
        """Refuse workers whose data are unlike those of most, if `of` so many are to tell."""
        for odd, reason in odd_ones_out(self.found, of).items():
            del self.found[odd]
            self._say(f"Worker {odd} cannot take part: {reason}")
            self._fleet.send(odd, INVITE, dismissal(reason).to_bytes())

    def _note(self, worker: int, answer: bytes) -> None:
        try:
            told = LocalStatistics.read(Frame.from_bytes(answer))
        except UpdateError as error:
            self._say(f"Worker {worker} cannot take part: {error}")
            return
        if worker not in self._fleet.connected:
            return  # it has answered and left at once
        self.found[worker] = told
        self.refuse_odd_ones(self._workers)
        if worker in self.found:
            self._tell_difference(worker)
            absent = self.missing - self._fleet.connected
            tell_waiting(self._fleet, [worker], absent, self._workers)

    def _tell_difference(self, worker: int) -> None:
        """Its owner need not wait for all the others to hear that a column is missing."""
        if told := difference(self.found, worker):
            self._say(f"warning: Worker {worker}'s data differ: {told}; {JUDGED_LATER}")
            self._fleet.send(worker, WAIT, unlike_frame(told).to_bytes())


def holders_of_classes(found: Mapping[int, LocalStatistics]) -> ClassHolders:
    holders = defaultdict[str, list[int]](list)
    for worker, each in sorted(found.items()):
        for name in each.inputs.classes:
            holders[name].append(worker)
    return holders


def agreement_in_words(known: SampleForm, holders: ClassHolders, workers: int) -> str:
    """One line of what the model will be built for, so that a slip in a worker's data is seen."""
    told = f"the workers' inputs are {printable(forms_in_words(known.inputs))}"
    if not known.classes:
        return f"{told}, their targets {printable(forms_in_words(known.targets))}"
    if known.targets != LABEL:
        told += f", their targets {printable(forms_in_words(known.targets))}"
    told += (
        f"; {len(known.classes)} class{'es' * (len(known.classes) > 1)}: {_named(known.classes)}"
    )
    alone = defaultdict[int, list[str]](list)
    for name in known.classes:
        if workers > 1 and len(holders[name]) == 1:
            alone[holders[name][0]].append(name)
    return told + "".join(
        f"; only worker {worker} has {_named(names)}" for worker, names in sorted(alone.items())
    )


def look_alikes(holders: ClassHolders) -> Iterator[str]:
    """A sentence for classes whose names differ only in case or in spaces around them."""
    alike = defaultdict[str, list[str]](list)
    for name in sorted(holders):
        alike[name.strip().casefold()].append(name)
    for names in alike.values():
        if len(names) > 1:
            each = [f"{printable(repr(name))} ({name_workers(holders[name])})" for name in names]
            yield (
                f"The classes {' and '.join(each)} have almost the same name, but count as "
                f"{len(names)} classes. If they are one, give it one name everywhere and begin "
                "anew."
            )


def _named(classes: Sequence[str]) -> str:
    return listed(map(printable, classes), _LISTED)
