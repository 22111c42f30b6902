"""The command `python -m paper`: run experiments, build the document, check the claims."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adaptcl.cli import answer
from adaptcl.cli.setting_flags import Parser, duration_s, whole_number
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.report.wording import number_of
from adaptcl.training.devices import PRECISIONS
from paper.document import build_document, part_table
from paper.experiment import Experiment, PlannedRun, load_experiments
from paper.outcomes import judge_claims
from paper.profile import measure_profile
from paper.result import Provenance, data_sha256, provenance, write_result
from paper.runner import Limits, Runner, RunOptions, missing_runs
from paper.store import Store, run_key

ALL = "all"
RESULTS = "paper/results"
"""The default folder of results."""


class UnfinishedError(AdaptCLError):
    """Some runs failed; the others are kept."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return answer(_parser, arguments)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m paper",
        description="The paper's tables and figures, its numbers beside ours.",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="WHAT")
    for experiment in load_experiments():
        run = actions.add_parser(experiment.name, help=experiment.title)
        run.set_defaults(command=lambda options, each=experiment: _run(options, [each]))
        _add_run_options(run)
    everything = actions.add_parser(ALL, help="all experiments, the most urgent runs first")
    everything.set_defaults(command=lambda options: _run(options, load_experiments()))
    _add_run_options(everything)

    for name, command, text in (
        ("list", _list, "what there is, and what is missing"),
        ("verdicts", _verdicts, "which of the main claims hold"),
        ("report", _report, "build the document and its figures from the results"),
    ):
        action = actions.add_parser(name, help=text)
        action.set_defaults(command=command)
        _add_results(action)
        if command is _report:
            action.add_argument("--out", default="docs", help="folder for paper.md [%(default)s]")
    return parser


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", help=f"folder of results [{RESULTS}]")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_results(parser)
    parser.add_argument("--data-dir", default="", help="the folder that holds the images")
    parser.add_argument("--device", default="cpu", help="where to train, as PyTorch names it [cpu]")
    parser.add_argument(
        "--precision", default="tf32", choices=PRECISIONS, help="how a GPU multiplies [%(default)s]"
    )
    parser.add_argument("--seeds", help="only these, with commas between (default: all)")
    parser.add_argument(
        "--rounds",
        type=whole_number,
        help="cut runs short to try things out; answers nothing",
    )
    parser.add_argument(
        "--most-urgent",
        type=whole_number,
        metavar="N",
        help="only runs of priority N and below (1 is the main claims)",
    )
    parser.add_argument(
        "--time-limit",
        type=duration_s,
        default=math.inf,
        metavar="TIME",
        help="begin nothing that would take longer; stop what does (default: none)",
    )
    parser.add_argument(
        "--side-by-side",
        type=whole_number,
        default=1,
        metavar="N",
        help="runs at the same time [1]",
    )
    parser.add_argument(
        "--work", default="runs/paper", help="folder for unfinished runs [%(default)s]"
    )
    parser.add_argument(
        "--checkpoint-every",
        type=whole_number,
        default=50,
        metavar="N",
        help="rounds from one checkpoint to the next [%(default)s]",
    )


def _run(options: argparse.Namespace, experiments: list[Experiment]) -> None:
    store = Store.open(_folder(options))
    run_options = RunOptions(
        options.data_dir,
        options.device,
        options.precision,
        options.rounds,
        options.checkpoint_every,
    )
    left = missing_runs(experiments, store, run_options, _parse_seeds(options.seeds))
    if options.most_urgent is not None:
        left = [planned for planned in left if planned.priority <= options.most_urgent]
    failed: tuple[str, ...] = ()
    if left and not options.data_dir and _has_any(experiments, store):
        _say(f"{number_of(len(left), 'run')} not made yet; --data-dir DIR makes what is missing")
    elif left:
        provenances = _provenances(left, store, run_options)
        runner = Runner(
            store,
            run_options,
            Limits(options.side_by_side, options.time_limit),
            Path(options.work),
            provenances,
            _say,
        )
        _say(f"{number_of(len(left), 'run')} to make, {options.side_by_side} side by side")
        ended = runner.run(left)
        failed = ended.failed
        _say(f"{ended.done} done, {len(failed)} failed, {ended.left} left")
    for experiment in experiments:
        if experiment.profiled_model and options.most_urgent is None:
            _profile(experiment.profiled_model, store, options)
    console = Console()
    for experiment in experiments if len(experiments) == 1 else ():
        for part in experiment.parts:
            console.print(part_table(part, store, part.title))
    if failed:
        raise UnfinishedError(f"{number_of(len(failed), 'run')} failed: {'; '.join(failed)}.")


def _has_any(experiments: list[Experiment], store: Store) -> bool:
    """Whether a single experiment has a result to show without training."""
    planned = (each for experiment in experiments for each in experiment.planned_runs())
    return len(experiments) == 1 and any(run_key(e.config.values()) in store.runs for e in planned)


def _provenances(
    left: list[PlannedRun], store: Store, run_options: RunOptions
) -> dict[str, Provenance]:
    found = {}
    for name in sorted({planned.config.job.data for planned in left}):
        sha256 = data_sha256(name, Path(run_options.data_dir) if run_options.data_dir else None)
        store.refuse_other_data(name, sha256)
        found[name] = provenance(run_options.device, run_options.precision, sha256)
    return found


def _profile(model: str, store: Store, options: argparse.Namespace) -> None:
    """Measure the training time, unless this device has a profile already."""
    made = provenance(options.device, options.precision, "")
    kind = options.device.partition(":")[0]
    name = f"profile-{model}-{kind}-{made.precision}.json"
    if name in store.profiles:
        return
    _say(f"measuring the training time of {model} on {made.device}, {made.precision}")
    measured = measure_profile(model, options.device, options.precision)
    write_result(store.folder / name, measured.to_json())
    store.profiles[name] = measured


def _list(options: argparse.Namespace) -> None:
    # The list also serves before the first run, but a folder that the user names must exist.
    find = Store.open if options.results is None else Store.existing
    store = find(_folder(options))
    table = Table(box=None, header_style="dim")
    for heading in ("experiment", "what it shows", "runs made"):
        table.add_column(heading)
    table.add_column("missing", justify="right")
    for experiment in load_experiments():
        keys = {run_key(each.config.values()) for each in experiment.planned_runs()}
        made, left = len(keys & store.runs.keys()), len(keys - store.runs.keys())
        counts = (f"{made} of {len(keys)}", str(left))
        if experiment.profiled_model:
            counts = (f"{len(store.profiles)} devices", "")
        table.add_row(experiment.name, experiment.title, *counts)
    Console().print(table)


def _verdicts(options: argparse.Namespace) -> None:
    store = Store.existing(_folder(options))
    table = Table("claim", "verdict", show_lines=True)
    for verdict in judge_claims(load_experiments(), store):
        table.add_row(verdict.claim.text, verdict.words)
    Console().print(table)


def _report(options: argparse.Namespace) -> None:
    written = build_document(
        load_experiments(), Store.existing(_folder(options)), Path(options.out)
    )
    for path in written:
        print(path)


def _folder(options: argparse.Namespace) -> Path:
    return Path(RESULTS if options.results is None else options.results)


def _parse_seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise SettingError(f"--seeds is {text!r}, but it must be whole numbers.") from None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
