"""The paper's experiments: what to run, running it, and the paper's numbers beside ours.

One TOML file an experiment says which runs answer which table or figure; `runner.py` makes the
runs that are missing, each leaving one small JSON file; tables, figures and verdicts are made
from those files and the TOML files alone. The package stands on top of everything else and is
imported only by the command line.
"""
