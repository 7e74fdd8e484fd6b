"""Answers to "when will it start, and what if?": simulations from the present state onwards."""
