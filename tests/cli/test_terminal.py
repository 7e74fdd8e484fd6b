"""Nothing that a user, a file or the network says can do more to a terminal than be read on it."""

from __future__ import annotations

import ast
import contextlib
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from rich.cells import cell_len

import presage
from presage.cli import app as cli
from presage.cli.measuring import diagnosis
from presage.cli.output import (
    benchmark,
    drift,
    forecasts,
    job_features,
    lineage,
    releases,
    simulation,
    tables_written,
    trace,
)
from presage.cli.scheduling.cluster import tables as cluster_tables
from presage.cli.scheduling.cluster.listing.job_table import job_table
from presage.cli.scheduling.cluster.listing.node_table import node_table
from presage.features.device.device import find_device
from presage.features.forecast import Forecast
from presage.models.drift.drift_test import Row as DriftRow
from presage.models.gate.release_gate import Decision
from presage.models.registry.lineage import ReleaseRecord, TrainingUsage
from presage.models.registry.promotion_journal import Entry
from presage.models.registry.registered_release import RegisteredRelease
from presage.pipelines.importers.import_run import Summary as Imported
from presage.pipelines.profiling.campaign.merge import Merged
from presage.pipelines.stages import gate_decision as decision
from presage.pipelines.stages.ingest import IngestResult
from presage.schedulers.simulator.results.schedule_metrics import Metrics
from presage.schedulers.traces.summary import Summary
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.predictor.prediction_backend import ColocationForecast, JobForecast
from presage.system.text import terminal
from presage.system.text.printable import error_line, printable
from tests.features.examples import features
from tests.schedulers.live.ui.stand_in import StandIn, listing, running, waiting
from tests.support.hostile_text import ATTACKS, check_safe, made, message, texts
from tests.support.slow_tests import examples

SOURCE = Path(presage.__file__).parent
# Of rich: all of it, or a bar's columns.
USES_RICH = {
    "system/text/terminal.py": "rich",
    "system/text/progress.py": "rich.progress",
    "pipelines/stages/profile.py": "rich.progress",
}


def sources() -> list[tuple[str, ast.Module]]:
    """Every module that is ours, by its path."""
    paths = [*SOURCE.glob("*.py"), *SOURCE.glob("*/**/*.py")]
    return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in paths]


def imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_only_the_terminal_module_imports_rich():
    """So no cell, title or sentence is rendered but by its console, which escapes them."""
    for path, tree in sources():
        used = {name for name in imports(tree) if name.split(".")[0] == "rich"}
        allowed = USES_RICH.get(path)
        assert all(allowed and name.startswith(allowed) for name in used), (path, used)


