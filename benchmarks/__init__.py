"""Benchmarks: how fast the parts are, each against a baseline measured in the same run.

One file a benchmark, and one line here that registers it. Nothing heavy is imported before a
benchmark runs, so a machine without the peers can still run all the others.
"""

from __future__ import annotations

from benchmarks.benchmark import Benchmark

__all__ = ["BENCHMARKS", "Benchmark"]

BENCHMARKS = {
    each.name: each
    for each in (
        Benchmark("step", "a training step of VGG16 at several retentions", ("precision",)),
        Benchmark("lasso", "the group lasso's share of a training step", ("precision",)),
        Benchmark(
            "round",
            "a round of ten workers against plain PyTorch, one after the other",
            ("precision",),
        ),
        Benchmark("layout", "memory layouts of images in a training step"),
        Benchmark("threads", "workers side by side against one on all cores"),
        Benchmark("job", "the paper's CIFAR-10 job, from beginning to end", ("job", "precision")),
        Benchmark("aggregate", "merging sub-models against copying memory", module="aggregation"),
        Benchmark("scale", "the memory of a thousand workers and of ten thousand"),
        Benchmark(
            "peers",
            "a FedAvg job on adaptcl, pfl-research and Flower",
            ("job", "peers"),
            module="peers.compare",
        ),
    )
}
