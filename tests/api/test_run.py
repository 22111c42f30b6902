"""Runs from Python: anybody's module, anybody's data."""

from __future__ import annotations

import json
import threading
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import adaptcl
from adaptcl import Result
from adaptcl.codecs import CODECS
from adaptcl.config.config import FROM_PYTHON
from adaptcl.data import as_samples
from adaptcl.errors import AdaptCLError, RunFolderError, SettingError
from adaptcl.events import Event, RoundFinished, RunFinished, RunStarted
from adaptcl.training.objectives.evaluation import score
from adaptcl.units import flops, trace
from tests.runs.small_runs import CutOffError, clouds, cut_off_after

FAST = {
    "workers": 3,
    "rounds": 4,
    "batch_size": 16,
    "bandwidth_max": 0.01,
    "figures": "none",
    "adaptcl": {"max_importance_lost": 1.0},
}


TRAIN, TEST = clouds(240), clouds(120, 1)


def perceptron(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), *extra, nn.Linear(24, 4))


class Locked(nn.Linear):
    """A model that only one thread may use at a time."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.lock = threading.Lock()


def run(**settings: Any) -> Result:
    given = {"model": perceptron(), "train": TRAIN, "test": TEST, **FAST, **settings}
    return adaptcl.run(**given)


def accuracy_of(model: nn.Module) -> float:
    return score(model, as_samples(TEST)).metrics["accuracy"]


def same(first: Result, second: Result) -> None:
    assert first.rounds == second.rounds
    one, other = (each.model.state_dict() for each in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


# What goes in ----------------------------------------------------------------------------------


def test_a_pair_of_tensors_and_a_torch_data_set_give_the_same_run() -> None:
    first = run(strategy="adaptcl")
    assert first.summary.accuracy > 0.9
    same(first, run(strategy="adaptcl", train=TensorDataset(*TRAIN), test=TensorDataset(*TEST)))


def test_a_list_of_data_sets_is_one_for_each_worker() -> None:
    inputs, labels = TRAIN
    own = [(inputs[:100], labels[:100]), (inputs[100:160], labels[100:160])]
    result = adaptcl.run(perceptron(), own, TEST, strategy="fedavg", rounds=2)
    assert result.summary.workers == 2
    assert [w.worker for w in result.rounds[0].workers] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg-s", "adaptcl"])
@pytest.mark.parametrize(
    "model",
    [
        perceptron(nn.Dropout(0.2)),
        nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4)),
        nn.Sequential(nn.Linear(6, 24, bias=False), nn.Tanh(), nn.Linear(24, 4, bias=False)),
    ],
    ids=["dropout", "no batch norm", "no bias"],
)
def test_models_of_every_sort_can_be_trained(model: nn.Module, strategy: str) -> None:
    result = run(model=model, strategy=strategy, strength=0.1)
    assert result.summary.accuracy > 0.7
    same(result, run(model=model, strategy=strategy, strength=0.1))


def test_a_model_of_text_is_pruned_down_to_its_table_of_tokens() -> None:
    torch.manual_seed(0)
    labels = torch.arange(120) % 4
    tokens = torch.randint(4, 30, (120, 6))
    tokens[:, 0] = labels
    model = nn.Sequential(nn.EmbeddingBag(30, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    half = {"pruned_rates": [[0.5, 0.0, 0.0]], "first_pruning": 2, "pruning": "index"}
    text = {"model": model, "train": (tokens.int(), labels), "test": (tokens, labels)}
    result = run(strategy="adaptcl", rounds=12, learning_rate=0.3, epochs=6, **half, **text)
    assert result.summary.retention[0] < 0.6
    assert result.summary.accuracy > 0.9


def test_the_model_given_is_not_changed() -> None:
    model = perceptron().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = run(model=model, strategy="adaptcl")
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert result.model is not model


def test_other_weights_to_begin_with_make_another_run() -> None:
    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    assert run(strategy="fedavg").rounds != run(strategy="fedavg", model=other).rounds


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rouns": 3}, "There is no setting 'rouns'; did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds is 0, but it must be a whole number, at least 1."),
        ({"strategy": ["fedavg"]}, "strategy is ['fedavg'], but adaptcl.run makes one run; "),
        ({"preset": "mine"}, "preset is 'mine', but it must be one of cifar10, "),
        ({"bandwidths": [1, 2]},
         "bandwidths has 2 entries, but it must have one for each of the 3 workers."),
        ({"trace": "/no/trace.csv"}, "trace: /no/trace.csv cannot be read (No such file or dire"),
        ({"pruned_rates": [[0.5]], "strategy": "adaptcl"},
         "pruned_rates has a row of 1 rates, but it must have one for each of the 3 workers."),
        ({"fixed": ["body*"]}, "No module of the model has a name like 'body*'"),
        ({"model": nn.Linear(5, 4)}, "The model (Linear) failed on inputs float32 [2, 6]"),
        ({"model": nn.Linear(6, 3)}, "The model gives scores for 3 classes, but worker 0 has a l"),
        ({"model": "vgg16"}, "The model is a str, but it must be an nn.Module."),
        ({"model": Locked()}, "The model (Locked) cannot be copied, and every worker has a copy"),
        ({"train": 3}, "The training data cannot be used: An int (3) cannot be read as samples"),
        ({"test": (TEST[0], TEST[1] - 9)}, "The test data cannot be used: Labels must count from "),
        ({"seed": [1, 2]}, "seed is [1, 2], but adaptcl.run makes one run; adaptcl.sweep make"),
        ({"data": "digits"}, "data is 'digits', but the data is given as train and test; leave "),
        ({"train": [TEST] * 3, "partition": "dirichlet"},
         "partition is 'dirichlet', but train is a list with a data set for each worker, which is"),
        ({"device": "moon"}, "device is 'moon', but PyTorch has no such device on this machine;"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.* has no effect because bandwidths replaces it")
def test_what_is_wrong_is_refused_in_one_sentence_and_leaves_nothing_behind(
    wrong: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    heard: list[Event] = []
    with pytest.raises(AdaptCLError) as refused:
        run(**{"strategy": "fedavg", "out": tmp_path / "run", "listeners": [heard.append], **wrong})
    assert str(refused.value).startswith(sentence)
    assert heard == []
    assert not (tmp_path / "run").exists()


# What comes out --------------------------------------------------------------------------------


def test_the_result_holds_together() -> None:
    heard: list[Event] = []
    result = run(strategy="adaptcl", rounds=6, sigma=4, listeners=[heard.append])
    summary, rounds, units = result.summary, result.rounds, trace(perceptron(), TEST[0])
    assert isinstance(heard[0], RunStarted)
    assert heard[-1] == RunFinished(summary)
    assert tuple(e.record for e in heard if isinstance(e, RoundFinished)) == rounds
    assert [r.round for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert accuracy_of(result.model) == summary.accuracy == rounds[-1].accuracy
    assert summary.best_accuracy == max(r.accuracy or 0 for r in rounds)
    assert summary.retention == tuple(w.retention for w in rounds[-1].workers)
    assert summary.params_saved == pytest.approx(1 - sum(summary.retention) / 3)
    assert 0.1 < summary.params_saved < 0.9
    assert 0.1 < summary.flops_saved < 0.9
    assert summary.bytes_sent == sum(w.bytes_sent for r in rounds for w in r.workers)
    assert (summary.heterogeneity_first, summary.heterogeneity_last) == (
        rounds[0].heterogeneity,
        rounds[-1].heterogeneity,
    )
    assert flops(units, units.everything()) == 2 * (6 * 24 + 24 * 4)
    for worker in (w for r in rounds for w in r.workers):
        assert worker.update_time_s == pytest.approx(
            worker.send_s + worker.train_s + worker.receive_s
        )
    assert result.folder is None


@pytest.mark.slow
def test_averaging_changes_what_is_tested_and_delivered_and_not_what_is_learned() -> None:
    hard = {"rounds": 9, "learning_rate": 0.3, "batch_size": 4, "partition": "by-label"}
    last, mean = (run(**hard, averaging=share, strategy="fedavg") for share in (0.0, 0.5))
    # From the third round on the newest model is only a part of the mean.
    for one, other in zip(last.rounds, mean.rounds, strict=True):
        assert one.workers == other.workers
    weights = [each.model.state_dict()["0.weight"] for each in (last, mean)]
    assert not torch.equal(*weights)
    # In the first two rounds there is nothing to average.
    tested = [[each.accuracy for each in run.rounds] for run in (last, mean)]
    assert tested[0][:2] == tested[1][:2]
    assert tested[0] != tested[1]
    assert mean.summary.accuracy == accuracy_of(mean.model)
    assert last.summary.accuracy == accuracy_of(last.model)


def test_fresh_statistics_change_what_is_tested_and_delivered_and_not_what_is_learned() -> None:
    net = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    hard = {"rounds": 4, "learning_rate": 0.3, "partition": "by-label", "strategy": "ssp-s"}
    merged, fresh = (run(model=net, **hard, fresh_statistics=count) for count in (0, 100))
    for one, other in zip(merged.rounds, fresh.rounds, strict=True):
        assert one.workers == other.workers
    states = [each.model.state_dict() for each in (merged, fresh)]
    changed = {name for name in states[0] if not torch.equal(*(each[name] for each in states))}
    assert changed == {"1.running_mean", "1.running_var"}
    assert fresh.summary.accuracy == accuracy_of(fresh.model)
    assert merged.summary.accuracy == accuracy_of(merged.model)
    with pytest.raises(SettingError, match="needs 2 samples or more"):
        run(model=net, **hard, fresh_statistics=1)


@pytest.mark.slow
def test_what_a_run_warns_of_is_a_python_warning() -> None:
    harmful: dict[str, Any] = {"strength": 0.0, "learning_rate": 0.3, "epochs": 20.0}
    harmful["adaptcl"] = {"max_importance_lost": 0.0}
    table = {"pruned_rates": ((0.95,) * 3,), "first_pruning": 3, "width_multiple": 1}
    with pytest.warns(adaptcl.AdaptCLWarning, match="workers pruned units that matter"):
        run(strategy="adaptcl", pruning="index", **harmful, **table)


def test_a_clock_on_which_links_take_nearly_all_the_time_is_warned_of() -> None:
    with pytest.warns(adaptcl.AdaptCLWarning, match="how fast workers train hardly matters"):
        run(strategy="fedavg", rounds=1, train_time=1e-6)


def test_a_warning_points_at_the_line_that_called() -> None:
    with pytest.warns(adaptcl.AdaptCLWarning) as warned:
        adaptcl.run(nn.Linear(6, 4), TEST, TEST, workers=2, strategy="heterofl", rounds=1, mixing=1)
    assert len(warned) == 2  # one before the run, and one from deep within
    assert {Path(each.filename) for each in warned} == {Path(__file__)}
    assert str(warned[0].message) == (
        "mixing has no effect with strategy heterofl; it is for fedasync-s."
    )


def test_a_setting_that_one_of_several_runs_uses_is_not_warned_of() -> None:
    both: dict[str, Any] = {
        "strategy": ["fedavg", "adaptcl"],
        "workers": 2,
        "rounds": 2,
        "strength": 0.0,
    }
    both |= {"train_time": 1.0, "adaptcl": {"max_importance_lost": 1.0}}
    with warnings.catch_warnings(record=True) as warned:
        adaptcl.sweep(perceptron(), TRAIN, TEST, **both)
        adaptcl.forecast(perceptron(), TRAIN, TEST, **both)
    assert not [each for each in warned if "no effect" in str(each.message)]
    with pytest.warns(adaptcl.AdaptCLWarning, match="no effect") as told:
        adaptcl.sweep(perceptron(), TRAIN, TEST, **both, mixing=1.0)
    assert len([each for each in told if "mixing has no effect" in str(each.message)]) == 1


def test_a_setting_in_a_section_is_for_one_strategy_whichever_is_run() -> None:
    run(strategy="fedavg", **{"ssp-s": {"staleness_threshold": 3}})


@pytest.mark.slow
def test_of_a_compiled_model_the_module_inside_is_trained() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    compiled: Any = torch.compile(plain)
    results = [run(model=each, strategy="fedavg") for each in (plain, compiled)]
    assert results[0].summary.accuracy == results[1].summary.accuracy
    states = [each.model.state_dict() for each in results]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    example = TEST[0][:2]
    assert str(adaptcl.describe(compiled, example)) == str(adaptcl.describe(plain, example))


@pytest.mark.parametrize("strategy", ["adaptcl", "heterofl", "fedrolex"])
def test_a_model_of_which_nothing_can_be_cut_is_trained_with_a_warning(strategy: str) -> None:
    with pytest.warns(adaptcl.AdaptCLWarning, match="Nothing of this model can be cut") as warned:
        result = run(model=nn.Linear(6, 4), strategy=strategy)
    assert len(warned) == 1
    assert result.summary.accuracy > 0.7
    assert result.summary.retention == (1.0, 1.0, 1.0)
    run(model=nn.Linear(6, 4), strategy="fedavg-s")


def test_the_model_is_ready_to_be_used_and_the_result_is_a_line() -> None:
    result = run(strategy="fedavg")
    assert not any(module.training for module in result.model.modules())
    assert "fedavg" in repr(result)
    assert "\n" not in repr(result)
    assert len(repr(result)) < 120


def test_progress_is_shown_once_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run(strategy="fedavg")
    assert capsys.readouterr().out == ""
    run(strategy="fedavg", progress=True)
    assert capsys.readouterr().out.count("round 4/4") == 1
    with adaptcl.Progress() as shown:
        run(strategy="fedavg", listeners=shown, progress=True)
    assert capsys.readouterr().out.count("round 4/4") == 1


def test_accuracy_is_measured_when_asked_for_and_at_the_end() -> None:
    rounds = run(strategy="fedavg", rounds=5, evaluate_every=2).rounds
    assert [r.accuracy is not None for r in rounds] == [False, True, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_carries_a_run(codec: str) -> None:
    plain = run(strategy="adaptcl", rounds=6)
    warmup = {"dgc_warmup": 0} if codec == "dgc" else {}
    coded = run(strategy="adaptcl", rounds=6, codec=codec, **warmup)
    assert coded.summary.accuracy > 0.8
    assert coded.summary.bytes_received <= plain.summary.bytes_received
    assert coded.summary.bytes_sent <= 1.2 * plain.summary.bytes_sent


# In a folder -----------------------------------------------------------------------------------


def test_a_run_in_a_folder_leaves_all_that_is_promised(tmp_path: Path) -> None:
    result = run(strategy="adaptcl", out=tmp_path / "run")
    assert result.folder == tmp_path / "run"
    names = {p.name for p in (tmp_path / "run").iterdir() if not p.name.startswith(".")}
    assert names - {"best.safetensors"} == {
        *("config.toml", "rounds.jsonl", "summary.json", "provenance.json", "report.html"),
        *("model.safetensors", "inputs.json", "sub-models.safetensors", "checkpoint.safetensors"),
    }
    settings = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (settings["rounds"], settings["model"]) == (4, FROM_PYTHON)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told == json.loads(json.dumps(result.summary.to_json()))
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["accuracy"] for line in lines] == [r.accuracy for r in result.rounds]
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(state[k], v) for k, v in result.model.state_dict().items())


@pytest.mark.slow
def test_resume_goes_on_where_a_run_was_cut_off(tmp_path: Path) -> None:
    whole = run(strategy="adaptcl", rounds=6)
    for number in (1, 4):
        out = tmp_path / str(number)
        with pytest.raises(CutOffError):
            run(strategy="adaptcl", rounds=6, out=out, listeners=[cut_off_after(number)])
        heard: list[Event] = []
        again = run(strategy="adaptcl", rounds=6, out=out, resume=True, listeners=[heard.append])
        same(whole, again)
        started = heard[0]
        assert isinstance(started, RunStarted)
        # The round that was being told of when it was cut off has no checkpoint yet.
        assert started.rounds_done == number - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model": perceptron(nn.Linear(24, 24))}, "another model.*give the model of the run"),
        ({"train": clouds(200)}, "other data.*240 samples, and now 3 have 200"),
        ({"train": (TRAIN[0], TRAIN[1].flip(0))}, "other data: workers have other inputs or label"),
        ({"train": (-TRAIN[0], TRAIN[1])}, "other data: workers have other inputs or labels"),
        ({"test": clouds(120, 2)}, "other data: the test data has other inputs or labels"),
        ({"model": nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.Tanh(),
                                 nn.Linear(24, 4))}, "another model: they print differently"),
    ],
    ids=["model", "samples", "labels", "inputs", "test", "activation"],
)  # fmt: skip
def test_a_run_goes_on_with_its_own_model_and_data_alone(
    tmp_path: Path, other: dict[str, Any], words: str
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "run", listeners=[stop])
    with pytest.raises(RunFolderError, match=words):
        run(out=tmp_path / "run", resume=True, **other)
    assert run(out=tmp_path / "run", resume=True).summary.rounds == 4
    with pytest.raises(RunFolderError, match=words):  # what is finished is not handed out either
        run(out=tmp_path / "run", resume=True, **other)


def test_a_run_goes_on_from_its_own_values_whatever_the_model_begins_with(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(out=tmp_path / "run", listeners=[cut_off_after(2)])
    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    same(run(out=tmp_path / "run", resume=True, model=other), run())


def test_resuming_a_finished_run_gives_back_what_came_of_it(tmp_path: Path) -> None:
    first = run(strategy="adaptcl", out=tmp_path / "run")
    heard: list[Event] = []
    again = run(strategy="adaptcl", out=tmp_path / "run", resume=True, listeners=[heard.append])
    same(first, again)
    assert again.summary == first.summary
    assert heard == []


def test_resume_begins_a_run_where_there_is_none(tmp_path: Path) -> None:
    assert run(strategy="fedavg", out=tmp_path / "run", resume=True).folder == tmp_path / "run"


def test_a_run_is_not_written_over_unless_it_is_to_be_resumed(tmp_path: Path) -> None:
    run(strategy="fedavg", out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(strategy="fedavg", out=tmp_path / "run")


def test_a_run_cannot_be_resumed_with_other_settings(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(strategy="fedavg", out=tmp_path / "run", listeners=[cut_off_after(2)])
    with pytest.raises(RunFolderError) as refused:
        run(strategy="fedavg", out=tmp_path / "run", resume=True, learning_rate=0.25)
    assert str(refused.value) == (
        "The run was begun with other settings: learning_rate was 0.05 and is 0.25 now; put it "
        "back, or choose another folder."
    )
    run(strategy="fedavg", out=tmp_path / "run", resume=True, threads=1, checkpoint_every=3)


def test_the_clock_is_that_of_a_preset_only_if_it_is_named() -> None:
    default = run(strategy="fedavg", rounds=1, preset="default")
    assert default.rounds[0].workers[0].train_s == pytest.approx(20.0)
    paper = run(strategy="fedavg", rounds=1, preset="paper-cifar10-iid")
    assert paper.rounds[0].workers[0].train_s == pytest.approx(24.1)
    with pytest.raises(SettingError):
        run(preset="paper")
