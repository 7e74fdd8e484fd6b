"""History of a live cluster: a sample of its state each minute, in a file beside the journal."""
