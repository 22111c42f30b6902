"""What is trained on what, by how many, for how long: settings that every run has."""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.codecs import CODECS
from adaptcl.settings import With, setting
from adaptcl.strategies import STRATEGIES
from adaptcl.training.devices import PRECISIONS


@dataclass(frozen=True)
class JobSettings:
    """What is trained on what, by how many, for how long."""

    strategy: str = setting(
        "adaptcl", "the method of collaborative learning", choices=STRATEGIES, or_custom=True
    )
    model: str = setting(
        "vgg16", "a model by name, or your own as package.module:factory(shape, classes)"
    )
    data: str = setting(
        "cifar10",
        "a data set by name, an .npz file, folder:PATH, or your own as package.module:load",
    )
    data_dir: str = setting("", "the folder that holds the data set's files")
    samples: int = setting(
        0, "train on this many samples of the data set, drawn at random; 0 is all", at_least=0
    )
    workers: int = setting(10, "number of workers (W)", at_least=1)
    rounds: int = setting(150, "number of rounds (T)", at_least=1)
    seed: int = setting(1, "fixes all randomness of the run", at_least=0, at_most=2**63 - 1)
    partition: str = setting(
        "iid",
        "how data is dealt to the workers",
        choices=("iid", "by-label", "dirichlet"),
    )
    label_share: float = setting(
        80.0,
        "by-label: per cent of the data that is dealt sorted by label (s)",
        at_least=0,
        at_most=100,
        condition=With("partition", "by-label"),
    )
    concentration: float = setting(
        0.5,
        "dirichlet: smaller makes the workers' labels more unequal",
        above=0,
        condition=With("partition", "dirichlet"),
    )
    fixed: tuple[str, ...] = setting(
        (), "module names (with * and ?) whose units are never cut, beside the model's own"
    )
    codec: str = setting(
        "plain", "how updates travel to the server", choices=CODECS, or_custom=True
    )
    evaluate_every: int = setting(1, "rounds from one test of the model to the next", at_least=1)
    averaging: float = setting(
        0.0,
        "the model that is tested and delivered is the mean of the global models of about this "
        "share of the rounds so far; 0 is the last one",
        at_least=0,
        below=1,
    )
    fresh_statistics: int = setting(
        0,
        "before the model is tested and delivered, measure the running statistics of its norm "
        "layers anew on so many training samples; 0 keeps the merged ones",
        at_least=0,
    )
    checkpoint_every: int = setting(
        1, "rounds from one checkpoint to the next; resume goes on from the last", at_least=1
    )
    threads: int = setting(
        0,
        "workers trained at the same time; 0 is one for each core, or on a GPU six, or three if "
        "tasks are short",
        at_least=0,
    )
    device: str = setting("cpu", "where models are trained, as PyTorch names it: cpu, cuda, …")
    precision: str = setting("tf32", "how a GPU multiplies", choices=PRECISIONS)
