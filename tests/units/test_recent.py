from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from adaptcl.units.unit_map import Recent


def test_a_result_is_made_once() -> None:
    made: list[str] = []
    recent = Recent(2)

    def make() -> str:
        made.append("a")
        return "result"

    assert [recent.get("a", make) for _ in range(3)] == ["result"] * 3
    assert made == ["a"]


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    recent = Recent(2)
    for key in (1, 2, 1, 3):
        recent.get(key, lambda: "first")
    assert recent.get(1, lambda: "again") == "first"
    assert recent.get(3, lambda: "again") == "first"
    assert recent.get(2, lambda: "again") == "again"
    assert len(recent) == 2


def test_threads_can_share_it() -> None:
    recent = Recent(3)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda n: recent.get(n % 7, lambda: n % 7), range(700))
        assert list(found) == [n % 7 for n in range(700)]
    assert len(recent) <= 3
