"""Commands around the prediction service."""
