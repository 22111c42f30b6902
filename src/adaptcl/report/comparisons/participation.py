"""Which workers took part in a run far less than usual, and which were gone before its end.

A model learns from the data of those that took part. So runs with different workers cannot be
compared as methods, however close their settings are.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from adaptcl.errors import enumerated, name_workers
from adaptcl.records import Summary
from adaptcl.report.comparisons.comparison import Comparison, ComparisonRow
from adaptcl.report.saved_run import Run

_NAMED = 5  # how many workers or rows a sentence names at most; there may be thousands


def seldom_there(updates: Sequence[int]) -> dict[int, int]:
    """The workers of which less than half the usual number of updates were used, and how many."""
    usual = _usual(updates)
    return {worker: count for worker, count in enumerate(updates) if count < usual / 2}


def who_hardly_took_part(summary: Summary) -> list[str]:
    """A sentence about the workers of a run that took part far less than usual."""
    few, usual = seldom_there(summary.updates), _usual(summary.updates)
    if not few:
        return []
    # Where few are drawn for a round, nobody takes part in most of them.
    has_most = summary.rounds / 2 < usual <= summary.rounds
    of, than = (f" of {summary.rounds}", "") if has_most else ("", f", where {usual:g} are usual")
    named = [f"worker {worker} took part in {few[worker]}{of} rounds" for worker in few]
    shown = [*named[:_NAMED], f"{len(named) - _NAMED} others in few"]
    return [enumerated(named if len(named) <= _NAMED else shown) + than]


def notes_on_participation(comparison: Comparison) -> list[str]:
    """Which rows learned from other data than the rest, because workers were not there."""
    few = [(row, _seldom_in(row)) for row in comparison.rows]
    notes = []
    for row, mine in few:
        others = {other.group.label: mine.keys() - theirs.keys() for other, theirs in few}
        than = [label for label, lacking in others.items() if lacking]
        if than:
            lacking = {w: mine[w] for label in than for w in sorted(others[label])}
            whom = enumerated(than) if len(than) <= _NAMED else f"{len(than)} other rows"
            notes.append(
                f"{row.group.label} had {_how_few(lacking)}, so it learned from other data than "
                f"{whom}."
            )
    return notes


def gone_at_the_end(run: Run) -> set[int]:
    """Workers that tested in some round, but not the model that was delivered."""
    last = run.summary.worker_metrics if run.summary else ()
    tested = {worker for record in run.rounds for worker in record.worker_values}
    return {worker for worker in tested if last and not last[worker]}


def notes_on_workers_gone(comparison: Comparison) -> list[str]:
    """Whose values `by worker` leaves out."""
    gone = {
        row.group.label: {worker for run in row.group.runs for worker in gone_at_the_end(run)}
        for row in comparison.rows
    }
    named = [f"{name_workers(who)} of {label}" for label, who in gone.items() if who]
    if not named:
        return []
    was = "was" if len(named) == 1 and sum(map(len, gone.values())) == 1 else "were"
    return [
        f"{comparison.measure.label} by worker leaves out {enumerated(named)}, which {was} not "
        "there at the end."
    ]


def _usual(updates: Sequence[int]) -> float:
    return statistics.median(updates) if updates else 0.0


def _seldom_in(row: ComparisonRow) -> Mapping[int, int]:
    """The fewest updates of each worker that was seldom there in one of the row's runs.

    Where workers are drawn for each round, chance decides who takes part, and all is well.
    """
    found: dict[int, int] = {}
    for run in row.group.runs:
        if run.numbers is not None and not run.config.get("participants"):
            for worker, count in seldom_there(run.numbers.updates).items():
                found[worker] = min(count, found.get(worker, count))
    return found


def _how_few(few: Mapping[int, int]) -> str:
    """`no update of worker 2`, and `only 3 updates of worker 1`."""
    never: Collection[int] = {worker for worker, count in few.items() if count == 0}
    some = {worker: count for worker, count in few.items() if count > 0}
    most = max(some.values(), default=0)
    only = f"only {most} update{'s' * (most > 1)} of {name_workers(some)}" if some else ""
    if len(some) > 1:
        only = f"at most {most} updates of each of {name_workers(some)}"
    words = [f"no update of {name_workers(never)}" if never else "", only]
    return enumerated([each for each in words if each])
