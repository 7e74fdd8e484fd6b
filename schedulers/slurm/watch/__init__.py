"""Watcher: extends time limits of running jobs, and reports outcomes of ended ones."""
