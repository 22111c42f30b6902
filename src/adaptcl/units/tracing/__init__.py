"""Tracing: one forward pass tells which units a model has.

To learn how, read in this order: `trace.py`, which names the steps; `coupling.py` and `flow.py`,
what is known about units while the model runs; `rules/layers.py`, the rules that matter most, and
`rules/__init__.py`, which applies them; `numbering.py`, what comes of that; and `check.py`, what is
tried before anyone relies on it. All other files are for special models: with decisions on values
(`reach.py`), with sizes in attributes (`stored_sizes.py`), with statistics (`scale_powers.py`).
"""
