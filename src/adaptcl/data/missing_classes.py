"""Classes that nothing can be learnt of, because no worker has a sample of them.

One wrong label is enough to make a problem of four classes one of eighteen, and a class folder may
be empty. Neither is an error, as the rest can be learnt, but nobody should find out by a low
accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adaptcl.data.samples import Samples

_NAMED = 5
"""How many classes a sentence names."""


def missing_classes(
    parts: Sequence[Samples], test: Samples, names: Sequence[str] = ()
) -> str | None:
    """A sentence on the classes without a training sample, and those of them in the test part.

    None if there are no such classes. `names` are those of all classes; without them there are as
    many as the highest label says.
    """
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
        f"({_listed([called[label] for label in missing])}), so nothing can be learnt of "
        f"{'it' if len(missing) == 1 else 'them'}"
    )
    if not (unlearnt := tested.intersection(missing)):
        return f"{sentence}; are the labels right?"
    wrong = sum(int((test.labels == label).sum()) for label in unlearnt)
    samples = "1 test sample is" if wrong == 1 else f"{wrong:,} test samples are"
    which = [called[label] for label in sorted(unlearnt)]
    return f"{sentence}, yet {samples} labelled {_listed(which)}; are the labels right?"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
