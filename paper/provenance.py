"""The provenance of a result: code, machine and data."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import adaptcl
from adaptcl.data import tiny_imagenet
from adaptcl.data.cifar import CIFAR10, CIFAR100, Cifar
from adaptcl.data.data_dir import locate
from adaptcl.errors import SettingError

_PACKAGE = Path(adaptcl.__file__).parent


@dataclass(frozen=True)
class Provenance:
    """What it takes to reproduce a result."""

    version: str
    commit: str
    torch: str
    device: str
    precision: str
    data_sha256: str


def provenance(device: str, precision: str, data_sha256: str) -> Provenance:
    """The provenance of a result that is made here and now."""
    name = device_name(device)
    cuda = torch.device(device).type == "cuda"
    return Provenance(
        version=adaptcl.__version__,
        commit=commit(),
        torch=torch.__version__,
        device=name,
        precision=precision if cuda else "float32",
        data_sha256=data_sha256,
    )


def device_name(device: str) -> str:
    """The processor or GPU in words."""
    try:
        found = torch.device(device)
        if found.type == "cuda":
            return torch.cuda.get_device_name(found)
    except (RuntimeError, AssertionError):
        raise SettingError(
            f"device is {device!r}, but PyTorch has no such device on this machine."
        ) from None
    return f"{found.type} ({_processor()}, {os.cpu_count()} cores)"


def commit() -> str:
    """The commit of the package's code: from git, else from ADAPTCL_COMMIT, else 'unknown'.

    Uncommitted changes to the package show as '-dirty'.
    """
    # A package that git does not track may still lie inside somebody's repository.
    if _git(_PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is None:
        return os.environ.get("ADAPTCL_COMMIT", "unknown")
    head = _git(_PACKAGE, "rev-parse", "HEAD") or "unknown"
    return f"{head}-dirty" if _git(_PACKAGE, "status", "--porcelain", ".") else head


def data_sha256(name: str, data_dir: Path | None) -> str:
    """The SHA-256 of a data set's file, or of all files of its folder in order."""
    if name not in _PLACES:
        raise SettingError(f"An experiment needs data known by name, but its data is {name!r}.")
    place = _PLACES[name](data_dir)
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _tiny_imagenet(data_dir: Path | None) -> Path:
    return locate(tiny_imagenet.NAME, data_dir, tiny_imagenet.PACKED, tiny_imagenet.ARCHIVE.folder)


_PLACES: dict[str, Callable[[Path | None], Path]] = {
    "digits": lambda _: _PACKAGE / "data" / "files" / "digits.npz",
    "fashion": lambda _: _PACKAGE / "data" / "files" / "fashion-mnist-8000.npz",
    "cifar10": lambda data_dir: _cifar(CIFAR10, data_dir),
    "cifar100": lambda data_dir: _cifar(CIFAR100, data_dir),
    "tiny-imagenet": _tiny_imagenet,
    "tiny-imagenet-100": _tiny_imagenet,
}
"""Where each data set's file or folder is."""


def _cifar(source: Cifar, data_dir: Path | None) -> Path:
    return locate(source.name, data_dir, source.packed, source.archive.folder)


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
