"""``presage elastic``: one file per command."""
