"""Results as data frames, where pandas is installed; nothing else needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from adaptcl.errors import AdaptCLError
from adaptcl.records import RoundRecord


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A `pandas.DataFrame` with a line for each row."""
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise AdaptCLError("Data frames need pandas; pip install pandas installs it.") from None
    return pandas.DataFrame(list(rows))


def round_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row a round, with all that is known of the round itself."""
    return [
        {
            each.name: getattr(record, each.name)
            for each in dataclasses.fields(record)
            if each.name != "workers"
        }
        for record in rounds
    ]


def worker_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """One row a worker and round."""
    return [
        {"round": record.round, "virtual_time_s": record.virtual_time_s}
        | dataclasses.asdict(worker)
        for record in rounds
        for worker in record.workers
    ]
