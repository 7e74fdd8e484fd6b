"""Text: help pages, tables, units, progress bars and error messages."""
