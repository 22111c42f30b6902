"""Links and devices by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptcl.engines.bandwidths import MIB
from adaptcl.engines.environment import Environment, EnvironmentSettings
from adaptcl.engines.machines import DEVICES, LINKS
from adaptcl.errors import SettingError
from adaptcl.settings import build
from adaptcl.training import Recipe, Task
from adaptcl.units import UnitMap

Make = Callable[..., Environment]


@pytest.fixture
def make(units: UnitMap) -> Make:
    def made(workers: int, **settings: object) -> Environment:
        chosen = build(EnvironmentSettings, {"train_time": 10.0, **settings})
        return Environment(chosen, units, workers, epochs=2.0, seed=1)

    return made


def test_links_are_dealt_in_turn_and_differ_by_direction(units: UnitMap, make: Make) -> None:
    environment = make(3, links=("4g", "3g"))
    assert environment.links == [LINKS["4g"], LINKS["3g"], LINKS["4g"]]
    task = Task(1, 1, {}, units.everything(), Recipe())
    timing = environment.timing(task, task.kept, 0.0, 6 * MIB, 6 * MIB, 0.0)
    # 3G carries 6 megabits a second down and 1.3 up.
    assert timing.send == pytest.approx(8 * MIB / 1e6)
    assert timing.receive == pytest.approx(6 / 1.3 * 8 * MIB / 1e6)
    told = environment.whole_updates(6 * MIB, 6 * MIB)[1]
    assert (told.send, told.receive) == pytest.approx((timing.send, timing.receive))


def test_devices_train_at_their_speed_and_have_equal_links(make: Make) -> None:
    environment = make(3, devices=("laptop", "raspberry-pi-4"), bandwidth_max=2.0, sigma=9.0)
    updates = environment.whole_updates(100, 100)
    assert [each.train for each in updates] == pytest.approx([10.0, 10.0 / 0.11, 10.0])
    assert {round(link.down, 9) for link in environment.links} == {2.0}
    assert DEVICES["laptop"] == 1
    assert all(faster > slower for faster, slower in itertools.pairwise(DEVICES.values()))


def test_the_document_tells_the_numbers_and_the_source_of_every_link_and_device() -> None:
    document = Path(__file__).parents[2] / "docs" / "environments.md"
    row = re.compile(r"^\| `(\S+)` \| ([\d.]+) \| ([\d.]+) \| \w", re.MULTILINE)
    told = {name: (float(a), float(b)) for name, a, b in row.findall(document.read_text("utf-8"))}
    megabits = 8 * MIB / 1e6
    assert told.keys() == {*LINKS, *DEVICES}
    for name, link in LINKS.items():
        assert told[name] == pytest.approx((link.down * megabits, link.up * megabits))
    assert {name: told[name][0] for name in DEVICES} == DEVICES


@pytest.mark.parametrize(
    ("name", "named"), [("links", ("4g", "3g", "dsl")), ("devices", ("phone", "laptop", "server"))]
)
def test_more_names_than_workers_are_refused(make: Make, name: str, named: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as refused:
        make(2, **{name: named})
    assert str(refused.value) == (
        f"{name} has 3 entries, but there are only 2 workers to deal them to."
    )


def test_an_unknown_link_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingError, match=r"must be a list, each entry one of lan, fiber, .*3g"):
        build(EnvironmentSettings, {"links": ("4g", "carrier-pigeon")})
