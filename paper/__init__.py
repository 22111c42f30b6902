"""The paper's experiments: which runs they need, making them, and the paper's numbers beside ours.

Each TOML file in `experiments/` names the runs of one table or figure. `python -m paper NAME` makes
those that are missing; each leaves one small JSON file in `results/`. Tables, figures and verdicts
come from these two kinds of files alone.
"""
