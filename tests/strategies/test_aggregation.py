from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adaptcl.strategies import Job
from adaptcl.strategies.aggregation import Aggregation, AggregationSettings, Holders
from adaptcl.units import Kept, State, UnitMap, cut, put_back, trace

Jobs = Callable[..., Job]

TWO_UNITS = trace(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), torch.zeros(1, 1))
"""Units 0 and 1, each with a weight, a bias and a weight that reads it."""
BOTH, FIRST, SECOND = (torch.tensor(kept) for kept in ([True, True], [True, False], [False, True]))
WHOLE = {
    "0.weight": torch.tensor([[2.0], [4.0]]),
    "0.bias": torch.tensor([1.0, 3.0]),
    "1.weight": torch.tensor([[10.0, 20.0]]),
    "1.bias": torch.tensor([5.0]),
}
PART = {
    "0.weight": torch.tensor([[6.0]]),
    "0.bias": torch.tensor([5.0]),
    "1.weight": torch.tensor([[30.0]]),
    "1.bias": torch.tensor([7.0]),
}
BEFORE = {name: torch.full_like(tensor, 8.0) for name, tensor in WHOLE.items()}


def merged(
    units: UnitMap, previous: State, *updates: tuple[State, Kept, float], **settings: Any
) -> State:
    total = Aggregation(units, previous, AggregationSettings(**settings))
    for state, kept, weight in updates:
        total.add(state, kept, weight)
    return total.result(previous)


def values(state: State) -> list[list[float]]:
    return [tensor.flatten().tolist() for tensor in state.values()]


# Two workers by hand ----------------------------------------------------------------------------


def test_by_worker_a_missing_unit_counts_as_zero() -> None:
    result = merged(TWO_UNITS, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 1))
    assert values(result) == [[4, 2], [3, 1.5], [20, 10], [6]]


def test_by_unit_only_those_count_who_hold_it() -> None:
    result = merged(TWO_UNITS, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 1), aggregation="by-unit")
    assert values(result) == [[4, 4], [3, 3], [20, 20], [6]]


def test_by_change_a_missing_unit_counts_as_unchanged() -> None:
    result = merged(TWO_UNITS, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 1), aggregation="by-change")
    # (4 + 8)/2, (3 + 8)/2 and (20 + 8)/2 for the second unit.
    assert values(result) == [[4, 6], [3, 5.5], [20, 14], [6]]


def test_by_change_a_missing_unit_may_fade() -> None:
    result = merged(
        TWO_UNITS, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 1), aggregation="by-change", fading=0.25
    )
    # A quarter less than the 8 it was: (4 + 6)/2, (3 + 6)/2 and (20 + 6)/2.
    assert values(result) == [[4, 5], [3, 4.5], [20, 13], [6]]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_by_change_with_a_fading_of_one_is_by_worker(
    with_batch_norm: Jobs, data: st.DataObject
) -> None:
    job = with_batch_norm(1, 1)
    updates = drawn_updates(data.draw, job)
    one = merged(job.units, job.state, *updates)
    other = merged(job.units, job.state, *updates, aggregation="by-change", fading=1.0)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "second"), [("by-worker", 1.0), ("by-unit", 4.0), ("by-change", 7.0)]
)
def test_workers_count_by_their_samples(rule: str, second: float) -> None:
    result = merged(TWO_UNITS, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 3), aggregation=rule)
    # (2 + 3·6)/4; then 4/4, 4/1 or (4 + 3·8)/4.
    assert values(result)[0] == [5, second]


@pytest.mark.parametrize("rule", ["by-worker", "by-unit", "by-change"])
@pytest.mark.parametrize("fading", [0.0, 0.5])
def test_a_unit_nobody_holds_keeps_its_value(rule: str, fading: float) -> None:
    updates = (PART, FIRST, 1), (PART, FIRST, 2)
    result = merged(TWO_UNITS, BEFORE, *updates, aggregation=rule, fading=fading)
    assert values(result) == [[6, 8], [5, 8], [30, 8], [7]]


