"""Operator graphs of public models, for importers whose sources only name the model."""
