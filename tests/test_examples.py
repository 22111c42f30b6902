from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

import adaptcl
from adaptcl import data

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "bring_your_own_model.py"
RESNET = EXAMPLES / "small_resnet.py"


@pytest.mark.slow
def test_bring_your_own_model_runs_and_adaptcl_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    output = capsys.readouterr().out
    rows = re.findall(r"^(\S+) +accuracy ([\d.]+)% +([\d.]+)×", output, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["fedavg-s", "adaptcl"]
    accuracies = [float(accuracy) for _, accuracy, _ in rows]
    assert min(accuracies) > 90
    assert accuracies[1] > accuracies[0] - 1.5
    assert float(rows[1][2]) > 1.5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pruned units that matter")
@pytest.mark.parametrize("name", ["tabular_regression", "unet_segmentation", "character_model"])
def test_other_tasks_get_better_and_adaptcl_leads_at_equal_time(name: str) -> None:
    example = EXAMPLES / f"{name}.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
    results = runpy.run_path(str(example), run_name="__main__")["results"]
    fedavg, adapted = results["fedavg"], results["adaptcl"]
    end, measure = adapted.summary.virtual_time_s, adapted.summary.measure
    assert fedavg.summary.virtual_time_s > 1.8 * end
    assert adapted.summary.heterogeneity_last < 0.1
    at_equal_time = [each for each in fedavg.rounds if each.virtual_time_s <= end][-1]
    assert measure.is_better(adapted.summary.main_value, at_equal_time.main_value)
    for result in results.values():
        assert measure.is_better(result.summary.main_value, result.rounds[0].main_value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_slow_worker_trains_a_smaller_rank_of_the_same_adapters() -> None:
    pytest.importorskip("peft")
    example = EXAMPLES / "lora.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
    made = runpy.run_path(str(example), run_name="__main__")
    cuttable = {each.name: each.cuttable for each in made["description"].modules if each.cuttable}
    assert len(cuttable) == 4
    assert all(name.endswith("lora_A.default") for name in cuttable)
    assert set(cuttable.values()) == {16}
    assert "trained parameters" in str(made["description"])
    before, result, slowest = (
        made["model"].state_dict(),
        made["results"]["adaptcl"],
        made["slowest"],
    )
    after, part = result.model.state_dict(), slowest.state_dict()
    for name in before:
        if "lora_" not in name:
            assert torch.equal(after[name], before[name])
            assert torch.equal(part[name], before[name])
        elif "lora_A" in name:
            assert len(part[name]) <= 8
    first, second, *_, before_last, last = result.rounds
    assert first.bytes_sent > 5 * second.bytes_sent  # the base travels once
    retentions = [each.retention for each in before_last.workers]
    assert last.bytes_sent == pytest.approx(second.bytes_sent * sum(retentions) / 5, rel=0.05)
    assert last.main_value < 0.9 * first.main_value


@pytest.mark.slow
def test_the_small_resnet_is_cut_through_its_additions() -> None:
    small_resnet = runpy.run_path(str(RESNET))["small_resnet"]
    digits = data.load("digits", None)
    model = small_resnet(digits.train.shape, len(digits.classes))
    result = adaptcl.run(
        model, digits.train, digits.test,
        samples=300, rounds=4, first_pruning=2, pruning_interval=1, width_multiple=1, sigma=4.0,
    )  # fmt: skip
    whole, part = model.state_dict(), result.sub_model(0).state_dict()
    outputs = [name for name in whole if name.endswith("bn3.weight")]
    assert len(outputs) == 6
    assert all(len(part[name]) < len(whole[name]) for name in outputs)
    assert part["blocks.2.bn3.weight"].shape == part["blocks.3.bn3.weight"].shape
