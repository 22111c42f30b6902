"""What came of a row: its runs by seed, each beside the baseline of the same seed."""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.experiments.columns import COLUMNS
from adaptcl.experiments.experiment import Part, Row
from adaptcl.experiments.result import RunResult
from adaptcl.experiments.store import Store


@dataclass(frozen=True)
class Pair:
    """A run, and what it is held against."""

    run: RunResult
    baseline: RunResult | None


@dataclass(frozen=True)
class Outcome:
    """The runs of a row that there are."""

    row: Row
    pairs: tuple[Pair, ...]

    def values(self, column: str) -> list[float]:
        """What the column says, by seed; without the seeds of which it says nothing."""
        value = COLUMNS[column].value
        found = [value(pair.run, pair.baseline) for pair in self.pairs]
        return [each for each in found if each is not None]


def outcome(part: Part, row: Row, store: Store) -> Outcome:
    """Look up a row's runs."""
    baseline = part.against(row)
    pairs = []
    for seed in row.seeds:
        run = store.find(row.config(seed))
        held = store.find(baseline.config(seed)) if baseline else None
        if run is not None:
            pairs.append(Pair(run, held))
    return Outcome(row, tuple(pairs))
