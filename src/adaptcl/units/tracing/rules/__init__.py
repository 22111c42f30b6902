"""Rules: how unit candidates pass through each operation of a forward pass.

Operations without a rule, or whose rule declines, pin whatever reaches them. So a model that does
something unknown is cut less, not wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adaptcl.units.tensors import OperationMode, operation_name, tensors_in
from adaptcl.units.tracing.flow import Flow, OperationCall, Rule
from adaptcl.units.tracing.rules.choices import enter, follow
from adaptcl.units.tracing.rules.layers import LAYER_RULES
from adaptcl.units.tracing.rules.movements import ALIASES, MOVEMENT_RULES
from adaptcl.units.tracing.rules.products import PRODUCT_RULES
from adaptcl.units.tracing.rules.recurrent import RECURRENT_RULES
from adaptcl.units.tracing.rules.values import VALUE_RULES, pointwise

WEIGHT_RULES: dict[str, Rule] = {**LAYER_RULES, **PRODUCT_RULES, **RECURRENT_RULES}
"""Rules of the operations that may have weights."""

RULES: dict[str, Rule] = {**WEIGHT_RULES, **MOVEMENT_RULES, **VALUE_RULES}
"""All rules by the name of the operation."""

_MOVED = MOVEMENT_RULES.keys() - ALIASES
_POINTWISE = frozenset(name for name, rule in VALUE_RULES.items() if rule is pointwise)

_INSPECTING = """
    shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout names
    is_contiguous is_floating_point is_complex is_cuda is_cpu is_sparse is_quantized is_nested
    is_leaf is_meta is_mkldnn is_mps is_inference requires_grad grad grad_fn len itemsize
    element_size get_device version has_names set_grad_enabled is_grad_enabled repr
    nested_tensor_from_mask_left_aligned
"""

_INSPECTIONS = frozenset(_INSPECTING.split())
"""Operations that only inspect a tensor. The check after tracing covers what a model does with a
size that changes when it is cut."""

_ZEROS = frozenset({"zeros", "new_zeros"})
_MADE = _ZEROS | {"new_ones", "new_full", "new_empty", "new_tensor"}
"""Operations that make a tensor, whatever tensor they are called on."""


Observer = Callable[[OperationCall, bool], None]
"""Is told every operation of a forward pass after its rule was applied, and whether it was passed,
or else has pinned its operands and outputs."""


class FollowUnits(OperationMode):
    """Applies its rule to every operation of a forward pass."""

    def __init__(self, flow: Flow, *observers: Observer) -> None:
        super().__init__()
        self._flow = flow
        self._observers = observers

    def on_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operation_name(func)
        if name in _INSPECTIONS:
            return func(*args, **kwargs)
        place = self._flow.coupling.place = self._flow.place_of(name)
        operands = list(tensors_in((args, kwargs)))
        if name in WEIGHT_RULES:
            weights = [
                each for each in operands if each.dim() > 1 and self._flow.is_parameter(each)
            ]
            self._flow.uses.update(map(self._flow.name, weights))
        alone = name in _POINTWISE and all(map(self._flow.is_state, operands))
        for tensor in operands if alone or name in _MOVED else ():
            enter(self._flow, tensor)
        call = OperationCall(name, place, func, args, kwargs, func(*args, **kwargs))
        if name in _MADE and "out" not in kwargs:
            passed = True
            if name in _ZEROS:
                self._flow.note_zeros(call.out)
        else:
            rule = None if "out" in kwargs else RULES.get(name)
            passed = follow(self._flow, rule, call)
            self._flow.pass_on_pinned(call)
        for observer in self._observers:
            observer(call, passed)
        return call.out

    def __exit__(self, *error: Any) -> None:
        self._flow.settle_all()
        super().__exit__(*error)  # type: ignore[no-untyped-call]
