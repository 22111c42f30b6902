"""A trial of a model, which shows whether two machines compute the same with the same modules.

Modules and tensors can be compared by their names, but not what `forward` does with them. So both
sides fill a copy of the model with the same numbers, give it the same inputs, and compare what
comes out. No weights are needed for that, and no samples. Machines round differently, so only a
difference that no rounding makes counts. A model that cannot be tried like this is not compared.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adaptcl.data.description import SampleForm, made_up
from adaptcl.engines.network.invitation import TRIED, MismatchError
from adaptcl.units.tensors import call_model, mapped, tensors_in

_TOLERANCE = 0.02  # of the largest output


def trial_outputs(model: nn.Module, known: SampleForm) -> tuple[float, ...]:
    """Some outputs of the model with made-up numbers, at most `TRIED`; none if there are none."""
    try:
        with torch.random.fork_rng(devices=[]):
            first, again = _outputs_twice(model, known)
    except Exception:  # a model of the user's may refuse such numbers, or run on a GPU only
        return ()
    if not torch.equal(first, again) or not bool(first.isfinite().all()):
        return ()
    return tuple(first[:: 1 + len(first) // TRIED].tolist())


def refuse_other_outputs(model: nn.Module, known: SampleForm, theirs: Sequence[float]) -> None:
    mine = trial_outputs(model, known)
    if not mine or not theirs:
        return
    if len(mine) == len(theirs):
        here, there = torch.tensor(mine), torch.tensor(theirs)
        if float((here - there).abs().max()) <= _TOLERANCE * float(there.abs().max()):
            return
    raise MismatchError(
        "The worker's model computes something else than the server's, though its modules and "
        "tensors are the same: its `forward` differs; both need the same version of it."
    )


@torch.no_grad()
def _outputs_twice(model: nn.Module, known: SampleForm) -> list[Tensor]:
    """Twice, because a model that draws at random cannot be compared."""
    tried = copy.deepcopy(model).cpu().float().eval()
    if any(not each.is_floating_point() and each.numel() > 1 for each in tried.buffers()):
        # Such as the indexes of a permutation: they may differ, and no made-up ones would fit.
        return [torch.tensor([torch.nan])] * 2
    for number, parameter in enumerate(tried.parameters(), start=1):
        fan_in = max(1, parameter[0].numel() if parameter.ndim > 1 else 1)
        parameter.copy_(_wave(parameter, number) / fan_in**0.5)
    for buffer in tried.buffers():
        if buffer.is_floating_point() and bool(buffer.isfinite().all()):
            buffer.fill_(1.0)
    inputs = made_up(known).batch(torch.arange(2))[0]
    inputs = mapped(lambda t: _wave(t, 0) if t.is_floating_point() else t, inputs)
    found = [list(tensors_in(call_model(tried, inputs))) for _ in range(2)]
    return [torch.cat([each.flatten().float() for each in tensors]) for tensors in found]


def _wave(like: Tensor, number: int) -> Tensor:
    """Numbers that are the same on every machine, unlike those of a random generator."""
    places = torch.arange(like.numel(), dtype=torch.float64)  # in place: a tensor may be large
    return places.mul_(0.7 + 0.01 * (number % 100)).add_(number).cos_().reshape(like.shape).to(like)
