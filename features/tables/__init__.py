"""Measured tables: one pyarrow schema each, checked whenever a table is read or written."""
