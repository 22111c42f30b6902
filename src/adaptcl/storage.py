"""Files that appear whole or not at all, and trees of tensors and plain values in one file.

Checkpoints are such trees. Tensors go into a safetensors file and everything else into its JSON
header. So reading never runs code, and one rename makes the whole file appear at once. The header
also holds a checksum of all the rest, so that a damaged file is noticed when it is read, not when a
model has been trained on from there.
"""

from __future__ import annotations

import copy
import json
import os
import stat
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaptcl.errors import AdaptCLError, RunFolderError, SettingError, describe_type

LEFTOVERS = (".*.partial", ".tmp*")
"""What a process that was killed while writing leaves: our files, and those of safetensors."""


@contextmanager
def refusing_unwritable(path: Path, refusal: type[AdaptCLError] = RunFolderError) -> Iterator[None]:
    """Make one sentence of whatever keeps the file at `path` from being written."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # a full disk may raise either
        reason = getattr(error, "strerror", None) or error
        raise refusal(f"{path} cannot be written: {reason}.") from None


@contextmanager
def written_whole(path: Path, refusal: type[AdaptCLError] = RunFolderError) -> Iterator[BinaryIO]:
    """Open a file that gets the name `path` only when the block ends without an error."""
    with refusing_unwritable(path, refusal):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as partial, partial.open("xb") as file:
            yield file


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """The name of a new file in the same folder, which takes the place of `path` at the end.

    On any error, Ctrl-C included, it is removed and the old file at `path` stays.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


Tree = Any  # None, bool, int, float, str, Tensor, and lists and string-keyed dictionaries of these


class Remembered:
    """An object of which a checkpoint holds the attributes named in `remembered`.

    They may be what a tree is made of, sets, dictionaries with any plain keys, and objects that
    have `snapshot` and `restore` themselves. A restored attribute is of the type it had before.
    """

    remembered: ClassVar[tuple[str, ...]] = ()

    def snapshot(self) -> Tree:
        """All that `restore` needs. It does not change when the object does."""
        return {name: _copied(getattr(self, name)) for name in self.remembered}

    def restore(self, tree: Tree) -> None:
        for name in self.remembered:
            now, saved = getattr(self, name), tree[name]
            if hasattr(now, "restore"):
                now.restore(saved)
            else:
                setattr(self, name, _restored(now, saved))


_KIND, _ENTRIES = "__kind__", "entries"
"""Of a dictionary in a tree that stands for what a tree does not have."""


def _copied(value: Any) -> Tree:
    """A tree of this value, with a separate copy of all that may change in place."""
    if hasattr(value, "snapshot"):
        return value.snapshot()
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, set):
        return {_KIND: "set", _ENTRIES: sorted(value)}
    if isinstance(value, tuple):
        return {_KIND: "tuple", _ENTRIES: [_copied(each) for each in value]}
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: _copied(each) for key, each in value.items()}
    return {_KIND: "dict", _ENTRIES: [[key, _copied(each)] for key, each in value.items()]}


def _restored(now: Any, saved: Tree) -> Any:
    """The saved value; a dictionary as what the attribute is now, which may be a `defaultdict`."""
    found = _original(saved)
    if isinstance(now, dict) and isinstance(found, dict):
        again = copy.copy(now)
        again.clear()
        again.update(found)
        return again
    return found


def _original(saved: Tree) -> Any:
    if isinstance(saved, list):
        return [_original(each) for each in saved]
    if not isinstance(saved, dict):
        return saved
    if _KIND not in saved:
        return {key: _original(each) for key, each in saved.items()}
    entries = [_original(each) for each in saved[_ENTRIES]]
    return {"set": set, "tuple": tuple, "dict": dict}[saved[_KIND]](entries)


_TENSOR = "__tensor__"
_ACCELERATOR = "accelerator"  # marks a tensor that lay on a GPU or the like
_HEADER = "tree"
_DIGITS = 8
"""Length of the checksum, which stands before the tree in one header entry. Several entries would
come in any order, and the same tree would not always make the same file."""


def save(path: Path, tree: Tree) -> None:
    """Write a tree; the old file at `path` stays until the new one is complete."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(tree, tensors))
    save_tensors(path, tensors, {_HEADER: _checksum(text, tensors) + text})


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """Write a safetensors file that appears whole or not at all."""
    with refusing_unwritable(path), _replacing(path) as partial:
        # safetensors makes a file that nobody else may read, whatever the umask says.
        partial.touch()
        mode = stat.S_IMODE(partial.stat().st_mode)
        save_file(tensors, partial, metadata=header)
        partial.chmod(mode)


def load(path: Path, accelerator: torch.device | None = None) -> Tree:
    """Read what `save` wrote; an error if it is damaged.

    Tensors that lay on an accelerator go to this one, all others to the CPU.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {})[_HEADER]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum, text = header[:_DIGITS], header[_DIGITS:]
        if checksum != _checksum(text, tensors):
            raise ValueError("its checksum is not that of its content")
        return _with_tensors(json.loads(text), tensors, accelerator)
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist.") from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged and cannot be read: {error}; put back a copy of it, or delete it "
            "to begin anew."
        ) from None


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Covers all that is read back. A CRC costs little compared to writing the file."""
    shapes = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(tensors.items())]
    crc = zlib.crc32(json.dumps([text, shapes]).encode())
    for _, tensor in sorted(tensors.items()):
        crc = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:0{_DIGITS}x}"


def _without_tensors(tree: Tree, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().clone().contiguous()
        return {_TENSOR: name} if tree.device.type == "cpu" else {_TENSOR: name, _ACCELERATOR: True}
    if isinstance(tree, dict):
        for key in tree:
            if type(key) is not str:  # JSON would silently turn a number into a text
                raise SettingError(
                    f"A snapshot holds a dictionary with the key {key!r:.50}, but keys must be "
                    "texts; give list(dictionary.items()) and make a dictionary of it again."
                )
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_tensors(value, tensors) for value in tree]
    if tree is not None and not isinstance(tree, bool | int | float | str):
        raise SettingError(
            f"A snapshot holds {describe_type(tree)}, but it must be made of numbers, texts, "
            "tensors, lists and dictionaries of them."
        )
    return tree


def _with_tensors(
    tree: Tree, tensors: Mapping[str, Tensor], accelerator: torch.device | None
) -> Tree:
    if isinstance(tree, dict):
        if _TENSOR in tree:
            tensor = tensors[tree[_TENSOR]]
            return tensor.to(accelerator) if tree.get(_ACCELERATOR) and accelerator else tensor
        return {key: _with_tensors(value, tensors, accelerator) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_tensors(value, tensors, accelerator) for value in tree]
    return tree
