"""The settings that every run has: what is trained, on which data, by how many workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from adaptcl.codecs import CODECS, DOWN_CODECS, SAME
from adaptcl.errors import SettingError
from adaptcl.settings import Seconds, When, setting
from adaptcl.strategies import STRATEGIES
from adaptcl.training.devices import PRECISIONS
from adaptcl.training.objectives.metrics import HIGHER, LOWER
from adaptcl.training.objectives.objective import OBJECTIVES

_job, _data, _output, _machine = (
    partial(setting, group=heading) for heading in ("job", "data", "output", "machine")
)


@dataclass(frozen=True)
class JobSettings:
    """What is trained, on which data, by how many workers, and on which machine."""

    strategy: str = _job(
        "adaptcl", "the method of collaborative learning", choices=STRATEGIES, or_custom=True
    )
    model: str = _job(
        "vgg16",
        "a model by name, or your own as package.module:build; build(shape, classes) is given the "
        "shape of one input and the number of outputs",
    )
    data: str = _data(
        "cifar10",
        "a data set by name, an .npz file, folder:PATH, or your own as package.module:load, where "
        "load(data_dir) returns (train, test); a server without data takes workers or inputs:FILE",
    )
    data_dir: str = _data("", "the folder with the files of the data set")
    samples: int = _data(0, "number of training samples, drawn at random; 0 uses all", at_least=0)
    objective: str = _job(
        "classification",
        "what is learned: the loss, the metrics and the form of the targets",
        choices=OBJECTIVES,
        or_custom=True,
    )
    main_metric: str = _job(
        "", "the metric by which tests are compared, if not the objective's first"
    )
    better: str = _job(
        "",
        "which values of the main metric are better, if the metric does not say so",
        choices=("", HIGHER, LOWER),
    )
    workers: int = _job(10, "number of workers (W)", at_least=1)
    rounds: int = _job(150, "number of rounds (T)", at_least=1)
    max_virtual_time: Seconds = setting(
        0.0,
        "end the run after the round in which its clock reaches this time; 0 sets no limit",
        at_least=0,
        group="job",
    )
    target_accuracy: float = _job(
        0.0,
        "end the run once the mean of the last five tests reaches this accuracy in per cent; 0 "
        "sets no target",
        at_least=0,
        at_most=100,
    )
    target: float | None = _job(
        None,
        "end the run once the main metric reaches this value in the mean of the last five tests; "
        "none sets no target",
    )
    early_stopping: int = _job(
        0,
        "end the run once its best single test is this many rounds back, tested or not; 0 never "
        "does",
        at_least=0,
    )
    seed: int = _job(
        1,
        "fixes all randomness of the run, but not the clock of your own model, which is measured "
        "unless you give train_time",
        at_least=0,
        at_most=2**63 - 1,
    )
    partition: str = _data(
        "iid", "how the data is split among the workers", choices=("iid", "by-label", "dirichlet")
    )
    label_share: float = _data(
        80.0,
        "by-label: percentage of the data that is split by label (s)",
        at_least=0,
        at_most=100,
        condition=When({"partition": "by-label"}),
    )
    concentration: float = _data(
        0.5,
        "dirichlet: smaller values make the labels of the workers more unequal",
        above=0,
        condition=When({"partition": "dirichlet"}),
    )
    fixed: tuple[str, ...] = _job(
        (),
        "names of modules, with * and ?, whose units are never pruned, beside the model's defaults",
    )
    holdout: float = _data(
        0.0,
        "share of its samples that each worker holds back to test the model on; 0 tests on the "
        "test data",
        at_least=0,
        below=1,
    )
    codec: str = _job(
        "plain",
        "how updates are encoded on the way to the server, and models on the way to workers",
        choices=CODECS,
        or_custom=True,
    )
    codec_down: str = _job(
        SAME,
        "how models are encoded on the way to workers; same: by codec, or plainly if that encodes "
        "only updates, as dgc does",
        choices=DOWN_CODECS,
    )
    evaluate_every: int = _output(1, "test the global model every so many rounds", at_least=1)
    averaging: float = _output(
        0.0,
        "test and deliver the mean of the latest models, over this share of the rounds so far; 0 "
        "takes the last model",
        at_least=0,
        below=1,
    )
    fresh_statistics: int = _output(
        0,
        "measure the running statistics of norm layers on so many training samples before a model "
        "is tested or delivered; 0 keeps the merged ones",
        at_least=0,
    )
    checkpoint_every: int = _output(
        1, "write a checkpoint, for `adaptcl resume`, every so many rounds", at_least=1
    )
    threads: int = _machine(
        0,
        "workers trained at the same time; 0 chooses: one per core on a CPU, and on a GPU six, or "
        "three for short tasks",
        at_least=0,
    )
    device: str = _machine("cpu", "where to train, as PyTorch names it: cpu, cuda, …")
    precision: str = _machine("tf32", "precision of matrix products on a GPU", choices=PRECISIONS)

    def __post_init__(self) -> None:
        if 0 < self.target_accuracy <= 1:
            raise SettingError(
                f"target_accuracy is {self.target_accuracy:g}, but it must be in per cent, above "
                "1; 0 sets no target."
            )
        if 0 < self.label_share <= 1:
            raise SettingError(
                f"label_share is {self.label_share:g}, but it must be in per cent, above 1; 0 "
                "splits nothing by label."
            )
