"""Explanations of the page of benchmarks/elastic_live, written by hand."""

NOTES = ""
