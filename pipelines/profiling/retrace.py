"""Update of stored graphs after a change of the tracer."""

from __future__ import annotations

from pathlib import Path

from presage.pipelines.profiling.campaign.campaign_tables import CampaignTables, lock_folder
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.running import profile_rows
from presage.pipelines.profiling.zoo import parse


def retrace(folder: Path) -> int:
    """Trace every job of a measured folder again and return the number of jobs.

    Measurements are unchanged. At any moment each job's graph is in ``nodes``.
    """
    with lock_folder(folder):
        tables = CampaignTables(folder)
        old = tables.rows("jobs")
        graphs = {row["job_id"]: trace(parse(row["job_id"])) for row in old}
        distinct = {graph.digest: graph for graph in graphs.values()}
        present = tables.values("nodes", "graph_digest")
        for digest, graph in distinct.items():
            if digest not in present:
                tables.add("nodes", profile_rows.node_rows(graph))
        tables.replace(
            "jobs", [profile_rows.job_row(parse(job), graph) for job, graph in graphs.items()]
        )
        nodes = [row for graph in distinct.values() for row in profile_rows.node_rows(graph)]
        tables.replace("nodes", nodes)
    return len(old)
