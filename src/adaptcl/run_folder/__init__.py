"""A run on disk: everything a run leaves behind, complete at every moment.

`config.toml` makes the run again, `rounds.jsonl` grows by a line a round, `checkpoint.safetensors`
is what `resume` goes on from, and `longer.safetensors` what it goes on from to more rounds than
there were; at the end `model.safetensors` appears, with `inputs.json` and `sub-models.safetensors`,
which say what it takes and which part each worker has, and last of all `summary.json`. Files are
replaced whole, so a process killed at any moment leaves a folder that can be resumed. What a run
goes on from, checkpoint and rounds, is checked against checksums; `config.toml` is not, as its
owner may have moved the data and say so there.
"""

from adaptcl.run_folder.folder import RunFolder
from adaptcl.run_folder.names import FIGURES
from adaptcl.run_folder.reading import (
    is_run_folder,
    read_delivered,
    read_finished,
    read_marks,
    read_settings,
    run_folders,
)

__all__ = [
    "FIGURES",
    "RunFolder",
    "is_run_folder",
    "read_delivered",
    "read_finished",
    "read_marks",
    "read_settings",
    "run_folders",
]
