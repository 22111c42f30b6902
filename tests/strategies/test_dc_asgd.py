from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptcl.errors import SettingError
from adaptcl.runs.result import FinishedRun
from adaptcl.strategies import Job
from adaptcl.strategies.asynchronous import Asynchronous
from adaptcl.strategies.dc_asgd import DCASGD, DCASGDSettings, planned_rounds
from adaptcl.strategies.fedbuff import FedBuff, FedBuffSettings
from adaptcl.strategies.ssp import SSP, SSPSettings
from adaptcl.training import Arrival, Recipe
from adaptcl.training.batches import mini_batch_count
from adaptcl.units import trace

Jobs = Callable[..., Job]
Answers = Callable[..., Arrival]
Timelines = Callable[..., Any]
Learns = Callable[..., FinishedRun]

RECIPE = Recipe(epochs=2.0, learning_rate=0.1)


def weight(value: float) -> dict[str, Tensor]:
    return {"weight": torch.tensor([[value]])}


def test_two_commits_worked_out_by_hand(one_weight: Jobs, answered: Answers) -> None:
    settings = DCASGDSettings(lambda_0=2.0, mean_square_decay=0.75, dc_learning_rate=0.1)
    strategy = DCASGD(one_weight(2, 1, start=1.0, recipe=RECIPE), settings)
    stale, fresh = strategy.start().tasks

    # g = (1 - 0.8) / 0.1 = 2, nothing has changed since: 1 - 0.1·2. MeanSquare = 0.25·2² = 1.
    strategy.receive(answered(fresh, weight(0.8)))
    assert strategy.model()["weight"].item() == pytest.approx(0.8)

    # g = (1 - 0.7) / 0.1 = 3, MeanSquare = 0.75·1 + 0.25·3² = 3, λ = 2/√3, θ - θ_pulled = -0.2:
    # 0.8 - 0.1·(3 + 2/√3·3²·(-0.2))
    strategy.receive(answered(stale, weight(0.7)))
    expected = 0.8 - 0.1 * (3 - 2 / 3**0.5 * 9 * 0.2)
    assert strategy.model()["weight"].item() == pytest.approx(expected, abs=1e-6)


def test_a_gradient_is_the_mean_of_the_steps_of_a_commit(
    one_weight: Jobs, answered: Answers
) -> None:
    recipe = Recipe(epochs=1.5, learning_rate=0.1, batch_size=4)
    settings = DCASGDSettings(lambda_0=0.0, dc_learning_rate=0.3, commit_epochs=1.5)
    strategy = DCASGD(one_weight(1, 1, start=1.0, recipe=recipe), settings)
    (task,) = strategy.start().tasks
    # 16 samples are 6 steps of 4 in 1.5 epochs: g = (1 - 0.4) / (0.1·6) = 1.
    strategy.receive(answered(task, weight(0.4), samples=16))
    assert strategy.model()["weight"].item() == pytest.approx(1 - 0.3 * 1)


@pytest.mark.parametrize(("accumulation", "steps"), [(2, 3), (4, 2), (9, 1)])
def test_batches_whose_gradients_are_averaged_into_one_step_are_one_step(
    one_weight: Jobs, answered: Answers, accumulation: int, steps: int
) -> None:
    recipe = Recipe(epochs=1.5, learning_rate=0.1, batch_size=4, accumulation=accumulation)
    settings = DCASGDSettings(lambda_0=0.0, dc_learning_rate=0.3, commit_epochs=1.5)
    strategy = DCASGD(one_weight(1, 1, start=1.0, recipe=recipe), settings)
    (task,) = strategy.start().tasks
    # 16 samples are 6 batches of 4 in 1.5 epochs, each step went 0.1·g with g = 1.
    strategy.receive(answered(task, weight(1 - 0.1 * steps), samples=16))
    assert strategy.model()["weight"].item() == pytest.approx(1 - 0.3 * 1)


def test_a_learning_rate_that_decays_has_decayed_as_far_after_as_many_epochs(
    one_weight: Jobs, answered: Answers
) -> None:
    recipe = Recipe(epochs=2.0, learning_rate=0.1, learning_rate_decay=0.25, batch_size=16)
    settings = DCASGDSettings(lambda_0=0.0, commit_epochs=1.0)
    strategy = DCASGD(one_weight(1, 1, start=1.0, recipe=recipe), settings)
    (first,) = strategy.start().tasks
    # Of two commits a round each halves the rate. One step, g = (1 - 0.9) / 0.1 = 1.
    (second,) = strategy.receive(answered(first, weight(0.9), samples=16)).tasks
    assert strategy.model()["weight"].item() == pytest.approx(0.9)
    assert second.recipe.in_round(second.round).learning_rate == pytest.approx(0.05)
    # g = (0.9 - 0.8) / 0.05 = 2, and the server's step has decayed too.
    strategy.receive(answered(second, weight(0.8), samples=16))
    assert strategy.model()["weight"].item() == pytest.approx(0.9 - 0.05 * 2)


