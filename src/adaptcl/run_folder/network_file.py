"""`network.toml` in a run's folder: that the run is one of a network, and where it took place."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from adaptcl.errors import RunFolderError

NAME = "network.toml"


@dataclass(frozen=True)
class NetworkFile:
    """What going on with the run needs beside its settings."""

    run: str
    """The name by which workers know the run."""
    listen: str
    tls: str
    patience: float
    job: str = ""
    """A name that the runs of one command share; the same workers do them one after the other."""
    turn: int = 0
    """Which of those it is."""

    def to_toml(self) -> str:
        """As it stands in the file."""
        return tomli_w.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> NetworkFile:
        """From the folder of a run that a server began."""
        try:
            return cls(**tomllib.loads((folder / NAME).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunFolderError(f"{folder} does not hold a run of `adaptcl server`.") from None
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{folder / NAME} cannot be read: {error}.") from None


def is_network_run(folder: Path) -> bool:
    """Whether a server began the run in this folder."""
    return (folder / NAME).is_file()
