from __future__ import annotations

import torch

from benchmarks.timing import Times, details, how, interleaved, one_core


def test_competitors_take_turns_after_one_run_each_to_warm_up() -> None:
    seen: list[str] = []
    times = interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=2)
    assert seen == ["a", "b", "a", "b", "a", "b"]
    assert all(len(each.wall) == len(each.work) == 2 for each in times.values())


def test_on_several_cores_the_clock_counts_and_on_one_the_processor() -> None:
    wall, work = [3.0, 2.0], [5.0, 4.0]
    assert Times(wall, work).best == 2.0
    assert Times(wall, work, alone=True).best == 4.0


def test_one_core_is_left_to_what_is_inside_and_put_back() -> None:
    before = torch.get_num_threads()
    with one_core("cpu"):
        assert torch.get_num_threads() == 1
        assert interleaved({"a": lambda: None}, 1)["a"].alone
    assert torch.get_num_threads() == before


def test_every_time_goes_into_the_details() -> None:
    assert details({"a": Times([1.0], [2.0])}) == {"a": {"wall_s": [1.0], "work_s": [2.0]}}


def test_what_was_done_is_said() -> None:
    assert how(3) == "shortest of 3 interleaved repeats, after one to warm up"
    assert how(3, one_core=True).startswith("processor time on one core, ")