def test_a_schedule_is_asked_for_the_rounds_that_the_user_has_set(learn: Learns) -> None:
    asked = []

    def schedule(round: int) -> float:
        asked.append(round)
        return (1.0, 0.5, 0.25)[round - 1]

    learn("dc-asgd-a-s", schedule=schedule, rounds=3, epochs=2)
    # It is tried once, before training. Then each round of 2 epochs is 4 commits of 4 workers.
    assert Counter(asked) == {1: 1 + 16, 2: 16, 3: 16}


def test_a_task_of_a_checkpoint_asks_a_schedule_for_the_same_round(
    one_weight: Jobs, timeline: Timelines, tmp_path: Path
) -> None:
    job = one_weight(2, 3, recipe=RECIPE)
    line = timeline(DCASGD(job, DCASGDSettings()), times=[2, 1]).start().run(rounds=4)
    rounds = {t.worker: t.schedule_round for t in line.strategy.outstanding()}
    assert rounds == {0: 1, 1: 2}
    resumed = line.resumed(DCASGD(job, DCASGDSettings()), tmp_path).strategy
    assert {t.worker: t.schedule_round for t in resumed.outstanding()} == rounds


def test_changes_of_another_optimizer_are_not_taken_for_gradients(one_weight: Jobs) -> None:
    with pytest.raises(SettingError, match="optimizer must be 'sgd'"):
        DCASGD(one_weight(1, 1, recipe=Recipe(optimizer="adamw")), DCASGDSettings())


@pytest.mark.parametrize("commit_epochs", [0.5, 0.3, 0.7, 5.0, 40.0])
@pytest.mark.parametrize("samples", [1, 20, 90, 600])
def test_a_worker_trains_as_many_steps_in_all_as_with_any_other_method(
    one_weight: Jobs, answered: Answers, samples: int, commit_epochs: float
) -> None:
    recipe = Recipe(epochs=1.0, batch_size=32)
    settings = DCASGDSettings(commit_epochs=commit_epochs)
    strategy = DCASGD(one_weight(1, 7, recipe=recipe), settings)
    tasks = list(strategy.start().tasks)
    trained = 0
    while tasks:
        task = tasks.pop()
        trained += task.mini_batch_count(samples)
        tasks += strategy.receive(answered(task, dict(task.state), samples=samples)).tasks
    assert trained == 7 * mini_batch_count(samples, 32, 1.0)


def test_a_commit_without_a_step_leaves_the_model_as_it_is(
    one_weight: Jobs, answered: Answers
) -> None:
    strategy = DCASGD(one_weight(1, 2, start=1.0, recipe=RECIPE), DCASGDSettings())
    (task,) = strategy.start().tasks
    assert task.mini_batch_count(1) == 0
    strategy.receive(answered(task, weight(1.0)))
    assert strategy.model()["weight"].item() == 1.0


def test_epsilon_stands_under_the_root(one_weight: Jobs, answered: Answers) -> None:
    settings = DCASGDSettings(lambda_0=1e5, mean_square_decay=0.0, dc_learning_rate=0.1)
    strategy = DCASGD(one_weight(2, 1, recipe=RECIPE), settings)
    stale, fresh = strategy.start().tasks
    g = 1e-4
    for task in (fresh, stale):
        strategy.receive(answered(task, weight(-0.1 * g)))
    # MeanSquare = g² = 1e-8 is a tenth of ε, and the drift is the first commit.
    lambda_t = 1e5 / (g**2 + 1e-7) ** 0.5
    expected = -0.1 * g - 0.1 * (g + lambda_t * g**2 * (-0.1 * g))
    assert strategy.model()["weight"].item() == pytest.approx(expected, rel=1e-4)


def test_without_correction_at_the_workers_learning_rate_changes_are_added(
    one_weight: Jobs, answered: Answers
) -> None:
    settings = DCASGDSettings(lambda_0=0.0, dc_learning_rate=0.1)
    strategy = DCASGD(one_weight(2, 1, start=1.0, recipe=RECIPE), settings)
    one, other = strategy.start().tasks
    strategy.receive(answered(one, weight(0.7)))
    strategy.receive(answered(other, weight(1.5)))
    assert strategy.model()["weight"].item() == pytest.approx(1.0 - 0.3 + 0.5)


def test_smaller_commits_mean_more_rounds_and_as_many_epochs(
    one_weight: Jobs, timeline: Timelines
) -> None:
    strategy = DCASGD(one_weight(2, 3, recipe=RECIPE), DCASGDSettings(commit_epochs=0.5))
    line = timeline(strategy, times=[2, 1]).start()
    assert {task.recipe.epochs for _, task in line.open.values()} == {0.5}
    line.run()
    assert strategy.done == [12, 12], "3 rounds of 2 epochs are 12 of 0.5"
    assert [closed.round for closed in line.closed] == list(range(1, 13))


