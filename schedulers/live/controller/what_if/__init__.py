"""Answers of the controller to "when will it start, and what if?"."""
