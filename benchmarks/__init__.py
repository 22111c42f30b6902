"""Benchmarks of AdaptCL, each against a baseline measured in the same run.

A benchmark is one file and one line here. Its module is imported only when it runs, so a machine
without the peers can run all the others.
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
        Benchmark(
            "job",
            "the paper's CIFAR-10 job, from beginning to end",
            ("job", "precision"),
            "paper_job",
        ),
        Benchmark("aggregate", "merging sub-models against copying memory", module="aggregation"),
        Benchmark("scale", "the memory of a thousand workers and of ten thousand"),
        Benchmark("watching", "status file, page and report against the run they show"),
        Benchmark("importance", "which units of a transformer can go"),
        Benchmark(
            "transformers",
            "a ViT, a BERT and a GPT-2 with AdaptCL and FedAVG",
            ("models", "rounds"),
        ),
        Benchmark(
            "peers",
            "a FedAvg job on adaptcl, pfl-research and Flower",
            ("job", "peers"),
            module="peers.compare",
        ),
        Benchmark(
            "zoo",
            "how far library models can be cut, beside Torch-Pruning",
            ("models",),
            module="zoo.compare",
        ),
    )
}
