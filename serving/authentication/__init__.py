"""Authentication: tokens, roles, failed attempts, and the addresses a server may listen on."""
