"""Proof that a change of the code changes no result: runs small jobs and hashes what they give.

    python tools/proof.py --out before.json --src OLD/src --data-dir DIR --work proof-before
    python tools/proof.py --against before.json --data-dir DIR --work proof-after

Each case has a folder below --work, and every file that it leaves there is hashed: rounds and
figures byte by byte, tensors by name and value, all without wall-clock times and paths of this
machine. Only `python -m adaptcl` and names in `adaptcl` are used, so files inside it may move.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Case = Callable[["Box"], None]
ROOT = Path(__file__).resolve().parents[1]
WALL = rb'"wall_time_s": [^,}]*'
CLOCK = rb'"(\w+_s|heterogeneity\w*|bytes_\w+)": [^,}]*'
"""What a real clock sets; messages between machines hold times, so their sizes vary too."""
QUICK = {"strategies", "settings/grow", "settings/beta", "forecast", "killed", "custom/python"}
IMAGES = {"cifar10": "cifar10-jpeg.npz", "tiny-imagenet": "tinyimagenet32-jpeg.npz"}
CLOCK_SET = "--sigma 4 --train-time 20 --profile-epochs 1 --flops-share 0.8 --bandwidth-max 0.05"
"""Without these a run measures how long training takes, each time a little differently."""
SMALL = f"--data digits --samples 300 --workers 5 --rounds 4 --pruning-interval 1 {CLOCK_SET}"
CHANGING = (
    "--trace GIVEN/bandwidth_falls.csv --rounds 22 --pruning-interval 2 --train-time 40 "
    "--epochs 0.2 --profile-epochs 0.2 --evaluate-every 11"
)
PRESET = (
    "--data-dir GIVEN --rounds 3 --pruning-interval 1 --evaluate-every 3 --strategy adaptcl "
    "--samples 12 --epochs 1 --workers"
)
SETTINGS = {
    "grow": f"{CHANGING} --grow",
    "trace-absent": "--trace GIVEN/absent.csv --rounds 6 --strategy fedavg-s,adaptcl,fedbuff",
    "by-unit": "--aggregation by-unit",
    "by-worker": "--aggregation by-worker --first-pruning 0 --pruning-interval 2",
    "by-change": "--aggregation by-change --fading 0.7",
    "beta": "--beta 0.5 --epochs 2",
    "deadline-drop": "--deadline 1.05 --late-updates drop --jitter 0.4 --strategy fedavg-s,adaptcl",
    "deadline-count": "--deadline 1.05 --jitter 0.4 --codec dgc --strategy fedavg-s,adaptcl",
    "participants": "--participants 2 --rounds 6 --averaging 0 --threads 1",
    "fresh-statistics": "--fresh-statistics 100",
    "averaging": "--averaging 0.9 --rounds 8 --evaluate-every 2 --checkpoint-every 2",
    "augmentation": "--augmentation",
    "adamw": "--optimizer adamw --learning-rate 0.001 --learning-rate-decay 0.9",
    "proximal": "--proximal 0.1 --strategy fedavg,adaptcl",
    "by-label": "--partition by-label --label-share 60 --strategy fedavg-s,adaptcl",
    "dirichlet": "--partition dirichlet --concentration 0.5 --samples-share 1",
    "min-retention": "--min-retention 0.6",
    "literal": "--min-retention 0.6 --literal-algorithm-2",
    "width-1": "--width-multiple 1",
    "width-8": "--width-multiple 8 --fixed features.0 --alpha 4 --max-pruned-rate 0.3",
    "bandwidths": "--bandwidths 0.05,0.04,0.03,0.02,0.01 --speeds 1,1,2,2,0.5 --flops-share 0.5",
    "pruned-rates": "--pruned-rates 0.5,0.3,0.2,0.3,0.0;0.3,0.2,0.2,0.2,0.0",
    "asynchronous": "--strategy fedasync-s,ssp-s,dc-asgd-a-s,fedbuff --staleness-exponent 1 "
    "--staleness-threshold 0 --lambda-0 1 "
    "--dc-learning-rate 0.02 --commit-epochs 1 --buffer-size 2 --server-learning-rate 0.5",
    "widths": "--strategy heterofl,fedrolex --worker-widths 0.25,0.25,0.5,0.5,1",
    "dgc": "--codec dgc --dgc-sparsity 0.95 --dgc-warmup 2 --strategy fedavg-s",
}
"""Settings beside those of the small job, by the name of their case."""
COMPARED = "compare run --target-accuracy 30 --csv all.csv --markdown"
OVER_SEEDS = "compare run --over-seeds --csv seeds.csv --out compared"
FEW = f"--workers 3 --rounds 3 --pruning-interval 1 {CLOCK_SET} --out"
CUSTOM = (
    f"run --model custom:build --data custom:load --width-multiple 1 {FEW} custom",
    f"run --data folder:GIVEN/pictures {FEW} pictures",
)
LISTED = ("strategies", "prunings", "codecs", "models", "presets", "data")
HELPED = "run forecast describe resume server worker keys compare data "
GIVEN = {
    "absent.csv": "time_s,worker,bandwidth,speed,available\n60,1,1,1,0\n200,1,1,2,1\n",
    "job.toml": 'strategy = "fedavg-s, adaptcl"\ndata = "digits"\nsamples = 300\nworkers = 4\n'
    "rounds = 3\npruning_interval = 1\nsigma = 4\ntrain_time = 20.0\n"
    '[adaptcl]\naggregation = "by-unit"\n',
    "custom.py": """import torch
