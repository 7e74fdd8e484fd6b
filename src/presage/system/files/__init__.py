"""Files: atomic writes, data folders, and files that a user names."""
