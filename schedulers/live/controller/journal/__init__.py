"""Write-ahead journal of the controller, on SQLite or PostgreSQL."""