from torch import nn
def build(shape, classes):
    layers = nn.Conv2d(shape[0], 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(24 * 36, classes))
def load(data_dir=None):
    dice = torch.Generator().manual_seed(5)
    labels = torch.randint(4, (400,), generator=dice)
    images = torch.randn(400, 1, 10, 10, generator=dice) + labels[:, None, None, None]
    return (images[:300], labels[:300]), (images[300:], labels[300:])
""",
    "from_python.py": """import dataclasses, torch, adaptcl, custom
from safetensors.torch import save_file; torch.manual_seed(3)
model, (train, test) = custom.build((1, 10, 10), 4), custom.load()
print(adaptcl.describe(model, train[0][:2]))
clock = dict(sigma=4, bandwidth_max=0.01, train_time=1.0)
job = dict(clock, rounds=4, pruning_interval=1, width_multiple=1)
parts, seen = [(train[0][i::4], train[1][i::4]) for i in range(4)], []
for name, given, more in (("whole", train, {"workers": 4}), ("parts", parts, {})):
    result = adaptcl.run(model, given, test, out=name, listeners=[seen.append], **job, **more)
    print(result, dataclasses.replace(result.summary, wall_time_s=0.0))
    print([type(each).__name__ for each in seen], result.sub_model_accuracies(test))
    kept = {f"model.{k}": v for k, v in result.model.state_dict().items()}
    kept |= {f"part.{k}": v.contiguous() for k, v in result.sub_model(0).state_dict().items()}
    with torch.no_grad():
        kept["scores"] = adaptcl.load(name, model=model)(test[0])
        kept["part scores"] = adaptcl.load(name, worker=1, model=model)(test[0])
    save_file(kept, f"{name}-result.safetensors")
""",
    "lists.py": """import contextlib as c, runpy, sys
