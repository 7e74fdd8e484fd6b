"""Web page of a live cluster; read-only unless actions are allowed."""
