"""Partitions: splitting one data set among the workers, evenly or by label.

Every split gives one int64 index tensor per worker; together they hold every sample once.
Workers are in the order of the run, in the paper slowest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from adaptcl.data.samples import Samples
from adaptcl.errors import SettingError, listed

_LEAST = 2  # samples that every worker gets if there are enough: batch norm cannot train on one


def iid(labels: Tensor, workers: int, generator: Generator) -> list[Tensor]:
    """Give every worker an equal random part; sizes differ by at most one."""
    _check_workers(labels, workers)
    return list(torch.randperm(len(labels), generator=generator).tensor_split(workers))


def by_label_share(
    labels: Tensor, workers: int, share: float, generator: Generator
) -> list[Tensor]:
    """The paper's non-IID setting, with `share` = s / 100.

    A random `share` of all samples is sorted by label and divided sequentially: the first worker
    gets the lowest labels. The other samples are dealt at random. Every worker ends with the same
    number of samples (give or take one), but of different classes.
    """
    _check_workers(labels, workers)
    count = len(labels)
    order = torch.randperm(count, generator=generator)
    border = round(share * count)
    by_label, at_random = order[:border], order[border:]
    by_label = by_label[torch.argsort(labels.cpu()[by_label], stable=True)]
    sorted_parts = by_label.tensor_split(workers)
    # Each worker's two parts together are its equal part of everything. No size is negative,
    # because no part of a smaller whole exceeds the same part of a larger one.
    sizes = [
        len(whole) - len(part)
        for whole, part in zip(order.tensor_split(workers), sorted_parts, strict=True)
    ]
    random_parts = torch.split(at_random, sizes)
    return [torch.cat(parts) for parts in zip(sorted_parts, random_parts, strict=True)]


def dirichlet(
    labels: Tensor, workers: int, concentration: float, generator: Generator
) -> list[Tensor]:
    """Split each class among the workers by proportions from a Dirichlet distribution.

    A small `concentration` gives each class to few workers, a large one approaches an even
    split. Workers differ in their number of samples too, but each gets at least two, or one if
    there are not enough: a worker with fewer takes from the one that has most.
    """
    _check_workers(labels, workers)
    # PyTorch draws this distribution only from its global generator. NumPy's, seeded from
    # `generator`, keeps the split a function of `generator` alone.
    random = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels.cpu()[order]
    parts: list[list[Tensor]] = [[] for _ in range(workers)]
    for label in torch.unique(shuffled):
        members = order[shuffled == label]
        proportions = random.dirichlet(np.full(workers, concentration))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, members.tensor_split(cuts.tolist()), strict=True):
            part.append(piece)
    dealt = [torch.cat(part) for part in parts]
    least = min(_LEAST, len(labels) // workers)
    # As long as one worker has less than the least, another has more.
    rich = [(-len(part), worker) for worker, part in enumerate(dealt) if len(part) > least]
    heapq.heapify(rich)
    for worker in range(workers):
        while len(dealt[worker]) < least:
            size, richest = rich[0]
            moved, dealt[richest] = dealt[richest][:1], dealt[richest][1:]
            dealt[worker] = torch.cat([dealt[worker], moved])
            heapq.heapreplace(rich, (size + 1, richest))
    return dealt


def split_holdout(samples: Samples, share: float, generator: Generator) -> tuple[Samples, Samples]:
    """Divide a worker's samples at random into those to train on, and a share to test on."""
    count = max(1, round(share * len(samples)))
    if count >= len(samples):
        raise SettingError(
            f"holdout is {share:g}, but a worker has only {len(samples)} sample"
            f"{'s' * (len(samples) > 1)}, and none would be left to train on."
        )
    order = torch.randperm(len(samples), generator=generator)
    return samples.take(order[count:].sort().values), samples.take(order[:count].sort().values)


def _check_workers(labels: Tensor, workers: int) -> None:
    if workers > len(labels):
        raise SettingError(
            f"{len(labels)} samples cannot be dealt to {workers} workers: each needs at least one."
        )


def missing_classes(
    parts: Sequence[Samples], test: Samples, names: Sequence[str] = ()
) -> str | None:
    """A warning about classes without a training sample, or None if there are no such classes.

    One wrong label, such as 17 among classes 0 to 3, makes the data look like eighteen classes, and
    a class folder may be empty. A low accuracy should not be the first sign of it. Without `names`
    there are as many classes as the highest label says.
    """
    if not test.has_labels:
        return None
    trained = set(torch.unique(torch.cat([part.labels for part in parts])).tolist())
    tested = set(torch.unique(test.labels).tolist())
    count = max(len(names), 1 + max(trained | tested))
    missing = [label for label in range(count) if label not in trained]
    if not missing:
        return None
    called = [*names, *map(str, range(len(names), count))]
    have = "has" if len(missing) == 1 else "have"
    sentence = (
        f"{len(missing)} of {count} classes {have} no training sample "
        f"({listed(called[label] for label in missing)}), so nothing can be learnt of "
        f"{'it' if len(missing) == 1 else 'them'}"
    )
    if not (unlearnt := tested.intersection(missing)):
        return f"{sentence}; are the labels right?"
    wrong = sum(int((test.labels == label).sum()) for label in unlearnt)
    samples = "1 test sample is" if wrong == 1 else f"{wrong:,} test samples are"
    which = listed(called[label] for label in sorted(unlearnt))
    return f"{sentence}, yet {samples} labelled {which}; are the labels right?"
