"""All commands and their flags."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from adaptcl import __version__
from adaptcl.cli import doing
from adaptcl.cli.setting_flags import Parser, duration_s, number, whole_number
from adaptcl.config.catalogue import ENVIRONMENT, read_catalogue
from adaptcl.interrupts import leaving_at_once

PORT = 9092
CUSTOM = ("strategies", "prunings", "codecs")  # lists of what may be custom code

_PORT = number(int, at_least=0, at_most=65535)
_silence = number(float, at_least=20, at_most=3600)
_RUN_HELP = "the folder of a run, or one that holds several, one or two levels below"


def command_line() -> Parser:
    parser = Parser(
        prog="adaptcl",
        description="Collaborative learning among unequal machines.",
        epilog="`adaptcl run` alone trains a small model on data that ships with the package.",
    )
    parser.add_argument("--version", action="version", version=f"adaptcl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_runs(commands)
    _add_previews(commands)
    _add_resume(commands)
    _add_server(commands)
    _add_worker(commands)
    _add_keys(commands)
    _add_compare(commands)
    _add_pages(commands)
    _add_lists(commands)
    _add_data(commands)
    _add_editor_help(commands)
    return parser


def _command(
    commands: Any, name: str, function: str, help: str, *lines: str, usage: str = ""
) -> Any:
    """Add a command that calls a function, imported when the command runs."""
    module, _, called = function.partition(".")

    def command(options: argparse.Namespace) -> None:
        with doing("starting"), leaving_at_once():
            imported = importlib.import_module(f"adaptcl.cli.{module}")
        getattr(imported, called)(options)

    parser = commands.add_parser(name, help=help, description=" ".join(lines) or None)
    if usage:
        parser.usage = f"adaptcl {name} {usage}"
    parser.set_defaults(command=command)
    return parser


def _add_runs(commands: Any) -> None:
    usage = "[FILE] [--preset NAME] [--out DIR] [--SETTING X …]"
    what = ("run a job", "Run a job with simulated workers.")
    run = _command(commands, "run", "job_commands.run_job", *what, usage=usage)
    _add(run, "--out DIR", "folder for the run [default runs/DATE-TIME]")
    sweep = _command(
        commands,
        "sweep",
        "job_commands.sweep_settings",
        "make a run for each combination of listed settings",
        "Make a run for each combination of settings. Any setting may have several values as a",
        "list in the file, and one that takes a single word or number also in a flag, with commas",
        "between. Given again, the command goes on where it stopped.",
        usage=usage,
    )
    _add(sweep, "--out DIR", "folder for the runs [default runs/ and the file's name]")
    for each in (run, sweep):
        _add_watching(each)
        _add_figures(each)
        each.take_settings(texts=each is sweep)


def _add(parser: Any, flag: str, *lines: str, **options: Any) -> None:
    """Add a flag, perhaps with the word that stands for its value, and its help in lines."""
    name, *metavar = flag.split()
    if metavar:
        options["metavar"] = metavar[0]
    parser.add_argument(name, help=" ".join(lines), **options)


def _add_watching(parser: Any) -> None:
    _add(parser, "--watch", "show the run on a local page while it goes on", action="store_true")
    port = "the port of that page, so that a tunnel to it can be fixed [default a free one]"
    _add(parser, "--watch-port N", port, type=_PORT)
    trackers = "report to trackers: tensorboard, mlflow, wandb, with commas between"
    _add(parser, "--track NAMES", trackers, default="")
    what = "call your function with every event of the run; several with commas between"
    _add(parser, "--listener package.module:fn", what, default="")


def _add_figures(parser: Any) -> None:
    formats = "draw figures as png, pdf or svg, or several with commas between; none draws none"
    _add(parser, "--figures FORMATS", formats, "[default png]")
    without = "leave out the titles of figures, as papers want it"
    _add(parser, "--no-titles", without, dest="titles", action="store_false")


def _add_previews(commands: Any) -> None:
    forecast = _command(
        commands,
        "forecast",
        "job_commands.forecast_job",
        "say how long a job would take, without training",
        "Compute how long a job would take, without training anything; it answers within seconds.",
        usage="[FILE] [--preset NAME] [--SETTING X …]",
    )
    describe = _command(
        commands,
        "describe",
        "job_commands.describe_job",
        "say which units of a model can be pruned",
        "Say layer by layer which units of a job's model can be pruned, and why the others cannot.",
        usage="[FILE] [--preset NAME] [--SETTING X …]",
    )
    forecast.take_settings()
    describe.take_settings()


def _add_resume(commands: Any) -> None:
    resume = _command(
        commands,
        "resume",
        "resume.resume_runs",
        "continue runs that were interrupted",
        "Continue runs that were interrupted. With --rounds, also finished runs go on to more",
        "rounds, and end as if they had had them from the start.",
    )
    _add(resume, "runs RUN", _RUN_HELP, nargs="+")
    _add(resume, "--rounds N", "run up to so many rounds", type=whole_number)
    for flag in ("--learning-rate", "--clip-norm"):
        _add(resume, f"{flag} X", "another value for a run that diverged", type=number(float))
    network = "of a run across a network, from now on:"
    _add(resume, "--address ADDRESS:PORT", network, "where its server listens")
    _add(resume, "--tls DIR", network, "the server's folder of `adaptcl keys`")
    patience = "how long a worker may take for one task"
    _add(resume, "--patience TIME", network, patience, type=duration_s)
    _add(resume, "--least-workers N", network, _LEAST_WORKERS, type=whole_number)
    _add(resume, "--wait TIME", network, _WAIT, type=duration_s)
    _add_watching(resume)
    _add_figures(resume)


_LEAST_WORKERS = (
    "begin, and go on, with so many workers or more: the others may come later, and with fewer the "
    "run pauses"
)
_WAIT = "how long the others are waited for once --least-workers are there"


def _add_server(commands: Any) -> None:
    server = _command(
        commands,
        "server",
        "network.serve_runs",
        "run a job with workers on other machines",
        "Run a job with workers on other machines. The server needs data of its own only to test",
        "the model: with --data workers --holdout 0.1 the workers say what their data look like,",
        "and test.",
        usage="[FILE] --tls DIR [--out DIR] [--preset NAME] [--SETTING X …]",
    )
    server.set_defaults(with_times=True)
    _add(server, "--out DIR", "folder for the run [default runs/DATE-TIME]")
    _add(server, "--tls DIR", "the server's folder of `adaptcl keys`", required=True)
    address = f"0.0.0.0:{PORT}"
    _add(server, "--listen", "address and port [default %(default)s]", default=address)
    patience = "how long a worker may take for one task before the run goes on without it"
    _add(server, "--patience TIME", patience, "[default 1h]", type=duration_s, default=3600.0)
    _add(
        server,
        "--least-workers N",
        f"{_LEAST_WORKERS} [default all to begin, any to go on]",
        type=whole_number,
    )
    _add(server, "--wait TIME", _WAIT, "[default --patience]", type=duration_s)
    _add_watching(server)
    _add_figures(server)
    # Times are measured here, and each worker is a process on its own machine.
    simulated = [k for k, v in read_catalogue().settings.items() if v.group == ENVIRONMENT]
    server.take_settings(without=["threads", *simulated])


def _add_worker(commands: Any) -> None:
    worker = _command(
        commands,
        "worker",
        "network.work_for_server",
        "work for a server, with data of this machine",
    )
    worker.set_defaults(with_times=True)
    _add(worker, "--server HOST:PORT", "where the server is", required=True)
    _add(worker, "--tls DIR", "this worker's folder of `adaptcl keys`", required=True)
    data = "this worker's data, named as for `run`; of a folder only train/CLASS is used"
    _add(worker, "--data", data, required=True)
    _add(worker, "--data-dir DIR", "the folder with the files of the data", default="")
    objective = "what the targets of the data are for, as the server has it"
    _add(worker, "--objective", objective, "[default classification]", default="classification")
    for flag, kind in (
        ("--model", "factory"),
        ("--codec", "Class"),
        ("--pruning", "Class"),
        ("--optimizer", "function"),
        ("--schedule", "function"),
    ):
        _add(worker, flag, f"allow this package.module:{kind}, if the server names it", default="")
    _add(worker, "--device", "where to train, as PyTorch names it [default cpu]", default="cpu")
    cores = "cores to train on [default all]; divide them among workers that share a machine"
    _add(worker, "--threads N", cores, type=whole_number)
    deal = "use only this worker's part of the data, as a simulation splits it"
    _add(worker, "--deal", deal, dest="dealt", action="store_true")
    _add(
        worker,
        "--test-part",
        "test on the test part of the data, if the server has workers test, and hold nothing back",
        "of the rest",
        action="store_true",
    )
    _add(worker, "--memory DIR", "folder for what must survive a restart")
    patience = "how long to wait for a server that cannot be reached [default 10min]"
    _add(worker, "--patience TIME", patience, type=duration_s, default=600.0)
    _add(
        worker,
        "--silence",
        "seconds, from 20 to 3600, without a sign of life after which the server gives this worker",
        "up [default 30]",
        type=_silence,
        default=30.0,
    )


def _add_keys(commands: Any) -> None:
    what = "make certificate and keys for a server and workers"
    usage = "FOLDER (--workers N --host HOST | --renew N)"
    keys = _command(commands, "keys", "network.write_keys", what, usage=usage)
    _add(keys, "folder", "a new folder; with --renew the one that was made before")
    _add(keys, "--workers N", "number of workers", type=whole_number)
    host = "name or address by which workers reach the server; may be given several times"
    _add(keys, "--host", host, action="append")
    renew = "only make a new key for worker N, or for one worker more"
    _add(keys, "--renew N", renew, type=number(int, at_least=0))


def _add_pages(commands: Any) -> None:
    report = _command(
        commands,
        "report",
        "compare.report_runs",
        "write a page about any runs",
        "Write one HTML file about any runs, which opens offline and can be mailed.",
    )
    _add(report, "runs RUN", _RUN_HELP, nargs="+")
    _add(report, "--out FILE", "the file to write [default %(default)s]", default="report.html")
    watch = _command(
        commands,
        "watch",
        "compare.watch_runs",
        "show runs on a local page while they go on",
        "Show runs on a local page that follows them. It only reads: ending it never touches a",
        "run.",
    )
    _add(watch, "runs RUN", _RUN_HELP, nargs="+")
    _add(watch, "--port N", "port of the page [default a free one]", type=_PORT, default=0)
    others = "address to listen at; others than this machine need the token that is printed"
    _add(watch, "--host", others, "[default %(default)s]", default="127.0.0.1")


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands,
        "compare",
        "compare.compare_runs",
        "show a table and figures of any runs",
        "Show a table and figures of any runs, in the order of `adaptcl strategies`: their",
        "accuracy, or other main metric, at equal time, and the time of each to what a baseline",
        "ends with.",
    )
    _add(compare, "runs RUN", _RUN_HELP, nargs="+")
    figures = "folder for the figures; replaces those of an earlier comparison [default figures]"
    _add(compare, "--out DIR", figures)
    _add(
        compare,
        "--over-seeds",
        "one row and one line for all runs that differ only in their seed [default if there are",
        "several seeds]",
        action=argparse.BooleanOptionalAction,
    )
    _add(
        compare,
        "--baseline RUN",
        "compare with this strategy, label or folder [default fedavg, else fedavg-s, else the",
        "first row]",
    )
    at_time = "compare tests at this time, such as 60min [default where the first curve ends]"
    _add(compare, "--at-time X", at_time, type=duration_s)
    accuracy = "compare times to this accuracy, in per cent [default what the baseline ends with]"
    per_cent = number(float, above=1, at_most=100)
    _add(compare, "--target-accuracy X", accuracy, type=lambda text: per_cent(text) / 100)
    _add(compare, "--target X", "the same for any main metric, in its own unit", type=number(float))
    _add_figures(compare)
    columns = "show these columns, by the beginnings of their headings: accuracy,speed-up,bytes"
    _add(compare, "--columns NAMES", columns)
    _add(compare, "--csv FILE", "also write the table to a CSV file")
    _add(
        compare,
        "--markdown",
        "print only the table, as Markdown; figures only with --figures or --out",
        action="store_true",
    )
    _add(compare, "--latex", "the same as LaTeX, a tabular for a paper", action="store_true")


def _add_lists(commands: Any) -> None:
    lists = {
        "strategies": "the methods of learning",
        "prunings": "the pruning orders",
        "codecs": "the encodings of updates",
        "models": "the models by name",
        "presets": "the ready-made settings",
    }
    for name, what in lists.items():
        listing = _command(commands, name, "listing.list_names", f"list {what}")
        listing.set_defaults(listed=name)
        also = ", or of your own as package.module:Class, which is checked too"
        what = f"tell more of one{also if name in CUSTOM else ''}"
        _add(listing, "names NAME", what, nargs="*")


def _add_data(commands: Any) -> None:
    data = _command(commands, "data", "listing.list_names", "list, download and pack data sets")
    data.set_defaults(listed="data", names=[])
    actions = data.add_subparsers(title="actions", metavar="ACTION")
    get = _command(actions, "get", "listing.download_data", "download a data set")
    _add(get, "name", "the name of a data set; `adaptcl data` lists them")
    _add(get, "--data-dir DIR", "folder to put it in", required=True)
    _add(get, "--url", "another address of the same file")
    pack = _command(actions, "pack", "listing.pack_data", "put a data set into one file")
    _add(pack, "name", "a data set by name, or folder:PATH")
    _add(pack, "file", "the .npz file to write")
    _add(pack, "--data-dir DIR", "folder with the files of the data set")
    quality = "pack JPEGs of this quality, from 1 to 100, which are smaller [default: lose nothing]"
    _add(pack, "--quality N", quality, type=number(int, at_least=1, at_most=100))


def _add_editor_help(commands: Any) -> None:
    _command(
        commands,
        "completion",
        "listing.print_completion",
        "print the completion of this command for bash and zsh",
        'Print a shell script. Put eval "$(adaptcl completion)" into ~/.bashrc.',
    )
    _command(
        commands,
        "schema",
        "listing.print_schema",
        "print a JSON Schema of settings files, for editors",
        "Print a JSON Schema of settings files. An editor uses it after a first line",
        "`#:schema ./adaptcl.schema.json` in the file.",
    )
