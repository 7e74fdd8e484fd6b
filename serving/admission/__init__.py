"""Admission control: bounds on connections, unfinished requests, queued calls and memory."""