for line in sys.argv[1:]:
    sys.argv = ["adaptcl", *line.split(",")]
    with open(line + ".txt", "w") as text, c.redirect_stdout(text), c.redirect_stderr(text):
        try:
            runpy.run_module("adaptcl", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            print("exit status", end.code)
""",
}
"""Files that cases take, by name; GIVEN in a command is the folder that holds them."""


@dataclass
class Box:
    """The folder of one case, and what may happen in it."""

    folder: Path
    given: Path
    source: Path
    not_compared: tuple[str, ...] = ()
    """Patterns of files of which only the names are kept, as their content is never the same."""
    real_clock: bool = False
    commands: int = 0

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin a Python process whose printed text is kept in a file."""
        self.commands += 1
        path = self.folder / "printed" / f"{self.commands:02}.txt"
        path.parent.mkdir(exist_ok=True)
        command = [sys.executable, *(word.replace("GIVEN", str(self.given)) for word in words)]
        # One thread for each operation, and a page of fixed width.
        fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONUTF8": "1"}
        env = {**os.environ, **fixed, "PYTHONPATH": f"{self.source}{os.pathsep}{self.given}"}
        with (self.folder / ".commands").open("a") as said:
            print(path.name, *words, file=said)
        with path.open("wb") as text:
            return subprocess.Popen(command, env=env, cwd=self.folder, stdout=text, stderr=text)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for a process; one that does not end well fails the case."""
        try:
            ended = process.wait(600)
        finally:
            process.kill()
        if ended:
            text = max((self.folder / "printed").iterdir()).read_text("utf-8", "replace")
            raise RuntimeError(f"exit status {ended}: {' | '.join(text.splitlines()[-5:])}")

    def adaptcl(self, *lines: str) -> None:
        """Run commands of the product, or programs that are given."""
        for line in lines:
            module = () if line.startswith("GIVEN") else ("-m", "adaptcl")
            self.finish(self.start(*module, *line.split()))

    def same(self, one: str, other: str) -> None:
        """Fail unless two runs of this case ended alike, bit for bit."""
        parts = self.parts()
        a, b = ({k[len(r) :]: v for k, v in parts.items() if k.startswith(r)} for r in (one, other))
        a.pop("/report.html", None), b.pop("/report.html", None)  # it names its folder
        if unlike := sorted({name for name, _ in a.items() ^ b.items()}):
            raise RuntimeError(f"{one} and {other} differ in {', '.join(unlike)}")

    def parts(self) -> dict[str, str]:
        """The hash of every file that the case has left."""
        found, files = {}, sorted(p for p in self.folder.rglob("*") if p.is_file())
        for path in (
            file for file in files if file.name not in {".lock", ".commands", "provenance.json"}
        ):
            name = path.relative_to(self.folder).as_posix()
            not_compared = any(fnmatch.fnmatch(name, pattern) for pattern in self.not_compared)
            found[name] = hashlib.sha256(b"" if not_compared else self.plain(path)).hexdigest()
        return found

    def plain(self, path: Path) -> bytes:
        """A file's content without what differs from one time to the next."""
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            return _tensors(content)
        for place, name in ((self.given, b"GIVEN"), (self.folder, b"CASE")):
            content = content.replace(bytes(place), name)
        if path.name == "summary.json" or (self.real_clock and path.name == "rounds.jsonl"):
            return re.sub(CLOCK if self.real_clock else WALL, b"", content)
        return content


def _tensors(content: bytes) -> bytes:
    """A digest of all tensors and of the header, without wall time and its checksum."""
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    meta = json.dumps(header.pop("__metadata__", {}), sort_keys=True)
    meta = re.sub(r'\\"wall_time_s\\": [^,}]*', "", re.sub(r'("tree": ")[0-9a-f]{8}', r"\1", meta))
    digest = hashlib.sha256(meta.encode())
    for name, about in sorted(header.items()):
        digest.update(f"{name} {about['dtype']} {about['shape']} ".encode())
        digest.update(content[slice(*(size + offset for offset in about["data_offsets"]))])
    return digest.digest()


def prepare(given: Path, data_dir: str | None) -> None:
    """Write the files that cases take."""
    given.mkdir(parents=True)
    for name, text in GIVEN.items():
        (given / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "bandwidth_falls.csv", given)
    dice = np.random.default_rng(7)
    for number in range(60):
        path = given / "pictures" / ("train" if number > 19 else "test") / "ab"[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        pixels = dice.integers(100 * (number % 2), 228, 12 * 12 * 3, dtype=np.uint8).tobytes()
        (path / f"{number}.ppm").write_bytes(b"P6 12 12 255\n" + pixels)
    images = [Path(data_dir) / file for file in IMAGES.values() if data_dir]
    for whole in filter(Path.exists, images):  # The first are kept; they lie in random order.
        kept = dict(np.load(whole, allow_pickle=False))
        for split, count in (("train", 4000), ("test", 50)):
            kept[f"{split}_offsets"] = offsets = kept[f"{split}_offsets"][: count + 1]
            kept[f"{split}_bytes"] = kept[f"{split}_bytes"][: offsets[-1]]
            kept[f"{split}_labels"] = kept[f"{split}_labels"][:count]
        np.savez(given / whole.name, **kept)


def job(settings: str, out: str = "run") -> str:
    """The command of a run; of a setting that is given twice the last counts."""
    flags = dict(each.partition(" ")[::2] for each in f" {settings}".split(" --")[1:])
    return f"run {' '.join(f'--{k} {v}'.strip() for k, v in flags.items())} --out {out}"


def commands(*lines: str) -> Case:
    return lambda box: box.adaptcl(*lines)


def killed(box: Box) -> None:
    """A run that is killed and resumed ends like one that was not."""
    settings = f"{SMALL} --rounds 12 --epochs 6 --jitter 0.05 --averaging 0.4"
    box.adaptcl(job(settings, "whole"))
    box.not_compared = ("printed/02.txt", "printed/03.txt")  # How far it had come is chance.
    process = box.start("-m", "adaptcl", *job(settings, "killed").split())
    rounds = box.folder / "killed" / "rounds.jsonl"
    while process.poll() is None and (not rounds.exists() or rounds.read_bytes().count(b"\n") < 4):
        time.sleep(0.005)
    process.kill()
    if process.wait() == 0 or (box.folder / "killed" / "summary.json").exists():
        raise RuntimeError("the run ended before it was killed")
    box.adaptcl("resume killed")
    box.same("killed", "whole")


def longer(box: Box) -> None:
    """A finished run that goes on ends like one that had as many rounds from the start."""
    box.adaptcl(job(f"{SMALL} --codec dgc --rounds 6", "whole"))
    box.adaptcl(job(f"{SMALL} --codec dgc --rounds 3", "longer"), "resume longer --rounds 6")
    box.same("longer", "whole")


def network(box: Box) -> None:
    """A server and two workers on this machine."""
    box.real_clock, box.not_compared = (
        True,
        ("printed/*", "keys/*", "run/figures/*", "run/network.toml"),
    )
    box.adaptcl("keys keys --workers 2 --host 127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    few = f"--workers 2 --data digits --samples 300 --rounds 3 --strategy fedavg-s --listen {at}"
    share = f"--server {at} --data digits --deal --threads 1 --patience 60"
    lines = [f"worker {share} --tls keys/worker-{n} --memory memory-{n}" for n in range(2)]
    lines.insert(0, f"server {few} --tls keys/server --out run")
    running = [box.start("-m", "adaptcl", *line.split()) for line in lines]
    try:
        for process in running:
            box.finish(process)
    finally:
        for process in running:
            process.kill()


def cases(listed: Mapping[str, list[str]], given: Path) -> Iterator[tuple[str, Case | None]]:
    """All cases by name."""
    both, every = "--strategy fedavg-s,adaptcl", f"--strategy {','.join(listed['strategies'])}"
    yield "default-job", commands(job(both))
    yield "strategies", commands(job(f"{SMALL} --jitter 0.05 {every}"))
    for name in listed["prunings"]:
        yield f"prunings/{name}", commands(job(f"{SMALL} --pruning {name}"))
    for name in listed["codecs"]:
        yield f"codecs/{name}", commands(job(f"{SMALL} --codec {name} {both}"))
    for name, words in SETTINGS.items():
        yield f"settings/{name}", commands(job(f"{SMALL} {words}"))
    for name in listed["presets"]:
        if name.startswith("paper-"):
            data = re.sub("paper-|-non|-iid", "", name).replace("pruned-rates", "cifar10")
            few = job(f"--preset {name} {PRESET} {'10 --samples 40' if 'rates' in name else 2}")
            there = (given / IMAGES.get(data, data)).exists()
            yield f"presets/{name}", commands(few) if there else None
    for name in listed["models"]:
        yield f"describe/{name}", commands(f"describe --model {name}")
    yield "forecast", commands(f"forecast --sigma 20 {both}", f"forecast --jitter 0.1 {every}")
    yield "compare", commands("run GIVEN/job.toml --seed 1,2 --out run", COMPARED, OVER_SEEDS)
    yield "custom/by-name", commands(*CUSTOM)
    yield "custom/python", commands("GIVEN/from_python.py")
    wrong = ("--rounds,0", "--strategy,no", "--strateg,x", "--data,no.npz", "--preset,no")
    yield "refused", commands(f"GIVEN/lists.py {' '.join(f'run,{x}' for x in wrong)} resume,no")
    yield "lists", commands(f"GIVEN/lists.py {' '.join(listed)} {HELPED.replace(' ', ',--help ')}")
    for case in (killed, longer, network):
        yield case.__name__, case


def perform(name: str, case: Case | None, box: Box) -> dict[str, Any]:
    """What came of one case."""
    shutil.rmtree(box.folder, ignore_errors=True)
    box.folder.mkdir(parents=True)
    began, outcome = time.monotonic(), "ok" if case else "skipped: its data is not in --data-dir"
    try:
        if case:
            case(box)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        outcome = f"failed: {error}"
    seconds = round(time.monotonic() - began, 1)
    print(f"{seconds:6.1f} s  {name}  {outcome}", flush=True)
    return {"outcome": outcome, "seconds": seconds, "parts": box.parts()}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs in one case, each with its kind."""
    found, old, new = [], before["parts"], now["parts"]
    if before["outcome"][:4] != now["outcome"][:4]:
        found.append(f"outcome: {before['outcome']} before, {now['outcome']} now")
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            kind = "table" if Path(name).suffix in {".txt", ".csv"} else Path(name).stem
            what = "missing" if name not in new else "new" if name not in old else "differs"
            found.append(f"{kind} {what}: {name}")
    return found


def main() -> int:
    """Run the cases; gives the exit status, 1 if one fails or differs."""
    parser = argparse.ArgumentParser(description="Show that results are what they were.")
    parser.add_argument("--out", help="write the hashes to this file")
    parser.add_argument("--against", help="compare with the hashes in this file")
    parser.add_argument("--src", default=str(ROOT / "src"), help="source to run [this checkout's]")
    parser.add_argument("--only", default="*", help="cases to run, patterns with commas between")
    parser.add_argument("--quick", action="store_true", help="a few cases, about a minute")
    parser.add_argument("--work", default="proof", help="folder for what the cases leave [proof]")
    parser.add_argument("--data-dir", help="folder with the image files of the paper's presets")
    options = parser.parse_args()
    before = json.loads(Path(options.against).read_text()) if options.against else {}
    work, source = Path(options.work).resolve(), Path(options.src).resolve()
    shutil.rmtree(given := work / "given", ignore_errors=True)
    prepare(given, options.data_dir)
    (first := Box(work / "listed", given, source)).folder.mkdir(exist_ok=True)
    first.adaptcl(f"GIVEN/lists.py {' '.join(LISTED)}")
    listed = {}
    for kind in LISTED:
        *lines, end = (first.folder / f"{kind}.txt").read_text("utf-8").splitlines()
        if end != "exit status 0":
            parser.error(f"adaptcl {kind} of {source} does not work: {end}")
        listed[kind] = [line.split()[0] for line in lines]

    def chosen(name: str) -> bool:
        named = any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(","))
        return named and (name in QUICK or not options.quick)

    todo = {k: v for k, v in cases(listed, given) if chosen(k)}
    now = {
        name: perform(name, case, Box(work / name, given, source)) for name, case in todo.items()
    }
    if options.out:
        Path(options.out).write_text(json.dumps(now, indent=1) + "\n")
    bad = {k: [v["outcome"]] for k, v in now.items() if v["outcome"].startswith("failed")}
    for name in sorted(filter(chosen, {*before, *now} if before else ())):
        if name not in before or name not in now:
            bad[name] = ["missing now" if name in before else "new"]
        elif found := differences(before[name], now[name]):
            bad[name] = found
    print(*("\n  ".join((name, *found)) for name, found in bad.items()), sep="\n")
    print(f"{len(now)} cases, {len(bad)} of them failed or different")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
