"""Job traces: one module per format, shared parsing, selection, summary and a generator."""
