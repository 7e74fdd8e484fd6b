"""Accessibility of all pages by the rules of axe-core: wide and narrow, light and dark."""

from __future__ import annotations

import time
from random import Random

import pytest

from presage.cli.quickstart.forecast_page import forecast_page
from presage.pipelines.evaluation.assessment import assess
from presage.pipelines.evaluation.report.evaluation_page import write_report
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.report.page import render
from presage.schedulers.report.run_comparison import Run, compare_runs
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.cli.quickstart.test_quickstart import on
from tests.pipelines.evaluation.forecast_examples import forecasts, metrics_of
from tests.schedulers.clusters import cluster, job, simulated
from tests.schedulers.live.ui.conftest import LONG_MS, served
from tests.schedulers.live.ui.stand_in import elastic, large
from tests.schedulers.live.ui.test_history_pages import Recording, ended, point

CLUSTER_PAGES = (
    "", "history?span=hour", "history?span=week", "ended", "jobs/spirals", "actions?do=hold&name=a",
)  # fmt: skip


def simulation_report():
    """Return a report with users, sizes of elastic jobs, ties, and an earlier run."""
    rng = Random(1)
    jobs = [
        job(f"j{i}", 40.0 * i, gpus=rng.choice((1, 2)), min_gpus=1, max_gpus=4, user=f"u{i % 3}")
        for i in range(30)
    ]
    durations_s = {one.job_id: rng.lognormvariate(5, 1) for one in jobs}
    runs = {
        name: simulated(cluster(4), policy, jobs, durations_s)
        for name, policy in (("fifo", Fifo()), ("same", Fifo()), ("elastic", Elastic(hold_s=0.0)))
    }
    metrics = {name: compute_metrics(run) for name, run in runs.items()}
    before = Run({"load": "2"}, {"fifo": metrics["elastic"], "old": metrics["fifo"]})
    comparison = compare_runs(before, Run({"load": "1"}, metrics))
    return render(runs, title="jobs", facts={"trace": "t"}, comparison=comparison)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write the pages that are files; return their addresses by name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "simulation.html").write_text(simulation_report())
    write_report(assess(metrics_of(forecasts()), forecasts()), folder / "evaluation.html")
    devices = [on("t4", 1, 2, 4), on("k80", 3, 5, 9)]
    page = forecast_page("bert/b8", {"job": "bert/b8"}, devices)
    (folder / "quickstart.html").write_text(page)
    return {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def live():
    """Serve the pages of a cluster in which every state occurs; return their address."""
    now_s = time.time() // 60 * 60
    found = large(4, 4, 30)
    sizes = ((now_s - 90, 1, "it starts"), (now_s - 40, 3, "devices are idle"))
    found.jobs.append(elastic("spirals", (("node-00", 0), ("node-01", 0)), sizes))
    found.jobs.extend([ended("e1"), ended("e2", pb.FAILED)])
    found.nodes[0].devices[0].temperature_c, found.nodes[0].devices[0].power_w = 61.0, 412.0
    found.client, found.client_roles[:] = "ada", ["admin"]
    points = [point(age, age % 7, jobs=age % 3, now_s=now_s) for age in range(50, 0, -1)]
    with Recording(found) as stand_in:
        stand_in.history = pb.HistoryResponse(points=points, has_errors=True)
        with served(stand_in.target, allow_actions=True) as address:
            yield address


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light-wide", "dark-narrow"])
def page(request, browser):
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = context.new_page()
    opened.set_default_timeout(LONG_MS)
    yield opened
    context.close()


def violations(page):
    """Return the rule, the reason and the element of each violation on a page."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-core is not installed: pip install 'presage[browser]'",
    )
    found = axe.Axe().run(page).response
    assert len(found["passes"]) >= 10  # rules that were applied
    return [
        (one["id"], node["html"][:200], node["failureSummary"])
        for one in found["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", ["simulation", "evaluation", "quickstart"])
def test_pages_in_files_violate_no_rule(files, page, name):
    page.goto(files[name])
    assert violations(page) == []


@pytest.mark.parametrize("path", CLUSTER_PAGES)
def test_pages_of_a_cluster_violate_no_rule(live, page, path):
    page.goto(live)
    page.goto(f"{live.partition('?')[0]}{path}")
    assert violations(page) == []


def test_a_violation_is_found(page):
    page.set_content("<html><title>x</title><body><main><h1>x</h1><img src='data:,'></main>")
    assert {"html-has-lang", "image-alt"} == {rule for rule, *_ in violations(page)}
