"""The settings that every run has: what is trained, on which data, by how many workers."""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.codecs import CODECS, DOWN_CODECS, SAME
from adaptcl.errors import SettingError
from adaptcl.settings import With, setting
from adaptcl.strategies import STRATEGIES
from adaptcl.training.devices import PRECISIONS
from adaptcl.training.metrics import HIGHER, LOWER
from adaptcl.training.objective import OBJECTIVES


@dataclass(frozen=True)
class JobSettings:
    """What is trained, on which data, by how many workers, and on which machine."""

    strategy: str = setting(
        "adaptcl",
        "the method of collaborative learning",
        choices=STRATEGIES,
        or_custom=True,
        group="job",
    )
    model: str = setting(
        "vgg16",
        "a model by name, or your own as package.module:factory(shape, classes)",
        group="job",
    )
    data: str = setting(
        "cifar10",
        "a data set by name, an .npz file, folder:PATH, or your own as package.module:load; for a "
        "server without data inputs:FILE",
        group="data",
    )
    data_dir: str = setting("", "the folder with the files of the data set", group="data")
    samples: int = setting(
        0, "number of training samples, drawn at random; 0 uses all", at_least=0, group="data"
    )
    objective: str = setting(
        "classification",
        "what is learned: the loss, the metrics and the form of the targets",
        choices=OBJECTIVES,
        or_custom=True,
        group="job",
    )
    main_metric: str = setting(
        "",
        "the metric that tests are compared by; empty takes the first of the objective",
        group="job",
    )
    better: str = setting(
        "",
        "which values of the main metric are better; empty goes by the metric",
        choices=("", HIGHER, LOWER),
        group="job",
    )
    workers: int = setting(10, "number of workers (W)", at_least=1, group="job")
    rounds: int = setting(150, "number of rounds (T)", at_least=1, group="job")
    max_virtual_time: float = setting(
        0.0,
        "end the run after the round in which its clock reaches this many seconds; 0 sets no limit",
        at_least=0,
        group="job",
    )
    target_accuracy: float = setting(
        0.0,
        "end the run once a test reaches this accuracy in per cent; 0 sets no target",
        at_least=0,
        at_most=100,
        condition=With("objective", "classification"),
        group="job",
    )
    target: float | None = setting(
        None,
        "end the run once the main metric of a test reaches this value; none sets no target",
        group="job",
    )
    early_stopping: int = setting(
        0,
        "end the run after this many rounds without a better test; 0 never does",
        at_least=0,
        group="job",
    )
    seed: int = setting(
        1, "fixes all randomness of the run", at_least=0, at_most=2**63 - 1, group="job"
    )
    partition: str = setting(
        "iid",
        "how the data is split among the workers",
        choices=("iid", "by-label", "dirichlet"),
        group="data",
    )
    label_share: float = setting(
        80.0,
        "by-label: percentage of the data that is split by label (s)",
        at_least=0,
        at_most=100,
        condition=With("partition", "by-label"),
        group="data",
    )
    concentration: float = setting(
        0.5,
        "dirichlet: smaller values make the labels of the workers more unequal",
        above=0,
        condition=With("partition", "dirichlet"),
        group="data",
    )
    fixed: tuple[str, ...] = setting(
        (),
        "names of modules, with * and ?, whose units are never pruned, beside the model's defaults",
        group="job",
    )
    holdout: float = setting(
        0.0,
        "share of its samples that each worker holds back to test the model on; 0 tests on the "
        "test data",
        at_least=0,
        below=1,
        group="data",
    )
    codec: str = setting(
        "plain",
        "how updates are encoded on the way to the server, and models on the way to workers",
        choices=CODECS,
        or_custom=True,
        group="job",
    )
    codec_down: str = setting(
        SAME,
        "how models are encoded on the way to workers; 'same' is as codec, and plain if that only "
        "encodes updates, as dgc does",
        choices=DOWN_CODECS,
        group="job",
    )
    evaluate_every: int = setting(
        1, "test the global model every so many rounds", at_least=1, group="output"
    )
    averaging: float = setting(
        0.0,
        "test and deliver the mean of the global models of about this share of the rounds so far; "
        "0 takes the last model",
        at_least=0,
        below=1,
        group="output",
    )
    fresh_statistics: int = setting(
        0,
        "before the model is tested and delivered, measure the running statistics of its norm "
        "layers on so many training samples; 0 keeps the merged statistics",
        at_least=0,
        group="output",
    )
    checkpoint_every: int = setting(
        1,
        "write a checkpoint, for `adaptcl resume`, every so many rounds",
        at_least=1,
        group="output",
    )
    threads: int = setting(
        0,
        "workers trained at the same time; 0 chooses: one per core on a CPU, and on a GPU six, or "
        "three for short tasks",
        at_least=0,
        group="machine",
    )
    device: str = setting(
        "cpu", "where to train, as PyTorch names it: cpu, cuda, …", group="machine"
    )
    precision: str = setting(
        "tf32", "precision of matrix products on a GPU", choices=PRECISIONS, group="machine"
    )

    def __post_init__(self) -> None:
        if 0 < self.target_accuracy <= 1:
            raise SettingError(
                f"target_accuracy is {self.target_accuracy:g}, but it must be in per cent, above "
                "1; 0 sets no target."
            )
