"""Results of commands as tables for people and as JSON for programs."""