def test_the_rounds_of_a_run_follow_from_its_settings(one_weight: Jobs) -> None:
    settings = {"rounds": 3, "epochs": 2.0}
    assert planned_rounds(settings) == 3
    strategy = DCASGD(one_weight(2, 3, recipe=RECIPE), DCASGDSettings(commit_epochs=0.5))
    assert planned_rounds({**settings, "commit_epochs": 0.5}) == strategy.rounds == 12


@pytest.mark.parametrize("commit_epochs", [0.1, 0.3, 0.5, 0.7, 2.0])
def test_a_commit_that_divides_the_epochs_of_a_run_is_as_long_as_set(
    one_weight: Jobs, commit_epochs: float
) -> None:
    job = one_weight(2, 21, recipe=RECIPE)
    strategy = DCASGD(job, DCASGDSettings(commit_epochs=commit_epochs))
    assert strategy.job.recipe.epochs == commit_epochs


def test_a_commit_larger_than_the_whole_training_is_still_one_round(one_weight: Jobs) -> None:
    strategy = DCASGD(one_weight(2, 1, recipe=RECIPE), DCASGDSettings(commit_epochs=9.0))
    assert strategy.job.rounds == 1


def test_running_statistics_are_no_gradients(with_batch_norm: Jobs, answered: Answers) -> None:
    job = with_batch_norm(2, 1, RECIPE)
    # A server step a hundred times the worker's would throw them far off.
    strategy = DCASGD(job, DCASGDSettings(lambda_0=0.0, dc_learning_rate=10.0))
    task, _ = strategy.start().tasks
    sent = {name: tensor.clone() for name, tensor in task.state.items()}
    sent["1.running_mean"] += 3.0
    sent["1.running_var"] += 4.0
    sent["1.bias"] += 0.5
    sent["1.num_batches_tracked"] += 5
    strategy.receive(answered(task, sent))
    model = strategy.model()
    # Of two workers' statistics the share 2/3 is the newest: 2/3 · 3, and 1/3 · 1 + 2/3 · 5.
    assert model["1.running_mean"].tolist() == pytest.approx([2.0] * 4)
    assert model["1.running_var"].tolist() == pytest.approx([11 / 3] * 4)
    assert model["1.num_batches_tracked"].item() == 5
    assert model["1.bias"].tolist() == pytest.approx([50.0] * 4)
    assert list(model) == list(job.state)


class NormWithOtherNames(nn.BatchNorm1d):
    """A batch norm whose statistics have TensorFlow's names."""

    def __init__(self, width: int) -> None:
        super().__init__(width, track_running_stats=False)
        self.register_buffer("moving_mean", torch.zeros(width))
        self.register_buffer("moving_variance", torch.ones(width))


@pytest.mark.parametrize(
    ("strategy", "mean", "variance"),
    [
        # Of two workers' statistics the share 2/3 is the newest, of one of them all.
        (
            partial(DCASGD, settings=DCASGDSettings(lambda_0=0.0, dc_learning_rate=10.0)),
            2.0,
            11 / 3,
        ),
        (partial(SSP, settings=SSPSettings()), 2.0, 11 / 3),
        (partial(FedBuff, settings=FedBuffSettings(1, server_learning_rate=10.0)), 3.0, 5.0),
    ],
)
def test_statistics_are_no_changes_whatever_their_names(
    answered: Answers, strategy: Callable[[Job], Asynchronous], mean: float, variance: float
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), NormWithOtherNames(4), nn.ReLU(), nn.Linear(4, 2))
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    made = strategy(Job(trace(model, torch.zeros(2, 3)), state, 2, 1, RECIPE, seed=1))
    task, _ = made.start().tasks
    moved = {"1.moving_mean": 3.0, "1.moving_variance": 4.0}
    sent = {name: tensor + moved.get(name, 0.0) for name, tensor in task.state.items()}
    made.receive(answered(task, sent))
    assert made.model()["1.moving_mean"].tolist() == pytest.approx([mean] * 4)
    assert made.model()["1.moving_variance"].tolist() == pytest.approx([variance] * 4)


def test_tied_tensors_stay_tied(answered: Answers) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    units = trace(model, torch.zeros(1, 2))
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    strategy = DCASGD(Job(units, state, 2, 1, RECIPE, seed=1), DCASGDSettings())
    for task in strategy.start().tasks:
        sent = {name: tensor - 0.1 * (task.worker + 1) for name, tensor in task.state.items()}
        strategy.receive(answered(task, sent))
    merged = strategy.model()
    assert torch.equal(merged["0.weight"], merged["2.weight"])
    assert not torch.equal(merged["0.weight"], state["0.weight"])
