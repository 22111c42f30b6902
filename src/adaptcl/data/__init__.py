"""Data sets: loading them, and splitting them among the workers."""

from adaptcl.data.convert import as_samples
from adaptcl.data.data_dir import Archive, OnProgress, silent
from adaptcl.data.npz import pack
from adaptcl.data.partition import missing_classes
from adaptcl.data.samples import DataSet, Samples
from adaptcl.data.sources import DATASETS, DataSource, anchored, get, load

__all__ = [
    "DATASETS",
    "Archive",
    "DataSet",
    "DataSource",
    "OnProgress",
    "Samples",
    "anchored",
    "as_samples",
    "get",
    "load",
    "missing_classes",
    "pack",
    "silent",
]
