"""What came of a row: its runs by seed, each beside the baseline of the same seed."""

from __future__ import annotations

from dataclasses import dataclass

from paper.columns import COLUMNS
from paper.experiment import Part, TableRow
from paper.result import RunResult
from paper.store import Store


@dataclass(frozen=True)
class Pair:
    """A run, and what it is held against."""

    run: RunResult
    baseline: RunResult | None


@dataclass(frozen=True)
class RowOutcome:
    """The runs of a row that there are."""

    row: TableRow
    pairs: tuple[Pair, ...]

    def values(self, column: str) -> list[float]:
        """What the column says, by seed; without the seeds of which it says nothing."""
        value = COLUMNS[column].value
        found = [value(pair.run, pair.baseline) for pair in self.pairs]
        return [each for each in found if each is not None]


def outcome(part: Part, row: TableRow, store: Store) -> RowOutcome:
    """Look up a row's runs."""
    baseline = part.against(row)
    pairs = []
    for seed in row.seeds:
        run = store.find(row.config(seed))
        held = store.find(baseline.config(seed)) if baseline else None
        if run is not None:
            pairs.append(Pair(run, held))
    return RowOutcome(row, tuple(pairs))
