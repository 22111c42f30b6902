"""What came of a row: its runs by seed, each beside the baseline of the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    variant: Mapping[str, Any]
    """Of a row with several variants, the one shown: the most accurate."""
    variants_run: int

    def values(self, column: str) -> list[float]:
        """What the column says, by seed; without the seeds of which it says nothing."""
        value = COLUMNS[column].value
        found = [value(pair.run, pair.baseline) for pair in self.pairs]
        return [each for each in found if each is not None]

    @property
    def note(self) -> str:
        """Which of how many variants, for the reader."""
        if len(self.row.variants) == 1 or not self.pairs:
            return ""
        words = ", ".join(f"{name} {value}" for name, value in self.variant.items())
        return f"{words.replace('_', ' ')}, best of {self.variants_run}"


def outcome(part: Part, row: Row, store: Store) -> Outcome:
    """Look up a row's runs."""
    baseline = part.against(row)
    candidates = []
    for variant in row.variants:
        pairs = []
        for seed in row.seeds:
            run = store.find(row.config(variant, seed))
            held = store.find(baseline.config({}, seed)) if baseline else None
            if run is not None:
                pairs.append(Pair(run, held))
        if pairs:
            candidates.append((variant, tuple(pairs)))
    if not candidates:
        return Outcome(row, (), {}, 0)
    variant, best = max(
        candidates,
        key=lambda each: statistics.fmean(pair.run.summary.best_accuracy for pair in each[1]),
    )
    return Outcome(row, best, variant, len(candidates))
