"""Benchmarks that write the pages in docs/benchmarks; README.md lists the commands."""
