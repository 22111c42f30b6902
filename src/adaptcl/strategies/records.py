"""From an arrival to the line of it in the round's record."""

from __future__ import annotations

from adaptcl.records import WorkerRecord
from adaptcl.training import Arrival
from adaptcl.units import UnitMap, retention


def worker_record(units: UnitMap, arrival: Arrival, pruned_rate: float) -> WorkerRecord:
    """What one worker did in one round."""
    timing, update = arrival.timing, arrival.update
    cut = update.cut
    return WorkerRecord(
        worker=update.worker,
        send_s=timing.send,
        train_s=timing.train,
        receive_s=timing.receive,
        update_time_s=timing.update_time,
        retention=retention(units, update.kept),
        pruned_rate=pruned_rate,
        importance_lost=cut.importance_lost if cut else None,
        loss_jump=cut.loss_after - cut.loss_before if cut else None,
        bytes_sent=timing.bytes_sent,
        bytes_received=timing.bytes_received,
    )
