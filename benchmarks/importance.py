"""Which units of a transformer can go? Importances of units without batch norm, side by side.

A model is trained for as long as before a first pruning. Then it is cut to half of its parameters
by each importance, and the rest is trained on. What counts is how far its loss on the test data is
above that of the whole model: at once, and after both were trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean

import torch
from torch import Tensor

from adaptcl.pruning import ServerView, fit
from adaptcl.pruning.cig_bnscalor import balanced, squares
from adaptcl.pruning.index_orders import NoAdjacent
from adaptcl.training.batches import batches
from adaptcl.training.lasso_lambda import lambda_of_batch
from adaptcl.training.objectives.evaluation import score
from adaptcl.training.objectives.objective import find_objective
from adaptcl.training.task import Recipe
from adaptcl.training.trainer import PlainTrainer
from adaptcl.units import Kept, State, cut, parameters, trace
from benchmarks.benchmark import BenchmarkReport, Measurement, Request
from benchmarks.transformer_jobs import JOBS, TransformerSize

_MODELS = ("ViT", "GPT-2")
_SIZE = TransformerSize(48, 3, 6)
_SEEDS = 3
_RETENTION = 0.5
_STEPS = {"before": 200, "after": 60}
"""Steps of training before the pruning, and after it."""
_RECIPE = Recipe(optimizer="adamw", learning_rate=2e-3, batch_size=32, strength=0.1)
_WIDTH_MULTIPLE = 16
_TESTED = 400
"""Samples of each test, at least."""

Importance = Callable[[ServerView], Tensor]


def _random(view: ServerView) -> Tensor:
    return NoAdjacent().importance(view)


def _by_layer(scales: Importance) -> Importance:
    """Each unit against those of its layer that outlive it."""
    return lambda view: balanced(view.units, scales(view))


def _owned(view: ServerView) -> Tensor:
    return squares(view.units, view.state, owned=True).sqrt()


def _readers(view: ServerView) -> Tensor:
    return squares(view.units, view.state, owned=False).sqrt()


def _both(view: ServerView) -> Tensor:
    units, state = view.units, view.state
    return (squares(units, state, owned=True) + squares(units, state, owned=False)).sqrt()


def _product(view: ServerView) -> Tensor:
    return _owned(view) * _readers(view)


def _in_one_order(scales: Importance) -> Importance:
    """Units of all layers by root mean squares, whatever the number of their weights."""

    def importance(view: ServerView) -> Tensor:
        ones = {name: torch.ones_like(tensor) for name, tensor in view.state.items()}
        return scales(view) / scales(ServerView(view.units, ones, 0, 0, 0)).clamp_min(1)

    return importance


IMPORTANCES: dict[str, Importance] = {
    "random": _random,
    "what it owns": _by_layer(_owned),
    "what reads it": _by_layer(_readers),
    "both together": _by_layer(_both),
    "one times the other": _by_layer(_product),
    "what it owns, all layers in one order": _in_one_order(_owned),
    "what reads it, all layers in one order": _in_one_order(_readers),
    "one times the other, all layers in one order": _in_one_order(_product),
}


@dataclass(frozen=True)
class Harm:
    """How far the test loss of a cut model is above that of the whole model."""

    at_once: float
    trained_on: float
    heads: float
    """The share of the heads that is left."""


def measure(request: Request) -> BenchmarkReport:
    """Cut each model by each importance, for some seeds."""
    seeds = range(1, 1 + (request.repeats or _SEEDS))
    found = {name: [harms(name, seed, request.device) for seed in seeds] for name in _MODELS}
    rows = []
    for name, by_seed in found.items():
        for each in IMPORTANCES:
            at_once = fmean(harm[each].at_once for harm in by_seed)
            trained_on = fmean(harm[each].trained_on for harm in by_seed)
            rows.append(Measurement(f"{name}, {each}, at once", at_once))
            rows.append(Measurement(f"{name}, {each}, trained on", trained_on))
    return BenchmarkReport(
        f"Transformers cut to {100 * _RETENTION:g} % of their parameters",
        "test loss above the whole model's",
        tuple(rows),
        f"mean over {len(seeds)} seeds",
        details={
            name: [{each: asdict(harm) for each, harm in one.items()} for one in by_seed]
            for name, by_seed in found.items()
        },
    )


def harms(name: str, seed: int, device: str = "cpu") -> dict[str, Harm]:
    """Train one model, and cut it by each importance."""
    torch.manual_seed(seed)
    job = JOBS[name](_SIZE)
    objective, train = find_objective(job.objective), job.train.to(device)
    test = job.test.take(torch.arange(0, len(job.test), len(job.test) // _TESTED)).to(device)
    units = trace(job.model, job.train.batch(torch.arange(2))[0])
    trainer = PlainTrainer(job.model.to(device), units, train, objective=objective)
    heads = [unit for each in units.layers if each.name in units.heads for unit in each.units]
    whole, size = units.everything(), _RECIPE.batch_size
    lasso = lambda_of_batch(
        job.model, units, whole, train, torch.arange(size), _RECIPE.strength, objective
    )

    def loss(kept: Kept, state: State) -> float:
        return score(trainer.load(kept, state), test, objective).loss

    def trained(kept: Kept, state: State, when: str) -> State:
        trainer.load(kept, state)
        dice = torch.Generator().manual_seed(seed)
        steps = list(batches(len(train), size, _STEPS[when], dice))
        trainer.run(steps, None, _RECIPE, lasso)
        return trainer.state()

    state = trained(whole, dict(job.model.state_dict()), "before")
    view = ServerView(units, state, worker=0, pruning=0, seed=seed)
    at_once, trained_on = loss(whole, state), loss(whole, trained(whole, state, "after"))
    found = {}
    for each, importance in IMPORTANCES.items():
        budget = _RETENTION * parameters(units, whole)
        kept = fit(units, whole, importance(view), budget, _WIDTH_MULTIPLE)
        part = cut(state, units, kept)
        found[each] = Harm(
            loss(kept, part) - at_once,
            loss(kept, trained(kept, part, "after")) - trained_on,
            float(kept[heads].float().mean()),
        )
    return found
