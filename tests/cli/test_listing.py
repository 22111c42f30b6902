"""The lists of everything that has a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from adaptcl.codecs import CODECS
from adaptcl.config import presets
from adaptcl.data import DATASETS
from adaptcl.models import MODELS
from adaptcl.pruning import ORDERS
from adaptcl.strategies import STRATEGIES

Command = Callable[..., tuple[int, str, str]]


def test_everything_with_a_name_is_listed(command: Command) -> None:
    lists: dict[str, Iterable[str]] = {
        "strategies": STRATEGIES,
        "prunings": ORDERS,
        "codecs": CODECS,
        "models": MODELS,
        "presets": presets(),
        "data": DATASETS,
    }
    for what, names in lists.items():
        status, output, errors = command(what)
        assert (status, errors) == (0, "")
        listed = [line.split(maxsplit=1) for line in output.splitlines()]
        assert [name for name, _ in listed] == list(names)
        assert all(len(summary) > 5 for _, summary in listed)


def test_custom_classes_are_listed_if_they_can_be_used(command: Command) -> None:
    for what, name, summary in [
        ("strategies", "adaptcl.strategies.fedavg:FedAVGS", "waits for the slowest"),
        ("prunings", "adaptcl.pruning.filter_orders:L1", "(computed by each worker)"),
        ("codecs", "adaptcl.codecs.plain:Plain", "the tensors as they are"),
    ]:
        status, output, _ = command(what, name)
        assert status == 0
        last = output.splitlines()[-1]
        assert last.startswith(name)
        assert last.endswith(summary)
    status, _, errors = command("codecs", "adaptcl.pruning.filter_orders:L1")
    assert (status, errors.partition(":")[0]) == (2, "adaptcl")
