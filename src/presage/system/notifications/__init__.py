"""Notifications of events, sent to a webhook."""
