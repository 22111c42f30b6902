"""The settings of a run: gathered from all parts, checked, read from TOML and written to TOML.

Every setting has one name: as a key of a TOML file, as a flag of the command line and as an
argument of `adaptcl.run`. Later sources win: first the preset, then the file, then the flags.
"""
