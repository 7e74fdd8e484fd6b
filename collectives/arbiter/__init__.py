"""Arbiter of a switch domain: which AllReduces of which jobs run on the switches.

- ``rank_connection``: connection of a rank, in a thread of its own; part of the user's job.
- ``planner``: pure; decisions of all jobs from what their ranks report.
- ``arbiter``: jobs, controller, switches and journal, in one event loop.
- ``server``: gRPC, authentication and metrics.
- ``client``: status, explanations and the time line, for the command line.

Decision record 49 has the reasons.
"""
