"""The experiments as they are shipped, and what a TOML file may say."""

from __future__ import annotations

import pytest

from adaptcl.errors import SettingError
from paper.experiment import Experiment, load_experiment, load_experiments, parse_experiment
from paper.figures import PANELS
from paper.store import run_key

PAPERS = {
    "table-vgg",
    "table-resnet",
    "table-heterogeneity",
    "fig-principles",
    "fig-aggregation",
    "fig-control",
    "table-interval",
    "table-dcasgd",
    "table-dgc",
    "fig-internals",
    "fig-sensitivity",
    "table-cpu",
}
BESIDES = {"table-strength", "table-equal-time", "table-tiny"}


def test_every_table_and_figure_has_its_experiment() -> None:
    found = load_experiments()
    assert {experiment.name for experiment in found} == PAPERS | BESIDES
    assert len({experiment.place for experiment in found}) == len(found)


def test_every_run_of_an_experiment_has_valid_settings() -> None:
    for experiment in load_experiments():
        assert experiment.title
        assert experiment.remarks
        assert any(experiment.planned_runs()) != bool(experiment.profiled_model)
        for part in experiment.parts:
            assert len({row.label for row in part.rows}) == len(part.rows)
            assert set(part.figures) <= set(PANELS)
            for row in part.rows:
                assert set(row.paper or {}) <= set(part.columns)
                row.config(row.seeds[0])


def test_all_methods_of_a_table_have_the_same_baseline() -> None:
    for name in ("table-vgg", "table-resnet"):
        for part in load_experiment(name).parts:
            if part.title.startswith("SSP-S by threshold"):
                continue  # compared with each other
            baselines = [part.baseline_of(row) for row in part.rows]
            found = {run_key(each.config(1).values()) for each in baselines if each is not None}
            assert len(found) == 1
            assert found == {run_key(part.row("FedAVG-S").config(1).values())}


def test_a_row_inherits_and_overrides(tiny: Experiment) -> None:
    first, second = tiny.parts[0].rows
    assert first.seeds == (1,)
    assert second.seeds == (1, 2)
    assert first.values["rounds"] == second.values["rounds"] == 4
    assert (first.values["strategy"], second.values["strategy"]) == ("fedavg-s", "adaptcl")


def test_a_baseline_runs_under_the_settings_of_its_row(tiny: Experiment) -> None:
    part = tiny.parts[0]
    baseline = part.baseline_of(part.row("AdaptCL"))
    assert baseline is not None
    assert baseline.config(2).job.strategy == "fedavg-s"
    assert baseline.config(2).environment.bandwidth_max == 0.05
    assert baseline.seeds == (1, 2)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("place = 1", "plaice = 1", "'plaice' is no key"),
        ('title = "Tiny"', "", "lacks the key 'title'"),
        ('"speed_up"]', '"speed"]', "There is no column 'speed'"),
        ("paper = { accuracy", "paper = { acuracy", "There is no column 'acuracy'"),
        ('row = "AdaptCL"', 'row = "AdaptCl"', "has no row 'AdaptCl'"),
        ("place = 1", "place = ", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_gives_one_sentence(
    before: str, after: str, sentence: str, tiny_text: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        parse_experiment("tiny", tiny_text.replace(before, after, 1))


def test_a_setting_that_does_not_exist_is_refused_when_the_run_is_configured(
    tiny_text: str,
) -> None:
    experiment = parse_experiment("tiny", tiny_text.replace("workers = 4", "wrokers = 4"))
    with pytest.raises(SettingError, match="did you mean 'workers'"):
        list(experiment.planned_runs())
