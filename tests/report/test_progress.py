from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from adaptcl.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    UpdateArrived,
    Waiting,
    Warned,
    WorkerJoined,
    WorkerLost,
    WorkerSilent,
)
from adaptcl.report.progress import PATIENCE, Progress, bar

EventsOf = Callable[..., list[Event]]

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture(autouse=True)
def _an_ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "COLUMNS",
        "LINES",
    ):
        monkeypatch.delenv(name, raising=False)


def plain() -> Console:
    return Console(file=StringIO(), width=40)


def terminal(height: int = 50) -> Console:
    return Console(force_terminal=True, width=100, height=height, file=StringIO())


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def last_screen(console: Console) -> str:
    """What the display showed last, without colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written(console)).replace("\r", "")
    return text[text.rindex(" workers\n") :] if " workers\n" in text else text


def row(screen: str, worker: int) -> list[str]:
    found = re.search(rf"^ *{worker}  +(.*)$", screen, re.MULTILINE)
    assert found, f"worker {worker} is not shown in:\n{screen}"
    return found[1].split()


def test_outside_a_terminal_each_round_is_one_plain_line(events_of: EventsOf) -> None:
    console = plain()
    with Progress(console) as progress:
        for event in events_of(strategy="adaptcl", adapts=True, round_s=40.0):
            progress(event)
    assert written(console).splitlines() == [
        "adaptcl round 1/4  time 28.0 s  accuracy 50.0 %  H 0.429  retention 0.70-1.00",
        "adaptcl round 2/4  time 47.2 s  accuracy 60.0 %  H 0.167  retention 0.40-1.00",
        "adaptcl round 3/4  time 66.4 s  accuracy 70.0 %  H 0.167  retention 0.40-1.00",
        "adaptcl round 4/4  time 85.6 s  accuracy 80.0 %  H 0.167  retention 0.40-1.00",
        "adaptcl finished 4 rounds  time 85.6 s  accuracy 80.0 % (best 80.0 % in round 4)  "
        "H 0.429 to 0.167  retention 0.40-1.00",
    ]


def test_one_round_is_not_several(events_of: EventsOf) -> None:
    console = plain()
    with Progress(console) as progress:
        for event in events_of(rounds=1):
            progress(event)
    assert "fedavg-s finished 1 round  time" in written(console)


def test_a_round_without_a_measurement_says_nothing_of_accuracy(events_of: EventsOf) -> None:
    console = plain()
    start, *_, last = events_of(rounds=1, finished=False)
    assert isinstance(last, RoundFinished)
    unmeasured = RoundFinished(type(last.record)(1, 2.0, None, 0.25, ()))
    with Progress(console) as progress:
        progress(start)
        progress(unmeasured)
    assert written(console) == "fedavg-s round 1/1  time 2.0 s  H 0.250\n"


def test_the_runs_of_one_command_say_an_equal_clock_and_warning_once() -> None:
    console, said = plain(), set[str]()
    for clock in ("training takes 2 s", "training takes 2 s", "training takes 3 s"):
        with Progress(console, said=said) as progress:
            progress(RunStarted("fedavg", "vgg-tiny", "digits", 4, 9, clock=clock))
            progress(Warned("strength is low"))
    assert written(console).splitlines() == [
        "clock: training takes 2 s",
        "warning: strength is low",
        "clock: training takes 3 s",
    ]


def test_who_is_waited_for_is_said_each_time() -> None:
    """Or the last line could name workers that have come, and not those that have left."""
    console = plain()
    with Progress(console) as progress:
        for missing in ((1, 2), (2,), (1, 2)):
            progress(Waiting(missing))
    assert written(console).splitlines() == [
        "still waiting for workers 1 and 2",
        "still waiting for worker 2",
        "still waiting for workers 1 and 2",
    ]


def test_a_silent_worker_is_named_with_when_it_is_lost() -> None:
    console = plain()
    with Progress(console) as progress:
        progress(WorkerSilent(1, 10.4, 30.0))
    assert written(console) == "worker 1 is silent for 10 s; after 30 s it is lost\n"


def test_a_run_that_pauses_says_for_whom_and_with_how_many_it_goes_on() -> None:
    console = plain()
    with Progress(console) as progress:
        progress(Waiting((2,), least=3))
    assert written(console) == ("the run pauses until 3 workers are there; it waits for worker 2\n")


def test_plain_lines_report_the_clock_warnings_and_workers_that_come_and_go() -> None:
    console = plain()
    with Progress(console) as progress:
        progress(RunStarted("fedavg", "vgg-tiny", "digits", 4, 9, clock="training takes 2 s"))
        progress(Warned("strength [bold]0.1[/bold] is low"))
        progress(WorkerLost(2, 3, "no answer for 60 s"))
        progress(WorkerJoined(2, 5))
    assert written(console).splitlines() == [
        "clock: training takes 2 s",
        "warning: strength [bold]0.1[/bold] is low",
        "worker 2 lost in round 3: no answer for 60 s",
        "worker 2 joined in round 5",
    ]


def test_a_round_without_everybody_says_how_many_took_part(events_of: EventsOf) -> None:
    console = plain()
    with Progress(console) as progress:
        start, *others = events_of(rounds=2)
        for event in [start, WorkerLost(1, 1, "it has left"), *others]:
            if isinstance(event, RoundFinished):
                event = replace(event, record=replace(event.record, missing=(1,)))
            progress(event)
    _, *rounds, end = written(console).splitlines()
    assert ["  3 of 4 workers  " in line for line in (*rounds, end)] == [True, True, True]


def test_characters_that_a_pipe_cannot_write_do_not_end_the_run() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    with Progress(console) as progress:
        progress(Warned("γ was clamped"))
    assert raw.getvalue() == b"warning: ? was clamped\n"


def test_a_terminal_without_unicode_gets_plain_lines(events_of: EventsOf) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="latin-1", write_through=True)
    with Progress(Console(force_terminal=True, file=file)) as progress:
        for event in events_of():
            progress(event)
    assert raw.getvalue().startswith(b"fedavg-s round 1/4  time 100.0 s")


def test_a_terminal_shows_the_run_and_every_worker(events_of: EventsOf) -> None:
    console = terminal()
    with Progress(console, clock=iter(range(10**6)).__next__) as progress:
        for event in events_of(strategy="adaptcl", adapts=True, finished=False):
            progress(event)
        progress(UpdateArrived(3, 5, 250.0))
    screen = last_screen(console)
    assert "adaptcl  vgg-tiny on digits, 4 workers" in re.sub(
        r"\x1b\[[0-9;?]*[a-zA-Z]", "", written(console)
    )
    assert "round 4/4" in screen
    assert "elapsed" in screen
    assert "left" in screen
    assert "accuracy 80.0 % ▁▃▆█" in screen
    assert "H 0.167 (first 0.429)" in screen
    assert "virtual time 4.2 min" in screen
    assert [row(screen, worker)[0] for worker in range(4)] == ["40.0", "48.0", "48.0", "40.0"]
    assert row(screen, 0)[-3:] == ["0.40", "0.43", "…"]
    assert row(screen, 3)[-4:] == ["1.00", "–", "✓", "arrived"]


def test_bars_are_relative_to_the_slowest_worker(events_of: EventsOf) -> None:
    console = terminal()
    with Progress(console) as progress:
        for event in events_of(finished=False):
            progress(event)
    screen = last_screen(console)
    lengths = [row(screen, worker)[2].count("█") for worker in range(4)]
    assert lengths == [18, 14, 10, 7]


def test_an_arrival_counts_until_its_round_is_closed(events_of: EventsOf) -> None:
    console = terminal()
    with Progress(console) as progress:
        for event in events_of(finished=False):
            progress(event)
    assert "arrived" not in last_screen(console)


def test_of_many_workers_the_ten_slowest_are_shown_and_the_rest_summed_up(
    events_of: EventsOf,
) -> None:
    console = terminal()
    with Progress(console) as progress:
        for event in events_of(workers=21, finished=False):
            progress(event)
        progress(UpdateArrived(0, 5, 1.0))
        progress(UpdateArrived(20, 5, 1.0))
    screen = last_screen(console)
    shown = [int(n) for n in re.findall(r"^ *(\d+)  +[\d.]+ s ", screen, re.MULTILINE)]
    assert shown == list(range(10))
    assert "and 11 faster workers, update time up to 70.0 s, retention 1.00, 1 arrived" in screen


@pytest.mark.parametrize(("workers", "height", "rows"), [(20, 50, 20), (20, 24, 10), (8, 12, 4)])
def test_the_display_fits_the_terminal(
    events_of: EventsOf, workers: int, height: int, rows: int
) -> None:
    console = terminal(height)
    with Progress(console) as progress:
        for event in events_of(workers=workers, finished=False):
            progress(event)
    screen = last_screen(console)
    assert len(re.findall(r"^ *\d+  +[\d.]+ s ", screen, re.MULTILINE)) == rows
    assert screen.count("\n") < height


def test_warnings_stand_above_the_display(events_of: EventsOf) -> None:
    console = terminal()
    with Progress(console) as progress:
        progress(events_of()[0])
        progress(Warned("the strength is low"))
    text = written(console)
    assert text.count("warning: the strength is low") == 1
    assert text.index("warning: the strength is low") < text.rindex("round 0/4")


def test_runs_that_follow_one_another_each_leave_a_line(events_of: EventsOf) -> None:
    console = terminal()
    with Progress(console) as progress:
        for strategy in ("fedavg-s", "adaptcl"):
            for event in events_of(strategy=strategy):
                progress(event)
        progress(RunStarted("ssp-s", "vgg-tiny", "digits", 4, 9))
        progress(RunStarted("fedbuff", "vgg-tiny", "digits", 4, 7, rounds_done=3))
    text = written(console)
    assert text.count("fedavg-s finished 4 rounds") == 1
    assert text.count("adaptcl finished 4 rounds") == 1
    assert text.count("ssp-s stopped after 0 of 9 rounds") == 1
    assert "round 3/7" in last_screen(console)


def test_remaining_time_counts_only_the_rounds_of_this_session(events_of: EventsOf) -> None:
    console, now = terminal(), [0.0]
    *_, last = events_of(rounds=6, finished=False)
    with Progress(console, clock=lambda: now[0]) as progress:
        progress(RunStarted("fedavg", "vgg-tiny", "digits", 4, 10, rounds_done=4))
        now[0] = 60.0
        progress(last)
    assert "1:00 elapsed 2:00 left" in last_screen(console)


def test_ctrl_c_restores_the_terminal(events_of: EventsOf) -> None:
    console = terminal()

    def interrupted() -> None:
        with Progress(console) as progress:
            progress(events_of()[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = written(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.rindex("\n")
    assert text[: text.rindex(SHOW_CURSOR)].endswith("\n")


def test_outside_its_context_it_still_reports_every_round(events_of: EventsOf) -> None:
    console = terminal()
    progress = Progress(console)
    for event in events_of():
        progress(event)
    assert written(console).count("round ") == 5
    assert isinstance(events_of()[-1], RunFinished)


def test_who_hardly_took_part_is_warned_of_at_the_end(events_of: EventsOf) -> None:
    finished = events_of(rounds=60)[-1]
    assert isinstance(finished, RunFinished)
    console = terminal()
    Progress(console)(RunFinished(replace(finished.summary, updates=(60, 60, 3))))
    assert "warning: worker 2 took part in 3 of 60 rounds" in written(console)


class Clock:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def bar_terminal(page: StringIO, *, is_terminal: bool = True) -> Console:
    return Console(file=page, force_terminal=is_terminal, width=80)


def test_a_short_step_shows_nothing(clock: Clock) -> None:
    page = StringIO()
    with bar("reading digits", console=bar_terminal(page), clock=clock) as progress:
        for done in range(10):
            clock.now += PATIENCE / 20
            progress(done, 10)
    assert page.getvalue() == ""


def test_a_long_step_shows_how_far_it_is(clock: Clock) -> None:
    page = StringIO()
    with bar("reading cifar10", console=bar_terminal(page), clock=clock) as progress:
        clock.now += 2 * PATIENCE
        progress(30_000, 60_000)
    assert "reading cifar10" in page.getvalue()
    assert "30000/60000" in page.getvalue()


def test_bytes_are_shown_as_bytes_even_if_the_total_is_unknown(clock: Clock) -> None:
    page = StringIO()
    with bar(
        "fetching cifar10", in_bytes=True, console=bar_terminal(page), clock=clock
    ) as progress:
        clock.now += 2 * PATIENCE
        progress(1_500_000, None)
    assert "1.5" in page.getvalue()
    assert "MB" in page.getvalue()


def test_without_a_terminal_there_is_no_bar(clock: Clock) -> None:
    page = StringIO()
    with bar("reading", console=bar_terminal(page, is_terminal=False), clock=clock) as progress:
        clock.now += 2 * PATIENCE
        progress(1, 2)
    assert page.getvalue() == ""


def test_an_interruption_restores_the_terminal(clock: Clock) -> None:
    page = StringIO()

    def interrupted() -> None:
        with bar("reading", console=bar_terminal(page), clock=clock) as progress:
            clock.now += 2 * PATIENCE
            progress(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert page.getvalue().rindex(shown) > page.getvalue().rindex(hidden)
