"""A worker that holds up the others although it is as small as it may be is named, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.strategies.adaptcl.conftest import Engine, Engines, Times


def told(run: Engine) -> list[str]:
    return [text for c in run.closed for text in c.warnings if "the smallest sub-model" in text]


def in_proportion(whole: float) -> Times:
    return lambda worker, kept, round: (whole if worker == 0 else 10.0) * kept


@pytest.mark.parametrize("width_multiple", [1, 8])
def test_who_is_at_the_floor_and_still_slow_is_named_once_with_the_setting(
    engine: Engines, tmp_path: Path, width_multiple: int
) -> None:
    chosen = {"min_retention": 0.3, "width_multiple": width_multiple}
    run = engine(in_proportion(100.0), **chosen).until(12).resumed(tmp_path).until(40)
    (text,) = told(run)
    assert text.startswith(
        "Worker 0 has the smallest sub-model that `min_retention` (0.3) allows, and still takes "
    )


@pytest.mark.parametrize("whole", [20.0, 40.0])
def test_who_comes_close_to_the_others_is_not_spoken_of(engine: Engines, whole: float) -> None:
    assert not told(engine(in_proportion(whole), min_retention=0.3).until(40))


def test_without_a_floor_there_is_nothing_to_say(engine: Engines) -> None:
    assert not told(engine(in_proportion(100.0), literal_algorithm_2=True).until(40))
