"""Spans of the controller: requests, decisions and runs of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from presage.schedulers.live.controller.journal.records import Ended, Placed, Record
from presage.schedulers.live.controller.replayed_state import LiveJob, ReplayedState, Stage
from presage.schedulers.live.tracing.finished_span import record_span
from presage.serving.server.call import Span
from presage.serving.server.tracing import make_span

_OPEN_STREAMS = frozenset({"Attach", "Watch"})  # last for days


class JobSpans:
    """Spans of traced jobs, below the span of their submission.

    ``decide`` lasts as long as the decision that placed the job, ``run`` from the job's first start
    to its end. Jobs that were submitted without tracing have none.

    Parameters
    ----------
    provider : opentelemetry.sdk.trace.TracerProvider
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("presage.controller")

    def of_requests(self) -> Span:
        """Return the spans of requests; streams that stay open have none."""
        of_call = make_span(self._provider)

        def span(method: str, context: Any) -> Any:
            return nullcontext() if method in _OPEN_STREAMS else of_call(method, context)

        return span

    def trace_decision(
        self, state: ReplayedState, records: Iterable[Record], began_ns: int, ended_ns: int
    ) -> None:
        """Record a span for each traced job that a decision placed."""
        for record in records:
            if isinstance(record, Placed) and (job := _traced(state, record.job_id)) is not None:
                record_span(
                    self._tracer,
                    "decide",
                    job.traceparent,
                    begin_ns=began_ns,
                    end_ns=ended_ns,
                    attributes={
                        "presage.job": job.job_id,
                        "presage.attempt": record.attempt,
                        "presage.nodes": ",".join(job.nodes),
                        "presage.reason": record.reason,
                    },
                )

    def trace_ends(self, state: ReplayedState, records: Iterable[Record]) -> None:
        """Record a span for each traced job that has ended."""
        for record in records:
            if isinstance(record, Ended) and (job := _traced(state, record.job_id)) is not None:
                record_span(
                    self._tracer,
                    "run",
                    job.traceparent,
                    begin_ns=round(1e9 * (job.started_unix_s or record.time_unix_s)),
                    end_ns=round(1e9 * record.time_unix_s),
                    attributes={
                        "presage.job": job.job_id,
                        "presage.attempt": record.attempt,
                        "presage.stage": record.stage,
                        "presage.ran_s": record.ran_s,
                    },
                    error=record.reason if record.stage == Stage.FAILED.value else "",
                )


def _traced(state: ReplayedState, job_id: str) -> LiveJob | None:
    job = state.jobs.get(job_id)
    return job if job is not None and job.traceparent else None
