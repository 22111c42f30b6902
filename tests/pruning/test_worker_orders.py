"""HRank and Taylor: orders that look at feature maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptcl.pruning import WorkerView
from adaptcl.pruning.worker_orders import FPGM, L1, HRank, Taylor

Views = Callable[..., WorkerView]

RANK_1 = torch.ones(4, 4)
RANK_2 = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 1.0, 1.0], [0, 1.0, 1.0, 1.0], [0, 1.0, 1.0, 1.0]])
RANK_4 = torch.eye(4)


class Copies(nn.Module):
    """Units that pass the image on, with a factor each."""

    def __init__(self, activation: Callable[[Tensor], Tensor], *factors: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, len(factors), 1, bias=False)
        self.head = nn.Linear(len(factors), 2)
        self.activation = activation
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor(factors).view(-1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


def images(*maps: Tensor) -> Tensor:
    return torch.stack(maps)[:, None]


def test_hrank_is_the_mean_rank_over_the_full_rank(worker_view: Views) -> None:
    view = worker_view(Copies(nn.ReLU(), 1.0, 0.0, 3.0), images(RANK_1, RANK_2, RANK_4))
    expected = (1 + 2 + 4) / 3 / 4
    assert HRank().importance(view).tolist() == pytest.approx([expected, 0.0, expected])


def test_hrank_takes_the_map_after_the_activation_however_it_is_called(worker_view: Views) -> None:
    functions = F.relu, torch.relu, torch.relu_, Tensor.relu
    for activation in (nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), *functions):
        view = worker_view(Copies(activation, 1.0, -1.0), images(RANK_4, RANK_4))
        assert HRank().importance(view).tolist() == [1.0, 0.0]


def test_hrank_takes_the_map_after_batch_norm_too(worker_view: Views) -> None:
    norm = nn.BatchNorm2d(2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 0.0]))
        norm.bias.copy_(torch.tensor([0.0, -1.0]))
    view = worker_view(Copies(nn.Sequential(norm, nn.ReLU()), 1.0, 1.0), images(RANK_4))
    assert HRank().importance(view).tolist() == [1.0, 0.0]


def test_in_place_changes_after_the_activation_do_not_count(worker_view: Views) -> None:
    def wiped(x: Tensor) -> Tensor:
        return torch.relu(x).mul_(0.0)

    view = worker_view(Copies(wiped, 1.0, 2.0), images(RANK_4))
    assert HRank().importance(view).tolist() == [1.0, 1.0]


def test_a_neuron_counts_by_the_share_of_samples_it_answers_to(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0], [-1.0]]))
    view = worker_view(model, torch.tensor([[1.0], [2.0], [3.0], [-1.0]]))
    assert HRank().importance(view).tolist() == [0.75, 0.25]


def test_maps_of_different_sizes_are_comparable(worker_view: Views) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    nn.init.ones_(model[0].weight)  # type: ignore[arg-type]
    nn.init.ones_(model[3].weight)  # type: ignore[arg-type]
    importance = HRank().importance(worker_view(model, images(RANK_4)))
    assert importance.tolist() == [1.0, 1.0, 1.0, 1.0]


class Transposed(nn.Module):
    """A linear layer whose weight is stored as in GPT-2."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(like.weight.detach().t().clone())
        self.bias = nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class OverTime(nn.Module):
    """A layer on each step of a sequence, then the mean."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6, 2)

    def hidden(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [4, 6])  # 6 steps are as many as units
@pytest.mark.parametrize("order", [Taylor(), HRank()])
def test_what_a_layer_is_written_as_does_not_change_its_feature_map(
    worker_view: Views, length: int, order: Taylor | HRank
) -> None:
    torch.manual_seed(0)
    plain = OverTime(nn.Linear(3, 6))
    other = OverTime(Transposed(plain.layer))  # type: ignore[arg-type]
    other.head.load_state_dict(plain.head.state_dict())
    one, same = (order.importance(worker_view(m, some(8, length, 3) - 1)) for m in (plain, other))
    assert torch.allclose(one, same, atol=1e-6)
    assert len(set(one.tolist())) > 1


@pytest.mark.parametrize("length", [4, 6])
def test_the_units_of_a_recurrent_layer_are_measured(worker_view: Views, length: int) -> None:
    torch.manual_seed(0)
    model = OverTime(nn.LSTM(3, 6, num_layers=2, dropout=0.5, batch_first=True)).eval()
    view = worker_view(model, some(8, length, 3), batch_size=8)
    hidden = model.hidden(view.samples.inputs).detach().requires_grad_()
    scores = model.head(torch.relu(hidden).mean(1))
    loss = F.cross_entropy(scores, view.samples.targets, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, hidden)
    effect = (hidden * gradient).sum(1).abs().mean(0).detach()
    assert torch.allclose(Taylor().importance(view), effect / effect.norm(), atol=1e-6)
    recurrent = view.model.get_submodule("layer")
    assert isinstance(recurrent, nn.LSTM)
    assert (recurrent.dropout, recurrent.training) == (0.5, False)


def test_rows_of_an_embedding_are_no_channels(worker_view: Views) -> None:
    torch.manual_seed(0)
    model = OverTime(nn.Embedding(9, 6))
    words = torch.randint(9, (8, 6))
    importance = Taylor().importance(worker_view(model, words))
    assert len(set(importance.tolist())) == 6
    # The model takes the mean over the words, which are as many as units: their order is nothing.
    again = Taylor().importance(worker_view(model, words.flip(1)))
    assert torch.allclose(importance, again, atol=1e-6)


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    """Mean of |activation × gradient| of neurons that a linear head reads, normalised."""
    missed = head(hidden).softmax(1) - nn.functional.one_hot(labels, head.out_features)
    effect: Tensor = (hidden * (missed @ head.weight)).abs().mean(0).detach()
    return effect / effect.square().sum().sqrt()


def test_taylor_is_the_mean_size_of_activation_times_gradient(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    importance = Taylor().importance(worker_view(model, inputs, labels))
    expected = by_hand(model[0](inputs), model[1], labels)  # type: ignore[arg-type]
    assert torch.allclose(importance, expected, atol=1e-6)


def test_taylor_does_not_depend_on_the_batch_size(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs, labels = some(4, 3), torch.tensor([0, 1, 1, 0])
    one, *others = (
        Taylor().importance(worker_view(model, inputs, labels, batch_size=size))
        for size in (4, 1, 5, 100)
    )
    assert all(torch.allclose(one, other, atol=1e-6) for other in others)


def test_an_in_place_activation_does_not_change_taylor(worker_view: Views) -> None:
    def model(inplace: bool) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace), nn.Flatten(), nn.Linear(16, 2)
        )

    inputs = some(6, 1, 4, 4)
    beside, in_place = (
        Taylor().importance(worker_view(model(inplace), inputs)) for inplace in (False, True)
    )
    assert torch.equal(beside, in_place)


def test_taylor_takes_the_feature_map_after_batch_norm(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].get_parameter("bias").copy_(torch.tensor([0.0, 5.0, -2.0, 1.0]))
    model.eval()
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    importance = Taylor().importance(worker_view(model, inputs, labels))
    expected = by_hand(model[:2](inputs), model[2], labels)  # type: ignore[arg-type]
    assert torch.allclose(importance, expected, atol=1e-6)


def test_a_unit_that_nobody_reads_has_no_importance(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].get_parameter("weight")[:, 1] = 0
    importance = Taylor().importance(worker_view(model, some(8, 3)))
    assert importance[1] == 0
    assert importance.argmin() == 1


def test_taylor_gives_every_layer_the_norm_1(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    importance = Taylor().importance(worker_view(model, some(8, 3)))
    assert torch.linalg.vector_norm(importance[:4]) == pytest.approx(1)
    assert torch.linalg.vector_norm(importance[4:]) == pytest.approx(1)


def test_what_cannot_be_trained_still_has_an_importance(worker_view: Views) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    inputs, labels = some(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    expected = by_hand(model[0](inputs), model[1], labels)  # type: ignore[arg-type]
    view = worker_view(model, inputs, labels)
    view.model.requires_grad_(False)
    assert torch.allclose(Taylor().importance(view), expected, atol=1e-6)


def test_the_channels_of_one_unit_are_zeroed_together(worker_view: Views, folded: Any) -> None:
    inputs, labels = some(5, 3), torch.tensor([0, 1, 1, 0, 1])
    importance = Taylor().importance(worker_view(folded, inputs, labels))
    expected = by_hand(folded.folded(inputs), folded.head, labels)
    assert torch.allclose(importance, expected, atol=1e-6)


def two_layers() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[1.0, -3.0], [0.0, 0.5], [2.0, 2.0]]))
        model[2].get_parameter("weight").copy_(torch.tensor([[3.0, -3.0, 0.0], [0.0, 0.6, 0.0]]))
    return model


def test_l1_is_the_mean_absolute_weight_of_the_filter(worker_view: Views) -> None:
    importance = L1().importance(worker_view(two_layers(), torch.zeros(4, 2)))
    assert importance.tolist() == pytest.approx([2.0, 0.25, 2.0, 2.0, 0.2])


def test_units_of_a_sub_model_keep_their_original_numbers(worker_view: Views) -> None:
    kept = torch.tensor([True, False, True, False, True])
    importance = L1().importance(worker_view(two_layers(), torch.zeros(4, 2), kept=kept))
    # The second layer no longer reads the unit that was cut: 0.6 was its only weight.
    assert importance[kept].tolist() == pytest.approx([2.0, 2.0, 0.0])
    assert bool(importance.isfinite().all())


def test_the_filters_of_a_transposed_convolution_are_its_columns(worker_view: Views) -> None:
    model = nn.Sequential(nn.ConvTranspose2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1), nn.Flatten())
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor([[5.0, -1.0]])[..., None, None])
    importance = L1().importance(worker_view(model, torch.zeros(4, 1, 2, 2)))
    assert importance.tolist() == [5.0, 1.0]


def test_a_unit_of_several_filters_gets_their_mean(worker_view: Views, folded: Any) -> None:
    with torch.no_grad():
        folded.hidden.weight.copy_(torch.tensor([1.0, 2.0, 5.0, 8.0])[:, None].expand(4, 3))
    importance = L1().importance(worker_view(folded, torch.zeros(4, 3)))
    assert importance.tolist() == [3.0, 5.0]


def line(*weights: list[float]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(len(weights[0]), len(weights)), nn.Linear(len(weights), 2))
    with torch.no_grad():
        model[0].get_parameter("weight").copy_(torch.tensor(weights))
    return model


def test_fpgm_is_the_summed_distance_to_the_others_over_the_layers_mean(worker_view: Views) -> None:
    # Distances: 0 to 1 and 3 is 4, 1 to 0 and 3 is 3, 3 to 0 and 1 is 5; their mean is 4.
    importance = FPGM().importance(worker_view(line([0.0], [1.0], [3.0]), torch.zeros(4, 1)))
    assert importance.tolist() == pytest.approx([1.0, 0.75, 1.25])


def test_distances_of_filters_are_euclidean(worker_view: Views) -> None:
    model = line([0.0, 0.0], [3.0, 4.0], [0.0, 4.0])
    importance = FPGM().importance(worker_view(model, torch.zeros(4, 2)))
    assert importance.tolist() == pytest.approx([9 / 8, 8 / 8, 7 / 8])


def test_a_large_filter_goes_before_a_small_one_if_others_can_replace_it(
    worker_view: Views,
) -> None:
    model = line([10.0], [10.1], [9.9], [0.1])
    importance = FPGM().importance(worker_view(model, torch.zeros(4, 1)))
    assert int(importance.argmax()) == 3


def test_equal_filters_are_equally_important(worker_view: Views) -> None:
    importance = FPGM().importance(worker_view(line([2.0], [2.0]), torch.zeros(4, 1)))
    assert importance.tolist() == [1.0, 1.0]


def test_only_the_filters_that_are_left_count(worker_view: Views) -> None:
    kept = torch.tensor([True, True, False])
    view = worker_view(line([0.0], [1.0], [100.0]), torch.zeros(4, 1), kept=kept)
    assert FPGM().importance(view)[kept].tolist() == [1.0, 1.0]