def test_only_say_prints_text():
    """``typer.echo`` is left for JSON, whose encoder escapes by itself."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.echo":
                assert ast.unparse(node.args[0]).startswith("json.dumps("), (path, node.lineno)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "sys.stdout.write",
                "sys.stderr.write",
                "print",
            ):
                said = ast.unparse(node.args[0])
                assert "error_line(" in said or "error" not in said, (path, node.lineno)


def registered(text: str) -> Any:
    return made(RegisteredRelease, text, decision={"outcome": text, "reason": text})


def manifest(text: str) -> dict[str, Any]:
    device = {
        "kind": text, "cores": 1, "memory_bytes": 1, "peak_flops_per_s": {"fp32": 1.0},
        "memory_bandwidth_bytes_per_s": 1.0,
    }  # fmt: skip
    return {
        "metrics": {text: {text: {"mlp": {text: 1.0}}}}, "versions": {text: text},
        "data_digest": text, "trained_devices": [text], "devices": [device],
    }  # fmt: skip


def lineage_of(text: str) -> dict[str, Any]:
    table = {"rows": 1, "sha256": text}
    rows = {
        "campaign": text, "machine": text, "executions": 1, "colocations": 1,
        "held_out_executions": 1, "held_out_colocations": 1,
    }  # fmt: skip
    told = {
        "folders": [{"folder": text, "tables": {text: table}, "campaigns": [text]}], "rows": [rows],
    }  # fmt: skip
    before = {"release_id": text, "networks": {text: text}, "learnt_from": told}
    run = {
        "registered_at": text, "registered_by": text, "run_id": text, "git_commit": text,
        "git_changed": [text], "dvc_lock_sha256": text,
    }  # fmt: skip
    return {
        "version": 1, "folder": text, "release_id": text, "aliases": [text],
        "predictors": {text: text}, "run": run, "data_digest": text,
        "learnt_from": told | {"began_with": before}, "tables_here": {text: {text: text}},
    }  # fmt: skip


def print_cluster(text: str) -> None:
    listed = message(pb.ListResponse, text)
    explained = message(pb.Explanation, text)
    for phase in (pb.RUNNING, pb.WAITING):
        listed.jobs[0].phase = explained.status.phase = phase
        for table in (
            job_table(listed, why=True),
            node_table(listed.nodes),
            cluster_tables.now_table(explained),
            cluster_tables.forecast_table(explained),
            cluster_tables.candidate_table(explained),
            cluster_tables.history_table(explained),
        ):
            assert table.row_count or phase == pb.WAITING
            terminal.print_table(table)


def print_models(text: str) -> None:
    release = registered(text)
    releases.print_releases([release])
    releases.print_release(release, manifest(text))
    row = {"predictor": text, "split": text, "metric": text, "a": 1.0, "b": 2.0, "better": "a"}
    releases.print_diff([text, text], [row], {text: (text, text)})
    lineage.print_lineage(lineage_of(text))
    known = ReleaseRecord({"release_id": text}, None, release)
    lineage.print_learnt([made(TrainingUsage, text, release=known)], text)
    releases.print_history([made(Entry, text)])


def print_pipelines(text: str) -> None:
    decision.print_table(made(Decision, text))
    tables_written.print_import(made(Imported, text), as_json=False)
    done = made(IngestResult, text, rows={"outcomes": 1, text: 1}, quarantined={text: 1})
    tables_written.print_ingested(done, Path("x"), as_json=False)
    tables_written.print_merged(Merged({text: 1}, 1), Path("x"), as_json=False)


def print_forecasts(text: str) -> None:
    job = features()
    job = replace(job, job=replace(job.job, name=text or "-", family=text))
    device = replace(find_device("v100"), kind=text)
    one = Forecast(1.0, 1.0, 1.0, "bytes", True, text)
    forecasts.print_forecasts([job], [JobForecast(one, one, one, one)], device, as_json=False)
    together = ColocationForecast((one,), True, 1.0)
    forecasts.print_colocation([job], together, device, as_json=False)
    job_features.print_features(job, device, "published", as_json=False)


def print_others(text: str) -> None:
    diagnosis.print_report(
        [diagnosis.Finding(text, text, ok) for ok in (True, False, None)], as_json=False
    )
    run = simulation.PrintedRun({text: made(Metrics, text)}, {text: text}, {text: 1}, {}, {}, None)
    simulation.print_run(run, as_json=False)
    simulation.print_compared([{text: text}])
    trace.print_summary(made(Summary, text))
    row = made(DriftRow, text, quantity="slowdown")
    predictor = SimpleNamespace(release_id=text)
    answered = SimpleNamespace(
        predictor=predictor, outcomes=3, other_releases=1, without_release=1, refused=1, missing=1
    )
    drift.print_rows(answered, [row], show_all=True)  # type: ignore[arg-type]
    slices = {text: {key: {"mape": 1.0, "rows": 1} for key in (text, f"{text}b")}}
    result = SimpleNamespace(
        task=text, split=text, rows=1, unit=text, mlp={text: 1.0}, baselines={text: {}},
        seconds=1.0, seed=1, slices=slices, floor={},
    )  # fmt: skip
    benchmark.print_result(result, as_json=False)  # type: ignore[arg-type]
    terminal.say(text)


PRINTERS = (print_cluster, print_models, print_pipelines, print_forecasts, print_others)


@pytest.mark.parametrize("print_all", PRINTERS)
@settings(max_examples=examples(15), deadline=None)
@given(text=texts)
def test_no_text_in_a_table_controls_the_terminal(print_all, text):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_all(text)
    check_safe(printed.getvalue())


@pytest.mark.parametrize("text", ATTACKS)
def test_every_known_attack_is_shown_in_the_list_of_jobs(text, capsys):
    print_cluster(text)
    printed = capsys.readouterr().out
    check_safe(printed)
    assert printed.count("┏") == printed.count("┗") + printed.count("┡")  # no line was forged


@given(texts)
def test_any_error_is_one_line(text):
    line = error_line(ValueError(text))
    check_safe(line)
    assert "\n" not in line


def test_text_of_visible_characters_stays_unchanged():
    for text in ("job-1 [gpu]", "名前", "שלום", "naïve", "a\\nb", "résumé/π"):
        assert printable(text) == text


def test_invisible_characters_are_escaped_and_long_text_is_truncated():
    assert printable("a\x1b[1m\u202eb\u200b\n") == r"a\x1b[1m\u202eb\u200b\n"
    assert printable("x" * 50, 10) == "xxxxxxxxx…"
    assert printable("名" * 50, 10) == "名名名名…"
    assert len(printable("x" * 10**6)) == 1000


def test_an_invalid_option_is_one_line_and_exit_status_2(monkeypatch, capsys):
    for words in (["predict"], ["nosuch"], ["predict", "--no\x1b[2Jsuch"], ["models", "show"]):
        monkeypatch.setattr("sys.argv", ["presage", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr().err
        assert end.value.code == 2
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        check_safe(said)


@pytest.mark.parametrize("text", ["[/bold]", "\x1b[2J\x1b]0;t\x07", "a\nforged", "\u202eb\u200b"])
def test_responses_of_a_controller_control_no_terminal(text, monkeypatch, capsys):
    listed = listing([running("a", user=text, reason=text), waiting(text or "b", 1)])
    listed.policy = listed.forecaster_error = text
    listed.nodes[0].name = listed.nodes[0].reason = text
    with StandIn(listed) as controller:
        for words in (["ps", "--all"], ["ps", "--nodes"], ["explain", "a"], ["explain", text]):
            run(monkeypatch, "cluster", words[0], "--controller", controller.target, *words[1:])
            printed = capsys.readouterr()
            check_safe(printed.out + printed.err)
            assert printed.out
        assert run(monkeypatch, "cluster", "explain", "--controller", controller.target, "?" + text)
        said = capsys.readouterr().err
        check_safe(said)
        assert said.count("\n") == 1


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The command's exit status."""
    monkeypatch.setattr("sys.argv", ["presage", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_lineage_is_complete_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    digest, folder = "d" * 64, f"data/{'long/' * 20}folder"
    lineage.print_lineage(lineage_of(digest) | {"folder": folder, "version": None})
    printed = capsys.readouterr().out

    assert folder in printed
    assert f"data digest {digest}" in printed
    assert "…" not in printed


LONG = "team-vision/resnet50-imagenet-lr0.1-wd1e-4-seed-3"


def table_of_names() -> Any:
    table = terminal.Table("job", "a heading of words", "text")
    table.add_row(terminal.Name(LONG), "1", "a longer text that is wrapped between its words")
    return table


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_a_table_fits_the_terminal_and_shortens_names_in_the_middle(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal.print_table(table_of_names())
    printed = capsys.readouterr().out

    assert max(map(len, printed.splitlines())) <= columns
    assert "team" in printed
    assert "d-3" in printed
    for word in ("heading", "longer", "wrapped", "between", "words"):
        assert word in printed


def test_a_pipe_gets_complete_names_and_texts(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.print_table(table_of_names())
    printed = capsys.readouterr().out

    assert LONG in printed
    assert "a longer text that is wrapped between its words" in printed


@given(text=texts)
def test_a_shortened_text_fits_and_keeps_both_ends(text):
    text = printable(text)
    for width in (1, 2, 7, 8):
        short = terminal.shorten_middle(text, width)
        assert cell_len(short) <= max(width, 1)
