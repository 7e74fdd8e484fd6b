"""Slow state of an arbiter as the text of its journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.agreement import AgreementName, Controller
from presage.collectives.arbiter.jobs import Job
from presage.collectives.core.in_band_controller import InBandController
from presage.errors import JournalError


class SavedState(NamedTuple):
    """Content of a journal: see ``Arbiter``."""

    controller: Controller
    incarnation: int
    incarnations: Mapping[str, int]
    jobs: tuple[Job, ...]


def to_text(
    controller: Controller, incarnation: int, incarnations: Mapping[str, int], jobs: Iterable[Job]
) -> str:
    """Return the text of a state."""
    rows = [
        {
            "name": job.name,
            "size": job.size,
            "token": job.token.hex(),
            "epoch": job.epoch,
            "switches": job.switches,
            "is_member": job.is_member,
            "was_member": job.was_member,
            "views": [agreement.view_to_row(job.views[epoch]) for epoch in sorted(job.views)],
        }
        for job in jobs
    ]
    return json.dumps(
        {
            "incarnation": incarnation,
            "incarnations": dict(sorted(incarnations.items())),
            "jobs": rows,
            "controller": agreement.to_json(controller),
        },
        separators=(",", ":"),
    )


def parse(text: str, agreement_name: AgreementName) -> SavedState:
    """Return the state in a journal's text; that of a new domain for an empty text.

    Raises
    ------
    JournalError
        The text is no state, or is of the other agreement.
    """
    if not text:
        return SavedState(agreement.new_controller(agreement_name), 0, {}, ())
    try:
        content = json.loads(text)
        controller = agreement.from_json(content["controller"])
        jobs = tuple(_job_of(row) for row in content["jobs"])
        saved = SavedState(controller, content["incarnation"], content["incarnations"], jobs)
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"the journal has no state of an arbiter ({error}); move it away to begin "
            "with an empty one"
        ) from error
    found = "in_band" if isinstance(controller, InBandController) else "two_phase"
    if found != agreement_name:
        raise JournalError(
            f"the journal is of --agreement {found}; use that, or a new journal once all jobs of "
            "the domain have ended"
        )
    return saved


def _job_of(row: Mapping[str, Any]) -> Job:
    views = [agreement.view_of_row(view) for view in row["views"]]
    return Job(
        row["name"],
        row["size"],
        bytes.fromhex(row["token"]),
        row["epoch"],
        tuple(row["switches"]),
        row["is_member"],
        row["was_member"],
        views={view.epoch: view for view in views},
    )
