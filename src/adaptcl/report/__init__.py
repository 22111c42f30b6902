"""Everything a person sees of a run: its progress, its table and its figures."""

from adaptcl.report.comparison import Comparison, compare
from adaptcl.report.csv_file import write_comparison
from adaptcl.report.figures import draw
from adaptcl.report.labels import distinct_labels
from adaptcl.report.progress import Progress, bar
from adaptcl.report.saved_run import Run, by_strategy, read_run
from adaptcl.report.table import comparison_table, forecast_table

__all__ = [
    "Comparison",
    "Progress",
    "Run",
    "bar",
    "by_strategy",
    "compare",
    "comparison_table",
    "distinct_labels",
    "draw",
    "forecast_table",
    "read_run",
    "write_comparison",
]
