"""The comparisons of a sweep over conditions: what each is called, and its rows without that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adaptcl.report.comparisons.comparison import Comparison
from adaptcl.report.comparisons.labels import differing_conditions, distinct_labels


def named_by_condition(parts: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Each part, which has a baseline of its own, with its condition, such as `sigma=2`.

    The labels of its rows do not repeat the condition. One part alone has none.
    """
    if len(parts) == 1:
        return [("", parts[0])]
    conditions = differing_conditions([part.baselines[0].group.first for part in parts])
    return [(name, _named_within(part)) for name, part in zip(conditions, parts, strict=True)]


def _named_within(part: Comparison) -> Comparison:
    bare = [replace(row.group.first, label=row.group.first.strategy) for row in part.rows]
    named = {
        id(row.group): replace(row.group, label=run.label)
        for row, run in zip(part.rows, distinct_labels(bare), strict=True)
    }
    rows = tuple(
        replace(row, group=named[id(row.group)], baseline=named[id(row.baseline)])
        for row in part.rows
    )
    return replace(part, rows=rows)
