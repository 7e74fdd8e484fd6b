"""Commands that train, evaluate and manage releases."""
