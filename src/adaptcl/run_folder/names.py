"""What the files of a run are called."""

from __future__ import annotations

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
LOCK = ".lock"
MARKS = ".begun-with.json"
CHECKPOINT = "checkpoint.safetensors"
KEPT = "longer.safetensors"
"""The checkpoint from before a run's last round, which more rounds can follow on."""
SUMMARY = "summary.json"
FIGURES = "figures"
"""The folder of drawings beside what a run leaves, or beside the runs of several strategies."""
