"""Check everything a worker sends before it can touch the global model.

A worker may be broken or hostile. Its answer has to fit the task it was given:

- it answers for the right worker and round;
- its kept units are those it was given, less exactly what it was told to prune;
- its tensors have the names and shapes of those units;
- its test, if it made one, is on as many samples as it can have, and gives the metrics of the
  objective, of which shares are at most 1;
- every number is finite and of a size that training can lead to, no variance is negative, and
  batch norm has counted no more batches than there can have been.

What never changes does not travel back, so no worker can change it (`training/wire.py`).

The numbers are checked once, after decoding. So the checks hold for any codec, and they find
finite changes that add up to infinity.

Whatever is wrong becomes one `UpdateError`, a sentence that can be shown to a user. That includes
what a custom codec raises: one bad answer must not end a server that others work with.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from adaptcl.codecs.codec import Codec, Codecs, Payload
from adaptcl.custom import note_custom_code
from adaptcl.engines.network.frames import Frame, printable
from adaptcl.engines.network.messages import read_update
from adaptcl.errors import UpdateError
from adaptcl.training import Pruning, Task, Update, WorkerTest
from adaptcl.training.batches import mini_batch_count
from adaptcl.training.divergence import divergence, refuse_diverged
from adaptcl.training.objectives.metrics import Measure
from adaptcl.training.wire import LackingError, decode_update, received_tensors, sent_task
from adaptcl.units import State, UnitMap, check_kept, cut_shapes

_MAX_LOSS_TO_PENALTY = 1e6
"""Largest plausible loss divided by the group lasso's penalty, on a first batch. Usually it is
around a thousandth. More than this needs weights near zero or absurd outputs."""

_MAX_CALLS_PER_BATCH = 1000
"""How often a mini-batch may pass the same norm layer. Layers can share one, a sequence can run
through it, and activations can be computed again to save memory."""

_MAX_GROWTH = 1e6
"""By how much the largest number of a parameter (or 1, if that is more) may grow in a round."""

_MAX_STATISTIC = 1e15
"""The same for measured statistics: the variance of raw inputs may be as large as 1e12."""

_MAX_COUNTED = 2**40
"""Batches that a worker may have counted in a round, however many samples it claims. Counters
then never overflow in a run."""

_MAX_TESTED = 100  # samples that a worker may test on, for each that it trains on

_ROUNDING = 1e-9  # by which a computed share may exceed 1


def read_answer(
    content: bytes, task: Task, units: UnitMap, codecs: Codecs, metrics: Collection[str] = ()
) -> Update:
    """Read, decode and check the bytes with which a worker answers a task; `metrics` are the names
    of those that a test gives."""
    try:
        header, payload = read_update(Frame.from_bytes(content), units)
        with note_custom_code(_custom_name(codecs.up)):
            return checked(payload, header, task, units, codecs, metrics)
    except LackingError:
        raise
    except UpdateError as error:
        raise UpdateError(printable(str(error))) from None
    except Exception as error:
        said = f"it cannot be decoded ({type(error).__name__}: {error})."
        sentences = [said, *getattr(error, "__notes__", ())]
        raise UpdateError(" ".join(map(printable, sentences))) from error


def checked(
    payload: Payload,
    header: Update,
    task: Task,
    units: UnitMap,
    codecs: Codecs,
    metrics: Collection[str] = (),
) -> Update:
    """Decode an update and check it against its task; `header` is the update without tensors."""
    check_header(header, task, units)
    if header.test is not None:
        check_test(header, header.test, metrics)
    # Encoding it again costs less than keeping what every worker has read.
    sent = sent_task(task, units, codecs.down)
    update = decode_update(payload, header, sent, units, codecs.up)
    check_shapes(update, units)
    refuse_diverged(update, units)
    reference = received_tensors(sent.given, update.kept, units)
    check_magnitudes(update, reference, units)
    check_variances(update, units)
    check_whole_numbers(update, task, reference, units)
    return update


def check_header(update: Update, task: Task, units: UnitMap) -> None:
    """Refuse an update that does not answer the task."""
    who = f"worker {update.worker}"
    if (update.worker, update.round) != (task.worker, task.round):
        raise UpdateError(
            f"{who} answered for round {update.round}, "
            f"but worker {task.worker} was asked for round {task.round}."
        )
    check_kept(units, update.kept)
    if bool((update.kept & ~task.kept).any()):
        raise UpdateError(f"{who} sent units that were not part of its sub-model.")
    if task.pruning is not None:
        check_pruning(task, task.pruning, update, units)
    elif not torch.equal(update.kept, task.kept):
        raise UpdateError(f"{who} pruned its sub-model without being told to.")
    elif update.pruning_cost is not None or update.importance is not None:
        raise UpdateError(f"{who} sent the figures of a pruning that it was not told to do.")
    if update.samples < 1:
        raise UpdateError(f"{who} reported {update.samples} samples, but it must have at least 1.")
    _check_lasso(who, update.lasso_lambda, task.recipe.strength)


def check_pruning(task: Task, pruning: Pruning, update: Update, units: UnitMap) -> None:
    """Refuse kept units that are not those which the pruning leaves.

    Units that are gone never come back, so a worker that cuts at will could empty the model. But
    from their importance every machine computes the same units. Whatever importance a worker sends
    where it computes the order, the pruned rate limits what it cuts.
    """
    who, importance = f"worker {update.worker}", pruning.importance
    if importance is None:
        importance = update.importance
        if importance is None or importance.shape != (units.count,):
            raise UpdateError(f"{who} did not send the importance by which it pruned.")
        if not bool(importance.isfinite().all()):
            raise UpdateError(f"{who} pruned by an importance that is not finite.")
    expected = pruning.units_left(units, task.kept, importance)
    if not torch.equal(update.kept, expected):
        raise UpdateError(
            f"{who} kept {int(update.kept.sum())} units, which are not the {int(expected.sum())} "
            "that the pruning it was told to do leaves."
        )


def _check_lasso(who: str, lasso: float | None, strength: float) -> None:
    """The server may give this worker's λ to others, so it has to be a sensible one."""
    most = _MAX_LOSS_TO_PENALTY * strength / (1 - strength)
    if lasso is not None and not 0 <= lasso <= most:
        raise UpdateError(
            f"{who} reported a λ of {lasso:g} for its group lasso, but with a strength of "
            f"{strength:g} it is between 0 and {most:g}."
        )