def test_what_two_units_share_keeps_its_value_if_nobody_holds_both() -> None:
    units = trace(
        nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1)),
        torch.zeros(1, 1),
    )
    previous = {name: torch.full(shape, 8.0) for name, shape in units.shapes.items()}
    one, other = torch.tensor([True, False] * 2), torch.tensor([False, True] * 2)
    ones = cut({name: torch.ones_like(t) for name, t in previous.items()}, units, one)
    result = merged(units, previous, (ones, one, 1), (ones, other, 1), aggregation="by-unit")
    assert result["1.weight"].tolist() == [[1, 8], [8, 1]]


@pytest.mark.parametrize("aggregation", ["by-worker", "by-unit", "by-change"])
def test_what_is_not_trained_stays_as_it_is(aggregation: str) -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    units = trace(model, torch.zeros(1, 1))
    result = merged(units, BEFORE, (WHOLE, BOTH, 1), (PART, FIRST, 1), aggregation=aggregation)
    assert values(result)[:2] == [[8, 8], [8, 8]]
    assert values(result)[3] == [6]


def test_counters_take_the_largest_value(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(2, 1)
    updates = []
    for batches in (7, 12, 3):
        state = dict(job.state)
        state["1.num_batches_tracked"] = torch.tensor(batches)
        updates.append((state, job.units.everything(), 1.0))
    assert merged(job.units, job.state, *updates)["1.num_batches_tracked"] == 12


def test_whole_numbers_that_count_nothing_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    model.register_buffer("index", torch.arange(3))
    units = trace(model, torch.zeros(1, 1))
    previous = {**BEFORE, "index": torch.arange(3)}
    lying = {**WHOLE, "index": torch.tensor([0, 1, 1000])}
    result = merged(units, previous, (lying, BOTH, 1), (lying, BOTH, 1))
    assert result["index"].tolist() == [0, 1, 2]
    assert result["index"] is not previous["index"]


def test_without_any_update_nothing_changes() -> None:
    assert values(merged(TWO_UNITS, BEFORE)) == values(BEFORE)


# Any updates ------------------------------------------------------------------------------------


def drawn_updates(
    draw: Callable[[st.SearchStrategy[Any]], Any], job: Job
) -> list[tuple[State, Kept, float]]:
    updates = []
    for _ in range(draw(st.integers(1, 5))):
        kept = torch.tensor([draw(st.booleans()) for _ in range(job.units.count)])
        for layer in job.units.layers:
            kept[layer.units.start] = True
        dice = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
        whole = {
            name: tensor + torch.rand(tensor.shape, generator=dice)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in job.state.items()
        }
        updates.append((cut(whole, job.units, kept), kept, draw(st.integers(1, 1000))))
    return updates


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(["by-worker", "by-unit", "by-change"]))
def test_the_order_of_arrival_does_not_matter(
    with_batch_norm: Jobs, data: st.DataObject, rule: str
) -> None:
    job = with_batch_norm(1, 1)
    updates = drawn_updates(data.draw, job)
    one = merged(job.units, job.state, *updates, aggregation=rule)
    shuffled = data.draw(st.permutations(updates))
    other = merged(job.units, job.state, *shuffled, aggregation=rule)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=2e-7, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_by_unit_one_worker_alone_is_put_back_bit_for_bit(
    with_batch_norm: Jobs, data: st.DataObject
) -> None:
    job = with_batch_norm(1, 1)
    state, kept, weight = drawn_updates(data.draw, job)[0]
    expected = {name: tensor.clone() for name, tensor in job.state.items()}
    put_back(state, job.units, kept, expected)
    result = merged(job.units, job.state, (state, kept, weight), aggregation="by-unit")
    assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_with_whole_models_all_rules_are_the_weighted_mean(
    with_batch_norm: Jobs, data: st.DataObject
) -> None:
    job = with_batch_norm(1, 1)
    everything = job.units.everything()
    wholes = [
        ({k: t + shift for k, t in job.state.items()}, everything, weight)
        for shift, weight in data.draw(
            st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4)
        )
    ]
    total = sum(weight for _, _, weight in wholes)
    for rule in ("by-worker", "by-unit", "by-change"):
        result = merged(job.units, job.state, *wholes, aggregation=rule)
        for name in ("0.weight", "1.running_mean", "6.bias"):
            mean = sum(weight * state[name].double() for state, _, weight in wholes) / total
            torch.testing.assert_close(result[name].double(), mean, rtol=1e-6, atol=1e-6)


