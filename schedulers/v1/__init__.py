"""The live cluster's protocol."""
