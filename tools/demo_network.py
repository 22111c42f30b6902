"""AdaptCL against FedAVG-S in real seconds: four workers behind four links of different speed.

It makes five network namespaces on this machine, one for the server and one for each worker. The
links between them are shaped in both directions (`tc tbf`), so that the slowest worker takes about
σ times as long as the fastest. Server and workers are the ordinary commands, with keys and TLS. It
needs Linux and root, and removes the namespaces at the end.

    python tools/demo_network.py --out demo-network
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean

from adaptcl.data import load
from adaptcl.engines.bandwidths import MIB, bandwidths
from adaptcl.engines.heterogeneity import heterogeneity
from adaptcl.models import build
from adaptcl.records import RoundRecord, bytes_moved
from adaptcl.report.comparisons.comparison import compare
from adaptcl.report.figures.drawing import draw
from adaptcl.report.saved_run import read_run

WORKERS = 4
PORT = 9092
SERVER = "adaptcl-server"
TRAIN_S = 0.8
"""The approximate time of a round's training here; the links' rates account for it."""
FASTEST_MIB_S = 0.16

SETTINGS: Mapping[str, object] = {
    "model": "small",
    "data": "fashion",
    "workers": WORKERS,
    "epochs": 0.5,
    "batch-size": 32,
    "learning-rate": 0.05,
    "strength": 0.1,
    "pruning-interval": 3,
    # Real times are noisy: one slow measurement must not shrink a sub-model for good.
    "grow": "true",
}


def main() -> int:
    """Run the demonstration and return the exit status."""
    parser = argparse.ArgumentParser(description="AdaptCL on four shaped links, in real seconds.")
    parser.add_argument("--out", default="demo-network", help="folder for runs and figures")
    parser.add_argument("--sigma", type=float, default=3.0, help="slowest over fastest [3]")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run [20]")
    parser.add_argument(
        "--strategies", default="fedavg-s,adaptcl", help="two to compare [%(default)s]"
    )
    options = parser.parse_args()
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0 or sys.platform != "linux":
        print(f"This needs Linux, root and iproute2 (missing: {missing}).", file=sys.stderr)
        return 2
    out = Path(options.out).resolve()
    if out.exists():
        print(f"{out} exists already; choose another --out.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rates = link_rates(options.sigma)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(network(rates))
        settings = {**SETTINGS, "rounds": options.rounds, "strategy": options.strategies}
        carried = run(scratch, out, settings, stack)
    present([out / name for name in options.strategies.split(",")], rates, carried)
    return 0


def link_rates(sigma: float) -> list[float]:
    """The rates of the workers' links in MiB/s, by the paper's equations."""
    data = load("fashion", None)
    model = build(str(SETTINGS["model"]), data.train.shape, len(data.classes), seed=1)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values()) / MIB
    return bandwidths(size, FASTEST_MIB_S, TRAIN_S, sigma, WORKERS)


# The network -----------------------------------------------------------------------------------


@contextmanager
def network(rates: Sequence[float]) -> Iterator[None]:
    """Keep namespaces and shaped links between them while the context lasts."""
    spaces = [SERVER, *(f"adaptcl-worker-{number}" for number in range(WORKERS))]
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            call("ip", "-n", space, "link", "set", "lo", "up")
        for number, rate in enumerate(rates):
            here, there = f"to-w{number}", "to-server"
            space = spaces[number + 1]
            call(
                *("ip", "link", "add", here, "netns", SERVER),
                *("type", "veth", "peer", "name", there, "netns", space),
            )
            for end, address, name in ((SERVER, 1, here), (space, 2, there)):
                call("ip", "-n", end, "address", "add", f"10.77.{number}.{address}/24", "dev", name)
                call("ip", "-n", end, "link", "set", name, "up")
                # The queue holds a whole message, so that the link drops no packets.
                shaped = ("rate", f"{rate * MIB * 8:.0f}bit", "burst", "16kb", "limit", "400kb")
                call("tc", "-n", end, "qdisc", "add", "dev", name, "root", "tbf", *shaped)
        yield
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def call(*words: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")


def count_link_bytes() -> list[int]:
    """The bytes that each worker's link carried so far, in both directions."""
    listing = subprocess.run(
        ["ip", "-n", SERVER, "-s", "-j", "link"], capture_output=True, text=True, check=True
    )
    found = {each["ifname"]: each["stats64"] for each in json.loads(listing.stdout)}
    return [
        sum(found[f"to-w{number}"][way]["bytes"] for way in ("rx", "tx"))
        for number in range(WORKERS)
    ]


