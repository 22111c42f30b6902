"""All commands and their flags."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from adaptcl import __version__
from adaptcl.cli import doing
from adaptcl.cli.flags import Parser, duration_s, seconds, whole_number
from adaptcl.config.catalogue import ENVIRONMENT, read_catalogue

PORT = 9092

_RUN_HELP = "the folder of a run, or one that holds several, one or two levels below"

Command = Callable[[argparse.Namespace], None]


def command_line() -> Parser:
    """Make the parser of the command `adaptcl`."""
    parser = Parser(
        prog="adaptcl",
        description="Collaborative learning among unequal machines.",
        epilog="`adaptcl run` alone trains a small model on data that ships with the package.",
    )
    parser.add_argument("--version", action="version", version=f"adaptcl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_sweep(commands)
    _add_previews(commands)
    _add_resume(commands)
    _add_server(commands)
    _add_worker(commands)
    _add_keys(commands)
    _add_compare(commands)
    _add_report(commands)
    _add_watch(commands)
    _add_lists(commands)
    _add_data(commands)
    _add_editor_help(commands)
    return parser


def _imported(module: str, function: str) -> Command:
    """Make a command from a function that is imported when the command runs."""

    def command(options: argparse.Namespace) -> None:
        with doing("starting"):
            imported = importlib.import_module(f"adaptcl.cli.{module}")
        getattr(imported, function)(options)

    return command


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run a job",
        description="Run a job with simulated workers.",
        usage="adaptcl run [FILE] [--preset NAME] [--out DIR] [--SETTING X …]",
    )
    run.set_defaults(command=_imported("job_commands", "run_job"))
    run.add_argument("--out", help="folder for the run [default runs/DATE-TIME]")
    _add_watching(run)
    _add_listening(run)
    _add_figures(run)
    run.take_settings()


def _add_sweep(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="make a run for each combination of listed settings",
        description="Make a run for each combination of settings. In the file any setting may be a "
        "list of values. Given again, the command goes on where it stopped.",
        usage="adaptcl sweep [FILE] [--preset NAME] [--out DIR] [--SETTING X …]",
    )
    sweep.set_defaults(command=_imported("sweep", "sweep_settings"))
    sweep.add_argument("--out", help="folder for the runs [default runs/ and the file's name]")
    _add_watching(sweep)
    _add_listening(sweep)
    _add_figures(sweep)
    sweep.take_settings()


def _add_watching(parser: Any) -> None:
    parser.add_argument(
        "--watch", action="store_true", help="show the run on a local page while it goes on"
    )
    parser.add_argument(
        "--track",
        default="",
        metavar="NAMES",
        help="report to trackers: tensorboard, mlflow, wandb, with commas between",
    )


def _add_listening(parser: Any) -> None:
    parser.add_argument(
        "--listen",
        default="",
        metavar="package.module:fn",
        help="call your function with every event of the run; several with commas between",
    )


def _add_figures(parser: Any) -> None:
    parser.add_argument(
        "--figures",
        default="png",
        metavar="FORMATS",
        help="draw the figures as png, pdf or svg, or several with commas between, or none "
        "[default png]",
    )
    parser.add_argument(
        "--no-titles",
        dest="titles",
        action="store_false",
        help="leave out the titles of figures, as papers want it",
    )


def _add_previews(commands: Any) -> None:
    previews = {
        "forecast": (
            _imported("job_commands", "forecast_job"),
            "say how long a job would take, without training",
            "Compute how long a job would take, in seconds, without training anything.",
        ),
        "describe": (
            _imported("job_commands", "describe_job"),
            "say which units of a model can be pruned",
            "Say layer by layer which units of a job's model can be pruned, and why the others "
            "cannot.",
        ),
    }
    for name, (command, help, description) in previews.items():
        preview = commands.add_parser(
            name,
            help=help,
            description=description,
            usage=f"adaptcl {name} [FILE] [--preset NAME] [--SETTING X …]",
        )
        preview.set_defaults(command=command)
        preview.take_settings()


def _add_resume(commands: Any) -> None:
    resume = commands.add_parser(
        "resume",
        help="continue runs that were interrupted",
        description="Continue runs that were interrupted. With --rounds, also finished runs go on "
        "to more rounds, and end as if they had had them from the start.",
    )
    resume.set_defaults(command=_imported("resume", "resume_runs"))
    resume.add_argument("runs", nargs="+", metavar="RUN", help=_RUN_HELP)
    resume.add_argument("--rounds", type=whole_number, metavar="N", help="run up to so many rounds")
    for flag in ("--learning-rate", "--clip-norm"):
        resume.add_argument(
            flag, type=float, metavar="X", help="another value for a run that diverged"
        )
    _add_watching(resume)
    _add_listening(resume)
    _add_figures(resume)


def _add_server(commands: Any) -> None:
    server = commands.add_parser(
        "server",
        help="run a job with workers on other machines",
        description="Run a job with workers on other machines.",
        usage="adaptcl server [FILE] --tls DIR [--out DIR] [--preset NAME] [--SETTING X …]",
    )
    server.set_defaults(command=_imported("network", "serve_runs"))
    server.add_argument("--out", help="folder for the run [default runs/DATE-TIME]")
    server.add_argument("--tls", required=True, help="the server's folder of `adaptcl keys`")
    server.add_argument(
        "--listen", default=f"0.0.0.0:{PORT}", help="address and port [default %(default)s]"
    )
    server.add_argument(
        "--patience",
        type=seconds,
        default=3600.0,
        help="seconds a worker may take for one task before the run goes on without it "
        "[default 3600]",
    )
    _add_watching(server)
    _add_figures(server)
    # Times are measured here, and each worker is a process on its own machine.
    simulated = [k for k, v in read_catalogue().settings.items() if v.group == ENVIRONMENT]
    server.take_settings(without=["threads", *simulated])


def _add_worker(commands: Any) -> None:
    worker = commands.add_parser("worker", help="work for a server, with data of this machine")
    worker.set_defaults(command=_imported("network", "work_for_server"))
    worker.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server is")
    worker.add_argument("--tls", required=True, help="this worker's folder of `adaptcl keys`")
    worker.add_argument(
        "--data",
        required=True,
        help="this worker's data, named as for `run`; of a folder only train/CLASS is used",
    )
    worker.add_argument("--data-dir", default="", help="the folder with the files of the data")
    worker.add_argument(
        "--objective",
        default="classification",
        help="what the targets of the data are for, as the server has it [default classification]",
    )
    for name, kind in (
        ("model", "factory"),
        ("codec", "Class"),
        ("pruning", "Class"),
        ("optimizer", "function"),
        ("schedule", "function"),
    ):
        worker.add_argument(
            f"--{name}",
            default="",
            help=f"allow this package.module:{kind}, if the server names it",
        )
    worker.add_argument(
        "--device", default="cpu", help="where to train, as PyTorch names it [default cpu]"
    )
    worker.add_argument(
        "--threads",
        type=whole_number,
        metavar="N",
        help="cores to train on [default all]; divide them among workers that share a machine",
    )
    worker.add_argument(
        "--deal",
        action="store_true",
        help="use only this worker's part of the data, as a simulation splits it",
    )
    worker.add_argument(
        "--test-part",
        action="store_true",
        help="test on the test part of the data, if the server has workers test, and hold nothing "
        "back of the rest",
    )
    worker.add_argument("--memory", help="folder for what must survive a restart")
    worker.add_argument(
        "--patience",
        type=seconds,
        default=600.0,
        help="seconds to wait for a server that cannot be reached [default 600]",
    )
    worker.add_argument(
        "--silence",
        type=_silence,
        default=30.0,
        help="seconds, from 20 to 3600, without a sign of life after which the server gives this "
        "worker up [default 30]",
    )


def _add_keys(commands: Any) -> None:
    keys = commands.add_parser("keys", help="make certificate and keys for a server and workers")
    keys.set_defaults(command=_imported("network", "write_keys"))
    keys.add_argument("folder", help="a new folder")
    keys.add_argument("--workers", type=int, required=True, help="number of workers")
    keys.add_argument(
        "--host",
        action="append",
        required=True,
        help="name or address by which workers reach the server; may be given several times",
    )


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a page about any runs",
        description="Write one HTML file about any runs, which opens offline and can be mailed.",
    )
    report.set_defaults(command=_imported("page", "report_runs"))
    report.add_argument("runs", nargs="+", metavar="RUN", help=_RUN_HELP)
    report.add_argument(
        "--out",
        default="report.html",
        metavar="FILE",
        help="the file to write [default %(default)s]",
    )


def _add_watch(commands: Any) -> None:
    watch = commands.add_parser(
        "watch",
        help="show runs on a local page while they go on",
        description="Show runs on a local page that follows them. It only reads: ending it never "
        "touches a run.",
    )
    watch.set_defaults(command=_imported("page", "watch_runs"))
    watch.add_argument("runs", nargs="+", metavar="RUN", help=_RUN_HELP)
    watch.add_argument("--port", type=int, default=0, help="port of the page [default a free one]")
    watch.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; others than this machine need the token that is printed "
        "[default %(default)s]",
    )


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="show a table and figures of any runs",
        description="Show a table and figures of any runs, in the order of `adaptcl strategies`: "
        "their accuracy, or other main metric, at equal time, and the time of each to what a "
        "baseline ends with.",
    )
    compare.set_defaults(command=_imported("compare", "compare_runs"))
    compare.add_argument("runs", nargs="+", metavar="RUN", help=_RUN_HELP)
    compare.add_argument(
        "--out",
        default="figures",
        help="folder for the figures; replaces those of an earlier comparison [default figures]",
    )
    compare.add_argument(
        "--over-seeds",
        action=argparse.BooleanOptionalAction,
        help="one row and one line for all runs that differ only in their seed [default if there "
        "are several seeds]",
    )
    compare.add_argument(
        "--baseline",
        metavar="RUN",
        help="compare with this strategy, label or folder [default fedavg, else fedavg-s, else the "
        "first row]",
    )
    compare.add_argument(
        "--at-time",
        type=duration_s,
        metavar="X",
        help="compare tests at this time, such as 60min [default the end of the shortest run]",
    )
    compare.add_argument(
        "--target-accuracy",
        type=_per_cent,
        metavar="X",
        help="compare times to this accuracy, in per cent [default what the baseline ends with]",
    )
    compare.add_argument(
        "--target",
        type=float,
        metavar="X",
        help="the same for any main metric, in its own unit",
    )
    _add_figures(compare)
    compare.add_argument("--csv", metavar="FILE", help="also write the table to a CSV file")
    compare.add_argument(
        "--markdown", action="store_true", help="print only the table, as Markdown; no figures"
    )


def _add_lists(commands: Any) -> None:
    lists = {
        "strategies": "the methods of learning",
        "prunings": "the pruning orders",
        "codecs": "the encodings of updates",
        "models": "the models by name",
        "presets": "the ready-made settings",
    }
    for name, what in lists.items():
        listing = commands.add_parser(name, help=f"list {what}")
        listing.set_defaults(command=_imported("listing", "list_names"), listed=name)
        custom = name in ("strategies", "prunings", "codecs")
        also = ", or your own as package.module:Class, which is checked and listed too"
        listing.add_argument(
            "names", nargs="*", metavar="NAME", help=f"tell more of one{also if custom else ''}"
        )


def _add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="list, download and pack data sets")
    data.set_defaults(command=_imported("listing", "list_names"), listed="data", names=[])
    actions = data.add_subparsers(title="actions", metavar="ACTION")
    get = actions.add_parser("get", help="download a data set")
    get.set_defaults(command=_imported("data", "download_data"))
    get.add_argument("name", help="the name of a data set; `adaptcl data` lists them")
    get.add_argument("--data-dir", required=True, help="folder to put it in")
    get.add_argument("--url", help="another address of the same file")
    pack = actions.add_parser("pack", help="put a data set into one file")
    pack.set_defaults(command=_imported("data", "pack_data"))
    pack.add_argument("name", help="a data set by name, or folder:PATH")
    pack.add_argument("file", help="the .npz file to write")
    pack.add_argument("--data-dir", help="folder with the files of the data set")
    pack.add_argument(
        "--quality",
        default="lossless",
        help="lossless, or the quality of JPEGs from 1 to 100, which are smaller "
        "[default %(default)s]",
    )


def _add_editor_help(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        help="print the completion of this command for bash and zsh",
        description='Print a shell script. Put eval "$(adaptcl completion)" into ~/.bashrc.',
    )
    completion.set_defaults(command=_imported("listing", "print_completion"))
    schema = commands.add_parser(
        "schema",
        help="print a JSON Schema of settings files, for editors",
        description="Print a JSON Schema of settings files. An editor uses it after a first line "
        "`#:schema ./adaptcl.schema.json` in the file.",
    )
    schema.set_defaults(command=_imported("listing", "print_schema"))


def _silence(text: str) -> float:
    value = float(text)
    if not 20 <= value <= 3600:
        raise argparse.ArgumentTypeError("it must be from 20 to 3600")
    return value


def _per_cent(text: str) -> float:
    """Parse a percentage as a fraction."""
    value = float(text)
    if not 1 < value <= 100:
        raise argparse.ArgumentTypeError("it must be in per cent, above 1 and at most 100")
    return value / 100
