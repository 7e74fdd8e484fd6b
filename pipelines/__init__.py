"""One file per DVC stage, the profiler and the importers."""
