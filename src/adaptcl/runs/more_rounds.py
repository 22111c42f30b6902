"""Runs that go on to more rounds than they were begun with.

An extended run must end where a run with that many rounds from the start would have ended. So it
must go on from a moment at which the number of rounds had made no difference yet. A strategy with a
barrier uses that number only to end, so the checkpoint before the last round will do. Workers
without a barrier stop when they have done their rounds, the fastest first. From then on the others
learn what they would not have learnt in a longer run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptcl.config import Config
from adaptcl.errors import RunFolderError
from adaptcl.runs.folder import RunFolder
from adaptcl.runs.folder_reader import is_network_run, read_finished, read_marks
from adaptcl.settings import is_custom
from adaptcl.strategies import Strategy, strategy_class
from adaptcl.strategies.asynchronous import Asynchronous


def can_be_extended(folder: Path, strategy: Strategy, name: str) -> bool:
    """Whether a longer run would be in the same state as the run in this folder is now."""
    if is_network_run(folder) or (is_custom(name) and not _is_extendable(type(strategy))):
        return False
    if isinstance(strategy, Asynchronous):
        return max(strategy.done) < strategy.rounds
    return not strategy.finished


def asks_for_more_rounds(folder: Path, config: Config) -> bool:
    begun = read_marks(folder)
    return begun is not None and bool(begun["settings"]["rounds"] < config.job.rounds)


def extend_run(folder: RunFolder, config: Config, marks: dict[str, Any]) -> None:
    """Give a run, finished or not, more rounds; an error if it would end differently.

    `marks` are those of the longer run. A run that is killed meanwhile can be resumed as any other.
    """
    rounds = config.job.rounds
    if is_network_run(folder.path):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: only simulated runs can, not those "
            "across a network."
        )
    finished = read_finished(folder.path)
    checkpoint = folder.checkpoint_for_more()
    stopped_by = finished[0].stopped_by if finished else (checkpoint or {}).get("stopped_by")
    if stopped_by is not None:
        who = "a listener" if stopped_by.startswith("listener") else stopped_by
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {who} ended it before its rounds "
            "were done, and more rounds do not change that; begin another run in another folder."
        )
    begins_anew = checkpoint is None and not folder.finished
    if not begins_anew and not (checkpoint or {}).get("may_go_further"):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {_reason(config)}; begin a run of "
            f"{rounds} rounds in another folder."
        )
    folder.begin_again(config.to_toml(), marks)


def _reason(config: Config) -> str:
    chosen = strategy_class(config.job.strategy)
    if is_custom(config.job.strategy) and not _is_extendable(chosen):
        return (
            f"{config.job.strategy} does not say, by extendable = True, that nothing but its end "
            "depends on their number"
        )
    if isinstance(chosen, type) and issubclass(chosen, Asynchronous):
        return "workers that had done all their rounds have stopped, which changes what others do"
    return "it has no checkpoint from before its last round"


def _is_extendable(chosen: object) -> bool:
    """Whether the class itself says so. An inherited word does not count: a subclass may use the
    number of rounds for something else."""
    return bool(vars(chosen).get("extendable", False))
