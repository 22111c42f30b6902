"""A tree of plain values and tensors in one file, written whole or not at all.

Checkpoints are such trees. Tensors go into a safetensors file and everything else into its JSON
header, so reading one never runs code, and one rename makes the whole of it appear at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaptcl.errors import RunFolderError

Tree = Any
"""None, bool, int, float, str, Tensor, and lists and string-keyed dictionaries of these."""

_TENSOR = "__tensor__"
_HEADER = "tree"


def save(path: Path, tree: Tree) -> None:
    """Write a tree; whatever was at `path` stays until the new file is complete."""
    tensors: dict[str, Tensor] = {}
    header = json.dumps(_without_tensors(tree, tensors))
    save_tensors(path, tensors, {_HEADER: header})


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """Write a safetensors file that appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, partial, metadata=header)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:  # a full disk is either, by where it is met
        partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{path} cannot be written: {reason}.") from None


def load(path: Path) -> Tree:
    """Read back what `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            return _with_tensors(header, file)
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunFolderError(f"{path} is damaged and cannot be read: {error}.") from None


def _without_tensors(tree: Tree, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_tensors(value, tensors) for value in tree]
    return tree


def _with_tensors(tree: Tree, file: Any) -> Tree:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            return file.get_tensor(tree[_TENSOR])
        return {key: _with_tensors(value, file) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_tensors(value, file) for value in tree]
    return tree
