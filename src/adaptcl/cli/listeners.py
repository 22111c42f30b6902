"""The flag --listen: functions of the user that hear the events of a run."""

from __future__ import annotations

from adaptcl.custom import custom_function
from adaptcl.errors import SettingError
from adaptcl.events import Listener
from adaptcl.settings import is_custom


def named_listeners(names: str) -> list[Listener]:
    """Import the listeners of a flag, with commas between."""
    found: list[Listener] = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if not is_custom(name):
            raise SettingError(
                f"--listen is {name!r}, but it must be a function as package.module:function."
            )
        found.append(custom_function(name, "a listener", ("event",), "nothing"))
    return found
