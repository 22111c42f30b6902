"""When a setting has an effect: what it asks of the other settings of a run.

Declared beside the setting itself, so that whoever has to know (the warning about flags that change
nothing, the labels of runs, the question whether two runs are the same) knows the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Condition(Protocol):
    """Something that other settings must fulfil."""

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether they do, in a run with these settings."""
        ...

    def refusal(self, settings: Mapping[str, Any]) -> str:
        """How a sentence goes on that begins with 'This setting has no effect'."""
        ...


@dataclass(frozen=True)
class With:
    """Another setting must have this value."""

    name: str
    value: str

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether it has, or is on nobody's record: older runs lack what is newer than they."""
        return bool(settings.get(self.name, self.value) == self.value)

    def refusal(self, settings: Mapping[str, Any]) -> str:
        """What it has, and what it would take."""
        return f"with {self.name} {settings.get(self.name)}; it is for {self.value}"


@dataclass(frozen=True)
class Beside:
    """Another setting must be in use: neither 0 nor empty."""

    name: str

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether it is."""
        return bool(settings.get(self.name))

    def refusal(self, settings: Mapping[str, Any]) -> str:
        """What is lacking."""
        return f"without {self.name}"


@dataclass(frozen=True)
class Unless:
    """Another setting, which takes its place, must not be in use."""

    name: str

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether it is not."""
        return not settings.get(self.name)

    def refusal(self, settings: Mapping[str, Any]) -> str:
        """What takes its place."""
        return f"beside {self.name}"
