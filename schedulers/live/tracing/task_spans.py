"""Spans of an agent: starts of tasks."""

from __future__ import annotations

import time
from typing import Any

from presage.schedulers.live.agent.connection.lease import boottime_s
from presage.schedulers.live.agent.node_task import NodeTask
from presage.schedulers.live.tracing.finished_span import record_span


class TaskSpans:
    """Spans ``start`` of traced tasks: from the arrival of the order to the start of the process.

    Parameters
    ----------
    provider : opentelemetry.sdk.trace.TracerProvider
    node : str
        Name of the node.
    """

    def __init__(self, provider: Any, node: str) -> None:
        self._tracer, self._node = provider.get_tracer("presage.agent"), node

    def trace_start(self, task: NodeTask) -> None:
        """Record the start of a task, unless its job is not traced."""
        if not task.order.traceparent:
            return
        now_ns = time.time_ns()
        record_span(
            self._tracer,
            "start",
            task.order.traceparent,
            begin_ns=now_ns - round(1e9 * (boottime_s() - task.received_s)),
            end_ns=now_ns,
            attributes={
                "presage.job": task.name[0],
                "presage.attempt": task.name[1],
                "presage.node": self._node,
            },
        )
