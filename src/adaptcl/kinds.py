"""How an error speaks of a value that is of the wrong kind."""

from __future__ import annotations


def kind_of(value: object) -> str:
    """The kind of a value in words: `an int`, `a Tensor`, `the class Net`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def instead_of_class(value: object) -> str:
    """The end of a sentence that refuses a class where an instance of it was meant."""
    if not isinstance(value, type):
        return ""
    return f"; give an instance: {value.__name__}() instead of {value.__name__}"
