"""Coverage of intervals where something is new, written to docs/benchmarks/intervals.md.

Run ``python -m benchmarks.intervals DATASETS [TITLE...]``, the folder of the sources' files
(docs/pipeline/importing.md); titles select tables, whose figures are printed only. Each value of a
split is left out in turn, and its rows get margins that are computed from the rows of all other
values, by several methods.
"""
