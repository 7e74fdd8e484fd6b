"""The report page of simulations, as text and in headless Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest

from presage.errors import ConfigError
from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.policy import Policy
from presage.schedulers.faults.fault import Fault
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from presage.schedulers.report import run_comparison
from presage.schedulers.report.figures import distribution, format_time_span, make_columns
from presage.schedulers.report.page import render
from presage.schedulers.report.run_comparison import (
    Run,
    compare_metrics,
    compare_runs,
    read_run,
)
from presage.schedulers.report.size_charts import HEIGHT, make_size_charts
from presage.schedulers.report.ties import best_text, tie_sentences
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.simulator.test_simulator import Sizes
from tests.support.chromium import CONTRAST

LARGEST = 1_500_000  # bytes, with 20,000 jobs


class Halves(Fifo):
    """Policy that allocates half devices to every job."""

    def decide(self, state, forecasts, rng):
        capacity, actions = state.capacity(), []
        for waiting in state.pending:
            free = [
                d
                for d in range(state.cluster.devices)
                if capacity.compute_milli[d] >= FULL_DEVICE_MILLI // 2
            ]
            if len(free) < waiting.gpus:
                break
            allocations = tuple(
                Allocation(device, FULL_DEVICE_MILLI // 2, GIB) for device in free[: waiting.gpus]
            )
            capacity.take(allocations)
            actions.append(Start(waiting.job_id, allocations))
        return actions


POLICIES: dict[str, type[Policy]] = {
    "fifo": Fifo,
    "srtf": ShortestRemainingFirst,
    "<b>halves": Halves,
}
LAST = "a node/job-199"
SECTIONS = ["metrics", "timeline", "time", "jct", "gangs", "users", "reading"]


def simulations(jobs, ground_truth, devices, faults=()):
    return {
        name: simulated(devices, policy(), jobs, ground_truth, faults=faults)
        for name, policy in POLICIES.items()
    }


@pytest.fixture(scope="module")
def simulated_jobs():
    """Simulate 200 jobs of up to 8 devices on 12, one of them too large; a node fails."""
    rng, now_s, jobs, duration_s = Random(7), 0.0, [], {}
    for i in range(200):
        now_s += rng.expovariate(1 / 400)
        gpus = 99 if i == 50 else rng.choice((1, 1, 1, 2, 4, 8))
        costs = Checkpointing(interval_s=600.0, cost_s=10.0, restart_s=20.0)
        jobs.append(
            job(f"a node/job-{i:03d}", now_s, gpus=gpus, model=f"<i>net</i> {i % 3}",
                user=f"u{i % 2}", checkpointing=costs)
        )  # fmt: skip
        duration_s[jobs[-1].job_id] = rng.lognormvariate(7, 1.2)
    ground_truth = Sizes(duration_s, dict.fromkeys(duration_s, 1))
    faults = [Fault(30_000.0, 1, repaired=False), Fault(45_000.0, 1, repaired=True)]
    return simulations(jobs, ground_truth, cluster(4, 8), faults)


def render_page(runs, **more):
    return render(runs, title="jobs & devices", facts={"trace": "<made up>"}, **more)


@pytest.fixture(scope="module")
def content(simulated_jobs):
    return render_page(simulated_jobs)


def test_equal_simulations_give_equal_bytes_and_texts_are_escaped(content, simulated_jobs):
    assert render_page(simulated_jobs) == content
    assert "<made up>" not in content
    assert "&lt;made up&gt;" in content
    assert "://" not in re.sub(r'<script type="application/octet-stream".*?</script>', "", content)


def test_the_best_cells_are_those_with_the_best_text():
    def columns(*durations_s):
        found = {
            str(one): compute_metrics(simulated(cluster(1), Fifo(), [job("a")], {"a": one}))
            for one in durations_s
        }
        return {column.key: column for column in make_columns(found)}

    def shown(column):
        return [(cell.text, cell.is_best) for cell in column.cells.values()]

    close = columns(36000.0, 36001.0, 72000.0)
    assert close["makespan_s"].unit == "h"
    assert shown(close["makespan_s"]) == [("10.00", True), ("10.00", True), ("20.00", False)]
    assert shown(close["device_utilization"]) == [("100.0", False)] * 3
    assert shown(columns(36000.0, 36001.0)["makespan_s"]) == [("10.00", False)] * 2
    assert columns(60.0)["makespan_s"].unit == "s"
    assert "overflows" not in close


def metrics_of(duration_s, **more):
    """Return the metrics of one job on one device."""
    found = compute_metrics(simulated(cluster(1), Fifo(), [job("a")], {"a": duration_s}))
    return replace(found, **more)


def test_ties_are_stated_in_words():
    short, long = metrics_of(60.0), metrics_of(120.0)

    def best(**found):
        return {column.key: best_text(column) for column in make_columns(found)}

    assert best(a=short, b=short, c=long)["makespan_s"] == "a and b tie"
    assert best(a=long, b=short, c=long)["makespan_s"] == "b"
    assert best(a=short, b=short)["makespan_s"] == "all equal"
    assert best(a=short, b=short)["jobs"] == ""
    many = dict.fromkeys("abcd", short) | {"e": long}
    assert best(**many)["makespan_s"] == "4 of 5 tie"

    assert tie_sentences({"a": short, "b": long}) == []
    assert tie_sentences({"a": short, "b": long, "c": short, "d": long, "e": short}) == [
        "All metrics of a, c and e are equal.",
        "All metrics of b and d are equal.",
    ]


def test_two_runs_are_compared_metric_by_metric():
    before = metrics_of(7200.0, unfair_fraction=0.25, preemptions=3)
    after = metrics_of(5400.0, unfair_fraction=0.5, preemptions=5, average_queue_s=None)

    found = {one.key: one for one in compare_metrics(before, after)}

    def shown(key):
        one = found[key]
        return one.before, one.after, one.difference, one.verdict

    assert shown("makespan_s") == ("120.00", "90.00", "-25.0 %", "better")
    assert shown("unfair_fraction") == ("25.0", "50.0", "+25.0 points", "worse")
    assert shown("device_utilization") == ("100.0", "100.0", "+0.0 points", "equal")
    assert shown("preemptions") == ("3", "5", "+2", "")
    assert shown("average_queue_s") == ("0.00", "-", "", "")


def test_only_policies_of_both_runs_are_compared():
    one = metrics_of(60.0)
    before = Run({"trace": "a", "load": "2"}, {"fifo": one, "old": one})
    after = Run({"trace": "b", "seed": "1"}, {"new": one, "fifo": one})

    found = compare_runs(before, after)

    assert list(found.changes) == ["fifo"]
    assert found.left_out == ["new", "old"]
    assert found.settings == {"trace": ("a", "b"), "load": ("2", ""), "seed": ("", "1")}
    assert compare_runs(Run({}, before.metrics), after).settings == {}  # unknown, not different
    with pytest.raises(ConfigError, match="has the policies fifo, old, this run has new; simulate"):
        compare_runs(before, Run({}, {"new": one}))


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"policies": []}', '{"policies": {"a": 1}}', '{"policies": {"a": {}}}',
        '{"policies": {"a": {"jobs": "<b>"}}}', '{"policies": {}, "settings": 3}', "\x00",
    ],
)  # fmt: skip
def test_a_file_that_is_no_run_is_rejected(tmp_path, content):
    path = tmp_path / "earlier.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="is no output of this version's `presage simulate"):
        read_run(path)


@pytest.mark.parametrize(
    "changes",
    [{"average_jct_s": float("nan")}, {"bytes_by_level": "<b>"}, {"bytes_by_level": {"node": "1"}}],
)
def test_a_run_with_values_that_are_no_numbers_is_rejected(tmp_path, changes):
    fields = dict.fromkeys(run_comparison._FIELDS, 1) | {"bytes_by_level": None}
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps({"policies": {"a": fields}}))
    assert read_run(path).metrics["a"].jobs == 1
    path.write_text(json.dumps({"policies": {"a": fields | changes}}))
    with pytest.raises(ConfigError, match="is no output of this version's `presage simulate"):
        read_run(path)


def test_a_deeply_nested_file_is_rejected(tmp_path):
    path = tmp_path / "earlier.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="is no output of this version's `presage simulate"):
        read_run(path)


def test_a_run_that_does_not_exist_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; name a file"):
        read_run(tmp_path / "earlier.json")


def test_durations_have_at_most_two_units():
    assert [format_time_span(s) for s in (0, 2.5, 59.94, 61, 3600, 5400, 86399, 266_400)] == [
        "0 s", "2.5 s", "59.9 s", "1 min 1 s", "1 h", "1 h 30 min", "24 h", "3 d 2 h",
    ]  # fmt: skip


def test_a_distribution_has_times_and_cumulative_fractions():
    at_s, part = distribution([3.0, 1.0, 2.0, 2.0])
    assert (at_s.tolist(), part.tolist()) == ([1, 2, 2, 3], [0.25, 0.5, 0.75, 1.0])
    at_s, part = distribution(range(100_000))
    assert len(at_s) <= 400
    assert (at_s[-1], part[-1]) == (99_999, 1.0)


def test_sizes_of_elastic_jobs_are_drawn_over_time():
    jobs = [job("long", gpus=4, min_gpus=1), job("short <b>", 100.0)]
    durations = {"long": 1000.0, "short <b>": 5000.0}
    urgent = job("urgent", 200.0, gpus=2, latency_sensitive=True)
    runs = {
        name: simulated(cluster(4), policy, [*jobs, urgent], {**durations, "urgent": 100.0})
        for name, policy in (("fifo", Fifo()), ("elastic", Elastic(hold_s=0.0)))
    }
    charts = make_size_charts(runs)

    assert [(one.policy, one.job_id, one.largest) for one in charts] == [("elastic", "long", 4)]
    assert charts[0].resizes >= 2
    assert charts[0].path.startswith(f"M0.0 {HEIGHT}V2.0H")
    assert charts[0].path.endswith(f"V{HEIGHT}.0")
    assert 'id="sizes"' in render_page(runs)
    assert 'id="sizes"' not in render_page({"fifo": runs["fifo"]})
    assert make_size_charts({}) == []


# In the browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(content, tmp_path_factory):
    target = tmp_path_factory.mktemp("report") / "out.html"
    target.write_text(content)
    return target


@pytest.fixture
def show(open_page, path):
    """Return a function that opens a page and waits until it is drawn."""

    def shown(which=path, **options):
        page = open_page(which, **options)
        page.wait_for_selector("body[data-drawn]")
        return page

    return shown


def drawn_after(page, act):
    """Perform an action and wait until the page is drawn again."""
    before = page.evaluate("Number(document.body.dataset.drawn)")
    act()
    page.evaluate(
        """before => new Promise((done) => {
            const check = () =>
                document.body.dataset.drawn > before ? done() : requestAnimationFrame(check);
            check();
        })""",
        before,
    )


def shown_range(page):
    values = page.evaluate("({...document.getElementById('range').dataset})")
    return {key: float(value) for key, value in values.items()}


def colours(page, selector):
    """Return the number of different colours of a canvas."""
    return page.eval_on_selector(
        selector,
        """c => new Set(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height)
            .data.buffer)).size""",
    )


def canvas_box(page):
    return page.locator(".gantt:not([hidden]) canvas").first.bounding_box()


def test_the_page_loads_nothing_else_and_logs_no_errors(show, path):
    page = show()

    assert page.asked == [path.as_uri()]
    assert page.said == []
    assert page.eval_on_selector_all("main > section", "all => all.map((s) => s.id)") == SECTIONS


def test_the_table_has_the_metrics(show, simulated_jobs):
    cells = show().eval_on_selector_all(
        "td[data-figure]", "all => all.map((c) => [c.dataset.figure, c.dataset.value])"
    )
    shown = dict(cells)
    for policy, done in simulated_jobs.items():
        found = compute_metrics(done)
        for figure in ("jobs", "average_jct_s", "p99_jct_s", "makespan_s", "device_utilization"):
            assert float(shown[f"{policy}.{figure}"]) == getattr(found, figure)
    assert shown["fifo.rejected"] == "1"


def test_all_columns_fit_a_laptop_and_names_of_metrics_stay_visible(show, tmp_path):
    def width(page, what):
        return page.eval_on_selector("#metrics .scroll", f"e => e.{what}")

    page = show()
    assert width(page, "scrollWidth") <= width(page, "clientWidth")

    run = simulated(cluster(1), Fifo(), [job("a")], {"a": 60.0})
    target = tmp_path / "many.html"
    target.write_text(render_page({f"packing:most_members={n}": run for n in range(2, 14)}))
    page = show(target)
    assert width(page, "scrollWidth") > width(page, "clientWidth")
    page.locator("#metrics .scroll").focus()
    page.keyboard.press("End")
    page.eval_on_selector("#metrics .scroll", "e => e.scrollLeft = e.scrollWidth")
    box = page.locator("#metrics tbody th").first.bounding_box()
    assert box["x"] >= 0
    assert page.locator("#metrics thead th").last.bounding_box()["x"] < 1280


def test_the_page_has_ties_and_changes_since_an_earlier_run(show, tmp_path):
    runs = {
        name: simulated(cluster(1), Fifo(), [job("a")], {"a": duration_s})
        for name, duration_s in (("fifo", 60.0), ("<b>other", 60.0))
    }
    now = Run({"load": "2"}, {name: compute_metrics(run) for name, run in runs.items()})
    before = Run({"trace": "x"}, {"<b>other": metrics_of(90.0), "gone": metrics_of(1.0)})
    target = tmp_path / "compared.html"
    target.write_text(render_page(runs, comparison=compare_runs(before, now)))
    page = show(target)

    assert page.inner_text("#metrics .tie") == "All metrics of fifo and <b>other are equal."
    assert "all equal" in page.inner_text("#metrics tbody")
    text = page.inner_text("#comparison")
    assert "only one run has them: fifo, gone" in text
    assert re.search(r"load\s+default before, 2 now", text)
    assert re.search(r"makespan\ss\s+90\.00\s+60\.00\s+.33\.3\s%\s+better", text)
    assert page.said == []


def test_every_chart_is_drawn(show):
    page = show()
    for chart in ("overview", "busy", "allocated", "pending", "jcts", "waits"):
        assert colours(page, f"#{chart}") > 5, chart
    assert colours(page, ".gantt:not([hidden]) canvas") > 20


def test_wheel_keys_drag_and_buttons_change_the_view(show):
    page = show()
    page.locator("#timeline").scroll_into_view_if_needed()
    everything = shown_range(page)
    box = canvas_box(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + 80
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)  # the canvas is not focused
    page.wait_for_timeout(200)
    assert shown_range(page) == everything

    box = canvas_box(page)
    y = box["y"] + 80
    page.mouse.click(x, y)
    drawn_after(page, lambda: page.mouse.wheel(0, -300))
    closer = shown_range(page)
    assert closer["until"] - closer["from"] < 0.6 * everything["until"]
    assert (closer["first"], closer["last"]) == (0, 12)
    drawn_after(page, lambda: page.keyboard.press("]"))
    assert shown_range(page)["last"] - shown_range(page)["first"] == pytest.approx(7.5)
    page.mouse.down()
    drawn_after(page, lambda: page.mouse.move(x - 100, y))
    page.mouse.up()
    assert shown_range(page)["from"] > closer["from"]
    drawn_after(page, lambda: page.click("#reset"))
    assert shown_range(page) == everything


def test_tabs_select_a_policy_and_all_can_be_shown(show):
    page = show()
    visible = "all => all.filter((g) => !g.hidden).map((g) => g.querySelector('h3').innerText)"
    drawn_after(page, lambda: page.click("#tab1"))
    assert page.get_attribute("#tab1", "aria-selected") == "true"
    assert page.eval_on_selector_all(".gantt", visible) == ["srtf"]
    drawn_after(page, lambda: page.press("#tab1", "ArrowRight"))
    assert page.eval_on_selector_all(".gantt", visible) == ["<b>halves"]
    drawn_after(page, lambda: page.check("#all"))
    assert page.eval_on_selector_all(".gantt", visible) == list(POLICIES)


@pytest.mark.parametrize("by", ["wait", "user"])
def test_bars_can_be_coloured_by_waiting_time_and_user(show, by):
    page = show()
    before = page.inner_text("#colours")
    drawn_after(page, lambda: page.select_option("#colour", by))
    assert page.inner_text("#colours") != before
    assert ("u1" in page.inner_text("#colours")) == (by == "user")


def test_a_job_can_be_found_and_has_a_tooltip(show, simulated_jobs):
    page = show()
    page.fill("#find", LAST)
    drawn_after(page, lambda: page.press("#find", "Enter"))
    page.locator("#timeline").scroll_into_view_if_needed()
    (job_over,) = [one for one in simulated_jobs["fifo"].results if one.job.job_id == LAST]
    (allocations,) = [e[3] for e in simulated_jobs["fifo"].log.entries if e[1:3] == ("start", LAST)]
    view, box = shown_range(page), canvas_box(page)
    assert view["from"] <= job_over.first_start_s < job_over.end_s <= view["until"]
    row = (box["height"] - 29) / (view["last"] - view["first"])
    page.mouse.move(
        box["x"] + 84 + (box["width"] - 98) / 2,
        box["y"] + 3 + (allocations[0].device + 0.5 - view["first"]) * row,
    )
    tip = page.inner_text("#tip")
    for words in (LAST, "<i>net</i> 1", "u1", "fifo", f"\n{job_over.job.gpus}\n", "waited", "JCT"):
        assert words in tip
    page.fill("#find", "unknown")
    page.press("#find", "Enter")
    assert page.inner_text("#message") == "no job has the id unknown"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_at_any_width_and_in_both_themes(show, width, scheme):
    page = show(width=width, scheme=scheme)
    paper = page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor")

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("body", ".muted", "td.best", "thead th", "nav a", ".legend"):
        ink = page.eval_on_selector(selector, "e => getComputedStyle(e).color")
        assert page.evaluate(CONTRAST, [paper, ink]) >= 4.5, selector


def test_a_trace_without_jobs_gives_a_page(show, tmp_path):
    target = tmp_path / "none.html"
    target.write_text(render_page(simulations([], {}, cluster(1))))

    assert show(target).said == []


def test_many_jobs_are_blended_and_separate_after_zooming_in(show, tmp_path):
    rng = Random(3)
    jobs = [
        job(f"application_{i:05d}", 60.0 * i, gpus=rng.choice((1, 2, 8))) for i in range(20_000)
    ]
    ground_truth = {one.job_id: rng.expovariate(1 / 600) for one in jobs}
    target = tmp_path / "many.html"
    done = {"fifo": simulated(cluster(*[8] * 8), Fifo(), jobs, ground_truth)}
    target.write_text(render_page(done))
    assert target.stat().st_size < LARGEST

    page = show(target)
    mixed = colours(page, ".gantt canvas")
    assert mixed > 1000  # shades
    page.locator(".gantt canvas").first.focus()
    for _ in range(12):
        drawn_after(page, lambda: page.keyboard.press("+"))
    assert 10 < colours(page, ".gantt canvas") < mixed
