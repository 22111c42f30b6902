"""All rules by the name of the operation, and the operations that concern no unit at all."""

from __future__ import annotations

from adaptcl.units.flow import Rule
from adaptcl.units.rules.layers import LAYER_RULES
from adaptcl.units.rules.movements import MOVEMENT_RULES
from adaptcl.units.rules.values import VALUE_RULES

RULES: dict[str, Rule] = {**LAYER_RULES, **MOVEMENT_RULES, **VALUE_RULES}

_ASKS_FOR_NO_VALUE = """
    shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout names
    is_contiguous is_floating_point is_complex is_cuda is_cpu is_sparse is_quantized is_nested
    is_leaf is_meta is_mkldnn is_mps is_inference requires_grad grad grad_fn len itemsize
    element_size get_device version has_names set_grad_enabled is_grad_enabled repr
    nested_tensor_from_mask_left_aligned
"""

HARMLESS = frozenset(_ASKS_FOR_NO_VALUE.split())
"""Operations that only ask what a tensor is like. What a model does with a size that changes
when it is cut is left to the check."""