# The runs --------------------------------------------------------------------------------------


def run(scratch: Path, out: Path, chosen: Mapping[str, object], stack: ExitStack) -> int:
    """Make both runs, one after the other; return the bytes that all links carried."""
    hosts = [f"10.77.{number}.1" for number in range(WORKERS)]
    keys = scratch / "keys"
    flags = [word for host in hosts for word in ("--host", host)]
    call(*COMMAND, "keys", str(keys), "--workers", str(WORKERS), *flags)
    settings = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    place = ["--tls", str(keys / "server"), "--listen", f"0.0.0.0:{PORT}", "--out", str(out)]
    processes = [start(SERVER, ["server", *settings, *place], stack)]
    for number, host in enumerate(hosts):
        local = ["--tls", str(keys / f"worker-{number}"), "--memory", str(scratch / f"m{number}")]
        words = ["worker", "--server", f"{host}:{PORT}", "--data", "fashion", "--deal", *local]
        log = (scratch / f"worker-{number}.txt").open("w")
        stack.callback(log.close)
        processes.append(start(f"adaptcl-worker-{number}", words, stack, log.fileno()))
    if processes[0].wait() != 0:
        raise SystemExit("The server failed; see above.")
    return sum(count_link_bytes())


COMMAND = (sys.executable, "-m", "adaptcl")


def start(
    space: str, words: Sequence[str], stack: ExitStack, output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a namespace; it ends with the stack at the latest."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", space, *COMMAND, *words],
        stdout=output,
        stderr=output,
        # Four trainings share this machine's cores, so more threads would not help.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def stop() -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    stack.callback(stop)
    return process


# The result ------------------------------------------------------------------------------------


def present(folders: Sequence[Path], rates: Sequence[float], carried: int) -> None:
    """Print the comparison and draw the figures."""
    runs = [read_run(folder) for folder in folders]
    before, after = (each.rounds for each in runs)
    print("\nlinks    " + ", ".join(f"{rate * 1024:.0f} KiB/s" for rate in rates))
    for name, rounds in zip((f.name for f in folders), (before, after), strict=True):
        print(f"{name:10}  update times in the first round {times(rounds[0])}")
        print(f"{'':10}                 in the last round  {times(rounds[-1])}")
    sent = sum(bytes_moved((*before, *after)))
    first, last = (mean_heterogeneity(each) for each in (after[:2], after[-3:]))
    spent = [rounds[-1].virtual_time_s for rounds in (before, after)]
    print(f"H         {first:.3f} in the first two rounds to {last:.3f} in the last three")
    print(
        f"time      {spent[0]:.0f} s and {spent[1]:.0f} s: {spent[0] / spent[1]:.2f} times as fast"
    )
    print(f"accuracy  {before[-1].accuracy or 0:.1%} and {after[-1].accuracy or 0:.1%}")
    print(
        f"bytes     {sent} of tasks and updates, {carried} of packets (+{carried / sent - 1:.1%})"
    )
    print(f"figures   {folders[0].parent / 'figures'}")
    draw(compare(runs), folders[0].parent / "figures")


def mean_heterogeneity(rounds: Sequence[RoundRecord]) -> float:
    """H of the workers' mean update times; single times are noisy on a shared machine."""
    all_times: dict[int, list[float]] = {}
    for each in (worker for record in rounds for worker in record.workers):
        all_times.setdefault(each.worker, []).append(each.update_time_s)
    return heterogeneity([fmean(times) for times in all_times.values()])


def times(record: RoundRecord) -> str:
    """Every worker's update time in one round."""
    return ", ".join(f"{worker.update_time_s:.1f} s" for worker in record.workers)


if __name__ == "__main__":
    sys.exit(main())
