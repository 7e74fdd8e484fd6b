"""Explanations of scheduling decisions and journal events, as sentences."""
