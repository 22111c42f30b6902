"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Outcome = tuple[int, str, str]


@pytest.fixture
def refused(command: Callable[..., Outcome]) -> Callable[[list[str], str], None]:
    """Checks that a command prints this sentence and nothing else, with exit status 2."""

    def check(words: list[str], sentence: str) -> None:
        assert command(*words) == (2, "", f"adaptcl: {sentence}\n")

    return check
