"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from adaptcl.cli import answer
from adaptcl.cli.setting_flags import Parser, whole_number
from adaptcl.errors import SettingError
from adaptcl.training.devices import PRECISIONS
from benchmarks import BENCHMARKS, Benchmark
from benchmarks.benchmark import Request
from benchmarks.machine import this_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return answer(_parser, arguments)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks", description="Measure how fast the parts of AdaptCL are."
    )
    actions = parser.add_subparsers(title="benchmarks", required=True, metavar="NAME")
    for each in BENCHMARKS.values():
        one = actions.add_parser(each.name, help=each.summary, description=each.summary)
        one.set_defaults(command=lambda options, each=each: _measure(each, options))
        one.add_argument("--device", default="cpu", help="as PyTorch names it [cpu]")
        one.add_argument("--repeats", type=whole_number, default=0, help="repeats to measure")
        one.add_argument("--out", metavar="FILE", help="write all measurements as JSON")
        for group in each.options:
            _OPTION_GROUPS[group](one)
    names = actions.add_parser("list", help="list the benchmarks")
    names.set_defaults(command=lambda _: _list())
    return parser


def _measure(benchmark: Benchmark, options: argparse.Namespace) -> None:
    out = Path(options.out) if options.out else None
    if out is not None and not out.absolute().parent.is_dir():
        raise SettingError(f"{out.parent} is not a folder, so {out} cannot be written.")
    asked = {k: v for k, v in vars(options).items() if k in Request.__dataclass_fields__}
    machine = this_machine(options.device)
    report = benchmark.measure(Request(**asked))
    Console().print(report.table(machine))
    if out is not None:
        content = report.to_json(benchmark.name, machine)
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _list() -> None:
    width = max(map(len, BENCHMARKS))
    for each in BENCHMARKS.values():
        print(f"{each.name:<{width}}  {each.summary}")


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="tf32", help="how a GPU multiplies [tf32]"
    )


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=whole_number, default=0, help="rounds to run")


def _add_job(parser: argparse.ArgumentParser) -> None:
    _add_rounds(parser)
    parser.add_argument(
        "--data-dir", default="", help="folder with CIFAR-10; without it, random images"
    )


def _add_peers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default="", help="interpreter that has adaptcl[peers] installed [this one]"
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default="", help="names such as timm/*, separated by commas [all]"
    )
    parser.add_argument(
        "--keep", metavar="FILE", default="", help="file for what is done, to go on after a stop"
    )


_OPTION_GROUPS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "precision": _add_precision,
    "rounds": _add_rounds,
    "job": _add_job,
    "peers": _add_peers,
    "models": _add_models,
}


if __name__ == "__main__":
    sys.exit(main())
