"""Trials: a cut model and the model with zeroed units must give the same outputs.

Both run on the same example with the same random numbers. A deep model can magnify rounding until
single precision proves nothing; what differs is compared again in double precision.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adaptcl.units.cut import kept_key, zero
from adaptcl.units.reconfigure import submodel
from adaptcl.units.tensors import (
    OperationMode,
    Tensors,
    call_model,
    mapped,
    operation_name,
    tensors_in,
)
from adaptcl.units.tracing.reach import Branch, OtherSide
from adaptcl.units.unit_map import Kept, UnitMap

_TOLERANCE = 1e-3
"""Allowed difference, relative to the largest output. Rounding causes about 1e-6, a wrong cut about
1e-1."""


class ZeroingTrial:
    """Compares cut models with zeroed ones, on one example and in one mode."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensors,
        *,
        training: bool = False,
        branch: tuple[Branch, int] | None = None,
    ) -> None:
        """`branch` is a decision on values, and how often to take its other side."""
        self.used: set[str] = set()
        """Names of the parameters that the zeroed models used."""
        self.raised: set[str] = set()
        """Names of the integer buffers, single numbers, that the cut models raised."""
        self.changed: set[str] = set()
        """Names of the buffers that the cut models changed."""
        self.differed = False
        """Whether two models that both ran have given different numbers."""
        self._model = model
        self._example = mapped(_at_least_two, example) if training else example
        self._training = training
        self._branch = branch
        self._double: ZeroingTrial | None = None
        self._agreed: set[Hashable] = set()
        """What has agreed before: it is asked for again."""

    def agrees(self, units: UnitMap, kept: Kept, within: Kept | None = None) -> bool:
        """Whether cutting to the `kept` units equals zeroing the others.

        What is zeroed is the sub-model of the units `within`, or else the whole model.
        """
        attributes = tuple((size.module, size.attribute) for size in units.sizes)
        layers = tuple(layer.name for layer in units.layers)
        key = (layers, attributes, kept_key(kept), None if within is None else kept_key(within))
        if key in self._agreed:
            return True
        same = self._compare(units, kept, within)
        if same is False:  # both run, so the precision decides
            self.differed = True
            same = self._in_double()._compare(units, kept, within)
        if same:
            self._agreed.add(key)
        return bool(same)

    def is_repeatable(self, units: UnitMap) -> bool:
        """Whether the whole model gives the same numbers twice, none of them NaN."""
        return self.agrees(units, units.everything())

    def runs(self, units: UnitMap, kept: Kept) -> bool:
        """Whether the cut model runs; in training mode, whether it also runs backward."""
        return self._cut_outputs(units, kept) is not None

    def _compare(self, units: UnitMap, kept: Kept, within: Kept | None) -> bool | None:
        """Whether both models give the same; None if one of them fails."""
        outputs = self._cut_outputs(units, kept)
        expected = None if outputs is None else self._zeroed_outputs(units, kept, within)
        if outputs is None or expected is None:
            return None
        if [each.shape for each in outputs] != [each.shape for each in expected]:
            return None
        return all(map(_close, outputs, expected))

    def _cut_outputs(self, units: UnitMap, kept: Kept) -> list[Tensor] | None:
        with torch.set_grad_enabled(self._training):
            smaller = submodel(self._model, units, kept)
            before = {name: each.clone() for name, each in smaller.named_buffers()}
            outputs = self._outputs(smaller)
            changed = {n for n, each in smaller.named_buffers() if not each.equal(before[n])}
            self.changed |= changed
            self.raised.update(n for n, each in _single_integers(smaller) if each > before[n])
            return outputs

    def _zeroed_outputs(
        self, units: UnitMap, kept: Kept, within: Kept | None
    ) -> list[Tensor] | None:
        base = units.everything() if within is None else within
        state = zero(self._model.state_dict(), units, kept, among=base)
        zeroed = submodel(self._model, units, base, state, copied=False)
        with _NamesUsed(zeroed, self.used):
            return self._outputs(zeroed)

    def _outputs(self, model: nn.Module) -> list[Tensor] | None:
        """All tensors that the model returns; None if it fails, forward or backward."""
        torch.manual_seed(0)
        try:
            with WithoutDropout(), OtherSide(*self._branch) if self._branch else nullcontext():
                outputs = list(tensors_in(call_model(model.train(self._training), self._example)))
            roots = [each for each in outputs if each.requires_grad]
            if roots:
                # Sums, because gradients given for whole tensors make PyTorch import SymPy.
                torch.autograd.backward([each.abs().sum() for each in roots])
        except Exception:  # a user's forward pass may raise anything when sizes change
            return None
        return [each.detach() for each in outputs]

    def _in_double(self) -> ZeroingTrial:
        """The same trial in double precision, which fails if the model insists on another."""
        if self._double is None:
            model, example = copy.deepcopy(self._model).double(), mapped(_doubled, self._example)
            self._double = ZeroingTrial(
                model, example, training=self._training, branch=self._branch
            )
            self._double.used = self.used
        return self._double


class WithoutDropout(OperationMode):
    """Makes every dropout keep everything, so that models of different widths can be compared."""

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operation_name(func)
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name in _WITH_DROPOUT:
            position, keyword = _WITH_DROPOUT[name]
            if position < len(args):
                args = (*args[:position], 0, *args[position + 1 :])
            else:
                kwargs[keyword] = 0
        return func(*args, **kwargs)


_DROPPING = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
"""
_DROPOUTS = frozenset(_DROPPING.split())
_WITH_DROPOUT = {
    "rrelu": (3, "training"),
    "scaled_dot_product_attention": (4, "dropout_p"),
    "multi_head_attention_forward": (10, "dropout_p"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (5, "dropout")),
}
"""By operation with something random inside: the position and the name of the argument that is zero
without it."""


class _NamesUsed(OperationMode):
    """Notes the names of a model's parameters that operations use."""

    def __init__(self, model: nn.Module, used: set[str]) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._used = used

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if (name := self._names.get(id(tensor))) is not None:
                self._used.add(name)
        return func(*args, **kwargs)


def randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Replace initial values that would hide a wrong cut.

    Fresh models hold zeros and ones in biases, batch-norm statistics and residual branches. All
    vectors become positive, so that no ReLU hides them. Weights keep their values, but get a scale
    that neither vanishes nor explodes over many layers.
    """
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if sum(size > 1 for size in parameter.shape) > 1:
            wanted = (2 * parameter.shape[0] / parameter.numel()) ** 0.5
            spread = float(parameter.std())
            if spread > 0:
                parameter.mul_(wanted / spread)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * wanted)
        else:
            _fill(parameter, generator)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            _fill(module.running_mean, generator)
            _fill(module.running_var, generator)


def _fill(tensor: Tensor, generator: torch.Generator) -> None:
    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)


def _close(output: Tensor, expected: Tensor) -> bool:
    """Whether two outputs are the same but for rounding. NaN is never the same: it hides anything,
    while equal infinities are those of masked scores."""
    if expected.numel() == 0:
        return True
    output, expected = output.double(), expected.double()
    limit = _TOLERANCE * float(expected.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(output, expected, rtol=0, atol=limit)


def _single_integers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in model.named_buffers():
        if buffer.numel() == 1 and not buffer.is_floating_point() and not buffer.is_complex():
            yield name, buffer


def _at_least_two(tensor: Tensor) -> Tensor:
    """Batch norm cannot train on one sample."""
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
