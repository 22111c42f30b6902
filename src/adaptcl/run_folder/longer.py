"""Runs that go on to more rounds than they were begun with.

A run made longer must end where one that had as many rounds from the start would have ended. That
holds if it goes on from a moment at which the number of rounds had not yet made a difference. A
strategy with a barrier does nothing with that number but end, so the checkpoint before the last
round will do. Workers without a barrier stop when they have done their rounds, the fastest first,
and from then on the others learn what they would not have learnt in a longer run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptcl.config import Config
from adaptcl.errors import RunFolderError
from adaptcl.run_folder import RunFolder, read_marks
from adaptcl.run_folder.network_file import is_network_run
from adaptcl.settings import is_own
from adaptcl.strategies import Strategy, strategy_class
from adaptcl.strategies.asynchronous import Asynchronous


def may_go_further(folder: Path, strategy: Strategy, name: str) -> bool:
    """Whether a run of more rounds would have come to where the one in a folder is now."""
    if is_network_run(folder) or (is_own(name) and not _says_so(type(strategy))):
        return False
    if isinstance(strategy, Asynchronous):
        return max(strategy.done) < strategy.rounds
    return not strategy.finished


def is_to_go_further(folder: Path, config: Config) -> bool:
    """Whether a run was begun with fewer rounds than it is to have now."""
    begun = read_marks(folder)
    return begun is not None and bool(begun["settings"]["rounds"] < config.job.rounds)


def lengthen(folder: RunFolder, config: Config, marks: dict[str, Any]) -> None:
    """Make a run, finished or not, one of more rounds; an error if it would not end as such a one.

    `marks` are those of the longer run. What is killed in between goes on like any other run.
    """
    rounds = config.job.rounds
    if is_network_run(folder.path):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: only simulated runs can, not those "
            "across a network."
        )
    checkpoint = folder.checkpoint_for_more()
    begins_anew = checkpoint is None and not folder.finished
    if not begins_anew and not (checkpoint or {}).get("may_go_further"):
        raise RunFolderError(
            f"{folder.path} cannot go on to {rounds} rounds: {_reason(config)}; begin a run of "
            f"{rounds} rounds in another folder."
        )
    folder.begin_again(config.to_toml(), marks)


def _reason(config: Config) -> str:
    chosen = strategy_class(config.job.strategy)
    if is_own(config.job.strategy) and not _says_so(chosen):
        return (
            f"{config.job.strategy} does not say, by extendable = True, that nothing but its end "
            "depends on their number"
        )
    if isinstance(chosen, type) and issubclass(chosen, Asynchronous):
        return "workers that had done all their rounds have stopped, which changes what others do"
    return "it has no checkpoint from before its last round"


def _says_so(chosen: object) -> bool:
    """Not what it inherits: who adds to a strategy of ours may have added what depends on it."""
    return bool(vars(chosen).get("extendable", False))
