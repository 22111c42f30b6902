from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from adaptcl.records import RoundRecord
from adaptcl.report.comparisons.groups import group_runs
from adaptcl.report.figures.timeline import (
    TimelineBar,
    timeline_bars,
    timeline_figure,
    waiting_share,
)
from adaptcl.report.saved_run import Run
from tests.runs.small_runs import small_run

MakeRun = Callable[..., Run]


def seconds(axes: Axes, phase: int, worker: int) -> float:
    """How long the bars of a phase are, in minutes of the axis."""
    bars = axes.collections[4 * worker + phase]
    return float(sum(np.ptp(np.asarray(path.vertices)[:, 0]) for path in bars.get_paths()))


def test_the_fastest_worker_waits_without_pruning_and_hardly_with_it(make_run: MakeRun) -> None:
    runs = [make_run("a", rounds=12), make_run("b", strategy="adaptcl", rounds=12, adapts=True)]
    figure = timeline_figure(group_runs(runs))
    first, last, _, pruned = figure.axes
    # Three rounds of 100 s are shown; worker 3 needs 40 s and waits 60 s in each of them.
    assert [seconds(first, phase, 3) for phase in range(4)] == pytest.approx([0.5, 1, 0.5, 3])
    assert seconds(last, 3, 3) == pytest.approx(3)
    assert seconds(first, 3, 0) == pytest.approx(0)
    assert seconds(pruned, 3, 3) < 1
    assert figure.axes[1].get_title(loc="right").startswith("fedavg-s: workers wait 30 %")


def test_workers_that_have_done_all_their_rounds_are_called_done(make_run: MakeRun) -> None:
    run = make_run("a", strategy="fedasync-s", workers=2, rounds=1)
    slow, fast = (replace(each, begin_s=0.0) for each in run.rounds[0].workers)
    alone = replace(run, rounds=(replace(run.rounds[0], workers=(slow, fast)),))
    figure = timeline_figure(group_runs([alone]))
    # The fast one needs 40 s of the 100 s.
    title = figure.axes[1].get_title(loc="right")
    assert title == "fedasync-s: workers wait 0 % and are done 30 % of the run"
    assert figure.legends[0].get_texts()[-1].get_text() == "done, away or cut off"
    assert alone.summary is not None
    cut_off = replace(alone, summary=replace(alone.summary, stopped_by="max_virtual_time"))
    for other in (run, cut_off):
        assert "done" not in timeline_figure(group_runs([other])).axes[1].get_title(loc="right")


def test_of_many_workers_and_methods_a_choice_is_shown(make_run: MakeRun) -> None:
    names = ("fedavg", "fedavg-s", "ssp-s", "adaptcl", "heterofl")
    runs = [make_run(name, strategy=name, workers=50) for name in names]
    figure = timeline_figure(group_runs(runs))
    shown = [len(axes.get_yticks()) for axes in figure.axes]
    assert shown == [8] * 10
    assert figure.axes[0].get_yticks().tolist()[0] == 0


# In records that real runs left -------------------------------------------------------------------


def rounds_of(out: Path, strategy: str, **settings: object) -> tuple[RoundRecord, ...]:
    return small_run(out, strategy=strategy, jitter=0.0, sigma=4.0, **settings).rounds


def bars_of(rounds: tuple[RoundRecord, ...], worker: int) -> list[TimelineBar]:
    return [bar for each in timeline_bars(rounds) for bar in each if bar.record.worker == worker]


def test_a_worker_of_ssp_that_is_too_far_ahead_is_shown_to_wait(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, "ssp-s", staleness_threshold=1, rounds=6)
    waits = [sum(bar.wait_s for bar in bars_of(rounds, worker)) for worker in range(4)]
    assert waits[0] == 0  # the slowest
    assert 0 < waits[1] < waits[2] < waits[3]
    first, second, third, *_ = bars_of(rounds, 3)
    # It may lead by one round, so it does two at once; the third begins when the slowest is done.
    assert first.wait_s == 0
    slowest = bars_of(rounds, 0)[0]
    assert second.until_s == pytest.approx(third.begin_s)
    assert third.begin_s == slowest.begin_s + slowest.record.update_time_s


@pytest.mark.parametrize("strategy", ["fedasync-s", "dc-asgd-a-s", "fedbuff"])
def test_without_a_barrier_workers_go_from_task_to_task(tmp_path: Path, strategy: str) -> None:
    rounds = rounds_of(tmp_path, strategy, rounds=4)
    assert waiting_share(timeline_bars(rounds)) < 1e-9
    for worker in range(4):
        bars = bars_of(rounds, worker)
        assert bars[0].begin_s == 0
        for bar, following in pairwise(bars):
            assert following.begin_s == pytest.approx(bar.begin_s + bar.record.update_time_s)


def test_with_a_barrier_everybody_waits_for_the_end_of_the_round(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, "fedavg-s", rounds=3)
    assert all(each.begin_s is None for record in rounds for each in record.workers)
    for bars, record in zip(timeline_bars(rounds), rounds, strict=True):
        assert [bar.until_s for bar in bars] == pytest.approx([record.virtual_time_s] * 4)
    assert 0.2 < waiting_share(timeline_bars(rounds)) < 0.6


def test_a_late_update_is_shown_from_when_its_task_was_sent(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, "fedavg-s", rounds=4, deadline=0.6)
    late = [bar for bar in bars_of(rounds, 0) if bar.record.begin_s is not None]
    assert late
    for bar in late:
        began_with = next(r for r in rounds if r.virtual_time_s == bar.begin_s)
        assert 0 in rounds[began_with.round].missing
        assert bar.round > began_with.round + 1


def test_while_it_is_away_a_worker_does_not_wait(tmp_path: Path) -> None:
    whole = rounds_of(tmp_path / "whole", "fedasync-s", rounds=6)
    leaves, returns = whole[1].virtual_time_s, whole[3].virtual_time_s
    trace = tmp_path / "trace.csv"
    rows = f"{leaves},3,1,1,0\n{returns},3,1,1,1\n"
    trace.write_text(f"time_s,worker,bandwidth,speed,available\n{rows}")
    rounds = rounds_of(tmp_path / "away", "fedasync-s", rounds=6, trace=str(trace))
    assert any(3 in record.missing for record in rounds)
    assert any(b.begin_s - a.until_s > 0 for a, b in pairwise(bars_of(rounds, 3)))
    assert waiting_share(timeline_bars(rounds)) < 1e-9