def check_test(update: Update, test: WorkerTest, metrics: Collection[str]) -> None:
    """A test counts by its samples, so a worker must not claim more than it can have."""
    who, samples = f"worker {update.worker}", update.samples
    if test.metrics.keys() != set(metrics):
        named = [", ".join(sorted(each)) or "none" for each in (test.metrics, metrics)]
        raise UpdateError(f"{who} reported the metrics {named[0]}, but here they are {named[1]}.")
    if not 1 <= test.samples <= _MAX_TESTED * samples:
        raise UpdateError(
            f"{who} reported a test on {test.samples} samples, but with {samples} to train on it "
            f"must be on 1 to {_MAX_TESTED * samples}."
        )
    for name, value in test.metrics.items():
        if Measure(name).in_percent and value is not None and not 0 <= value <= 1 + _ROUNDING:
            raise UpdateError(f"{who} reported {value:g} as its {name}, which is a share of 1.")


def check_shapes(update: Update, units: UnitMap) -> None:
    """Refuse tensors of other names and shapes than the kept units make."""
    who = f"worker {update.worker}"
    expected = cut_shapes(units, update.kept)
    if update.state.keys() != expected.keys():
        differing = min(update.state.keys() ^ expected.keys())
        raise UpdateError(f"{who} sent a state that differs in the tensor {differing!r}.")
    for name, tensor in update.state.items():
        if tensor.shape != expected[name]:
            raise UpdateError(
                f"{who} sent {name!r} of shape {tuple(tensor.shape)}, "
                f"but its units make {expected[name]}."
            )


def check_magnitudes(update: Update, reference: State, units: UnitMap) -> None:
    """Refuse finite numbers that no training leads to.

    Merged, they would ruin the model, and the others' training would be blamed for it.
    """
    floats = {
        name: tensor
        for name, tensor in update.state.items()
        if tensor.is_floating_point() and tensor.numel() and name not in units.constants
    }
    for name, found in zip(floats, _largest(list(floats.values())), strict=True):
        limit = _MAX_GROWTH if name in units.parameters else _MAX_STATISTIC
        if found > limit and found > limit * _largest([reference[name]])[0]:
            raise divergence(update, f"{name!r} holds numbers of up to {found:.0e}")


def check_variances(update: Update, units: UnitMap) -> None:
    """Refuse negative variances."""
    variances = {name: update.state[name] for name in update.state if name in units.variances}
    if (odd := _first_outside(variances, 0.0, math.inf)) is not None:
        raise UpdateError(f"worker {update.worker} sent {odd!r} with negative variances.")


def check_whole_numbers(update: Update, task: Task, reference: State, units: UnitMap) -> None:
    """Refuse whole numbers that training cannot have made of those in `reference`.

    Of all whole numbers only counters of batches travel back.
    """
    who = f"worker {update.worker}"
    rises = {
        name: tensor.long() - reference[name].to(tensor.device).long()
        for name, tensor in update.state.items()
        if name in units.counters
    }
    recipe = task.recipe
    most = _MAX_CALLS_PER_BATCH * mini_batch_count(update.samples, recipe.batch_size, recipe.epochs)
    if (odd := _first_outside(rises, 0, min(most, _MAX_COUNTED))) is not None:
        raise UpdateError(
            f"{who} sent {odd!r} with a number of batches that it cannot have seen in a round."
        )


def _first_outside(tensors: State, least: float, most: float) -> str | None:
    """The name of the first tensor with an entry out of range; None if there is none."""
    if not tensors or _is_within(torch.cat([t.flatten() for t in tensors.values()]), least, most):
        return None
    return next(name for name, tensor in tensors.items() if not _is_within(tensor, least, most))


def _is_within(tensor: Tensor, least: float, most: float) -> bool:
    return bool(((tensor >= least) & (tensor <= most)).all())


def _custom_name(codec: Codec) -> list[str]:
    """The name of a codec that the user brought."""
    kind = type(codec)
    ours = kind.__module__.split(".")[0] == "adaptcl"
    return [] if ours else [f"{kind.__module__}:{kind.__qualname__}"]


def _largest(tensors: list[Tensor]) -> list[float]:
    """The largest absolute value of each tensor; no tensor may be empty."""
    if tensors and tensors[0].device.type != "cpu":
        found: list[float] = torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()
        return found
    # On a CPU a norm takes ten times as long.
    return [max(map(abs, _ends(tensor))) for tensor in tensors]


def _ends(tensor: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(tensor)
    return low.item(), high.item()
