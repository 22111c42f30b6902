"""The commands of the network: `adaptcl server`, `adaptcl worker` and `adaptcl keys`.

They bring together a run, which the simulation has too, and the engine in `adaptcl.engines.flower`.
"""
