"""What the clock of a simulation assumes, in one line, and a warning if it is lopsided."""

from __future__ import annotations

from collections.abc import Sequence

from adaptcl.codecs.codec import Codecs
from adaptcl.engines.bandwidths import MIB, Link
from adaptcl.engines.environment import Environment
from adaptcl.quantities import duration, duration_unit, from_to, rate_unit
from adaptcl.training import Recipe, Task, Timing
from adaptcl.training.wire import encoded_size
from adaptcl.units import UnitMap

_MOST, _LEAST = 0.9, 0.05  # shares of an update that the link may have without a warning


def whole_updates(environment: Environment, units: UnitMap, codecs: Codecs) -> list[Timing]:
    """How long each worker takes for the whole model.

    Where the size of what a codec sends is not known beforehand, it counts as uncompressed.
    """
    task = Task(0, 1, {}, units.everything(), Recipe())
    sent = encoded_size(task, task.kept, units, codecs.down) or environment.whole_bytes
    received = encoded_size(task, task.kept, units, codecs.up) or environment.whole_bytes
    return environment.whole_updates(sent, received)


def describe_clock(environment: Environment, updates: Sequence[Timing], source: str = "") -> str:
    """Say how long training and transfers take.

    `updates` are each worker's with the whole model; `source` says how their training times are
    known, if they were not given.
    """
    fastest = min(updates, key=lambda each: each.update_time)
    slowest = max(updates, key=lambda each: each.update_time)
    took = _in_shares(fastest)
    if slowest.update_time > fastest.update_time:
        took += f" to {_in_shares(slowest)}"
    trains = from_to(duration_unit, [each.train for each in updates])
    shrinks = (
        f"{environment.flops_share:.0%} of it in proportion to the sub-model's FLOPs and "
        f"{environment.samples_share:.0%} to the worker's samples"
    )
    links = _links(environment.links)
    return (
        f"training takes {trains}{source and f' {source}'}, {shrinks}; {links}; an update of the "
        f"whole model {took}"
    )


def lopsided(updates: Sequence[Timing]) -> str | None:
    """A warning if the links decide everything on this clock, or nothing."""
    shares = [(each.send + each.receive) / each.update_time for each in updates]
    if min(shares) > _MOST:
        return (
            f"Sending and receiving the model take {min(shares):.0%} of every update or more, so "
            "how fast workers train hardly matters on this clock; with faster links (bandwidth_max "
            "or links), slower machines (devices or train_time) or a codec it would."
        )
    if max(shares) < _LEAST:
        return (
            f"Sending and receiving the model take {max(shares):.1%} of every update or less, so "
            "links hardly matter on this clock; with slower ones (bandwidth_max, sigma or links) "
            "or a train_time of faster machines they would."
        )
    return None


def ends_at_once(limit: float, updates: Sequence[Timing]) -> str | None:
    """A warning if the run's time limit in seconds, 0 for none, may be over in the first round.

    A round may be shorter than the slowest update: some strategies do not wait, or send less.
    """
    slowest = max(each.update_time for each in updates)
    if not 0 < limit < slowest:
        return None
    hint = f" A number alone is seconds; write {limit:g}min for minutes." if limit >= 1 else ""
    return (
        f"max_virtual_time (--until) is {duration(limit)}, but an update of the whole model takes "
        f"the slowest worker {duration(slowest)}, so the run may end with its first round.{hint}"
    )


def _in_shares(update: Timing) -> str:
    total = update.update_time
    parts = {"send": update.send, "train": update.train, "receive": update.receive}
    shares = ", ".join(f"{name} {part / total:.0%}" for name, part in parts.items())
    return f"{duration(total)} ({shares})"


def _links(links: Sequence[Link]) -> str:
    down, up = [each.down * MIB for each in links], [each.up * MIB for each in links]
    if down == up:
        return f"links carry {from_to(rate_unit, down)}"
    return f"links carry {from_to(rate_unit, down)} down and {from_to(rate_unit, up)} up"
