"""What workers tell of their data before a run: the server asks each, and says what came of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from adaptcl.data.description import LABEL, SampleForm, forms_in_words
from adaptcl.engines.network.agreement import LocalStatistics, agreed, odd_ones_out
from adaptcl.engines.network.frames import Frame, printable
from adaptcl.engines.network.invitation import Question, dismissal
from adaptcl.engines.network.messages import DESCRIBE, INVITE
from adaptcl.engines.network.server.admission import TurnedAway
from adaptcl.engines.network.server.attendance import Quorum, tell_waiting
from adaptcl.engines.network.server.fleet import Came, Fleet, Left, Replied
from adaptcl.engines.network.server.patience import Reminder, departure
from adaptcl.errors import UpdateError, listed, name_workers

_LISTED = 10  # how many classes a sentence names

ClassHolders = Mapping[str, list[int]]
"""The workers that have a class, by its name."""


def agree(
    fleet: Fleet, workers: int, question: Question, quorum: Quorum, say: Callable[[str], None]
) -> SampleForm:
    """Ask all workers for their statistics, and merge them. One that leaves no longer counts, and
    is asked again when it comes back: its data may be others.

    Once there are enough for the `quorum`, the others have only its seconds to tell.
    """
    found: dict[int, LocalStatistics] = {}
    asked: dict[int, str] = {}
    reminder = Reminder(fleet.now)
    enough_since: float | None = None

    def refuse_odd_ones(of: int) -> None:
        for odd, reason in odd_ones_out(found, of).items():
            del found[odd]
            say(f"Worker {odd} cannot take part: {reason}")
            fleet.send(odd, INVITE, dismissal(reason).to_bytes())

    while missing := set(range(workers)) - found.keys():
        if reminder.is_due(missing):
            say(f"still waiting for {name_workers(missing)}")
            tell_waiting(fleet, found, missing, workers)
        left = math.inf
        if quorum.seconds is not None and len(found) >= quorum.least:
            enough_since = fleet.now() if enough_since is None else enough_since
            left = enough_since + quorum.seconds - fleet.now()
        if left <= 0:
            refuse_odd_ones(len(found))  # with no more to come, the most frequent form counts
            if len(found) >= quorum.least:
                break
            enough_since = None
            continue
        for event in fleet.wait(min(left, reminder.due_in())):
            match event:
                case Came(worker):
                    asked[worker] = fleet.send(worker, DESCRIBE, question.frame().to_bytes())
                case Left(worker, said_goodbye):
                    asked.pop(worker, None)
                    if found.pop(worker, None) is not None:
                        missing = set(range(workers)) - found.keys()
                        why = departure(said_goodbye=said_goodbye)
                        say(f"worker {worker} lost: {why}; waiting for {name_workers(missing)}")
                case Replied(worker, message) if asked.get(worker) == message:
                    try:
                        found[worker] = LocalStatistics.read(Frame.from_bytes(event.content))
                    except UpdateError as error:
                        say(f"Worker {worker} cannot take part: {error}")
                    refuse_odd_ones(workers)
                    if worker in found:
                        absent = set(range(workers)) - found.keys() - fleet.connected
                        tell_waiting(fleet, [worker], absent, workers)
                case TurnedAway(sentence):
                    say(sentence)
    if missing := set(range(workers)) - found.keys():
        without = name_workers(missing)
        say(f"the model is built without the data of {without}; what comes later has to fit it")
    known = agreed(found)
    holders = holders_of_classes(found)
    say(agreement_in_words(known, holders, workers))
    for sentence in look_alikes(holders):
        say(f"warning: {sentence}")
    return known


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
