"""Weights that are computed anew in every forward pass: weight norm, spectral norm and the like.

What such a layer multiplies by is no parameter but made of some, and a cut would change all of it:
without some of its columns a filter has another norm. So these layers are never cut, and a user is
told how to get plain ones.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList


def computed_weight(module: nn.Module) -> str | None:
    """Why a module's weight has no units and what to do, if the weight is computed; else None."""
    if isinstance(module, ParametrizationList):
        kinds = " and ".join(type(each).__name__.strip("_") for each in module)
        remove = "torch.nn.utils.parametrize.remove_parametrizations"
    else:
        # The older functions leave nothing but a hook and these names behind.
        own = dict(module.named_parameters(recurse=False))
        if "weight_v" in own:
            kinds, remove = "weight_norm", "torch.nn.utils.remove_weight_norm"
        elif "weight_orig" in own:
            kinds, remove = "spectral_norm or pruning", "the function that goes with it"
        else:
            return None
    return f"its weight is computed in every pass by {kinds}; take that off with {remove} to cut it"