def test_neither_updates_nor_the_previous_model_are_written_to(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(1, 1)
    before = {name: tensor.clone() for name, tensor in job.state.items()}
    result = merged(job.units, job.state, (job.state, job.units.everything(), 2))
    assert all(torch.equal(job.state[name], tensor) for name, tensor in before.items())
    assert all(result[n].data_ptr() != job.state[n].data_ptr() for n in result)


def test_an_update_can_be_forgotten_as_soon_as_it_is_added(with_batch_norm: Jobs) -> None:
    job = with_batch_norm(1, 1)
    part = job.units.everything()
    part[[0, 2, 5, 9]] = False
    total = Aggregation(job.units, job.state, AggregationSettings())
    alive: list[weakref.ref[Tensor]] = []
    for kept in (job.units.everything(), part) * 2:
        update = cut(job.state, job.units, kept)
        alive += [weakref.ref(tensor) for tensor in update.values()]
        total.add(update, kept, 1)
        del update
    assert [each() for each in alive] == [None] * len(alive)


def test_a_sum_takes_no_more_memory_for_hundreds_of_different_sub_models_than_for_two(
    with_batch_norm: Jobs,
) -> None:
    job = with_batch_norm(1, 1)
    total = Aggregation(job.units, job.state, AggregationSettings())
    dice = torch.Generator().manual_seed(1)
    sizes = []
    for number in range(400):
        kept = torch.rand(job.units.count, generator=dice) < 0.6
        for layer in job.units.layers:
            kept[layer.units.start] = True
        total.add(cut(job.state, job.units, kept), kept, 1)
        if number >= 100:
            memory = [tensor.untyped_storage() for tensor in tensors_in(total)]
            sizes.append(sum({each.data_ptr(): each.nbytes() for each in memory}.values()))
    model = sum(tensor.nbytes for tensor in job.state.values())
    # Twice the model for the sum in double precision, less than that for who held what, and the
    # kept units of a few dozen sub-models, which are next to nothing for a model of any size.
    assert max(sizes) <= 4 * model + 64 * job.units.count
    assert max(sizes[:100]) == max(sizes[-100:])


def tensors_in(found: object) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, dict):
        for each in found.values():
            yield from tensors_in(each)
    elif isinstance(found, list | tuple):
        for each in found:
            yield from tensors_in(each)
    elif isinstance(found, Aggregation | Holders):
        yield from tensors_in({k: v for k, v in vars(found).items() if k != "_units"})


@pytest.mark.parametrize("rule", ["by-worker", "by-unit", "by-change"])
def test_a_sum_is_empty_again_after_a_merge(with_batch_norm: Jobs, rule: str) -> None:
    job = with_batch_norm(1, 1)
    part = job.units.everything()
    part[[0, 2, 5, 9]] = False
    again = Aggregation(job.units, job.state, AggregationSettings(rule))
    again.add({name: tensor + 3 for name, tensor in job.state.items()}, job.units.everything(), 7)
    again.result(job.state)
    sub = cut({name: tensor + 1 for name, tensor in job.state.items()}, job.units, part)
    again.add(sub, part, 2)
    fresh = merged(job.units, job.state, (sub, part, 2), aggregation=rule)
    second = again.result(job.state)
    assert all(torch.equal(second[name], tensor) for name, tensor in fresh.items())
