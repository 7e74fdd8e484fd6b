"""The page of `dvc plots` with Vega inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from presage.pipelines.evaluation import plot_template

pytest.importorskip("vl_convert", reason="`make docs` installs vl-convert")


def test_the_template_loads_nothing(tmp_path, monkeypatch):
    target = tmp_path / "folder" / "plots.html"
    monkeypatch.setattr(sys, "argv", ["plot_template", str(target)])
    plot_template.main()

    head, _, script = target.read_text().partition("<script>")
    script, _, rest = script.rpartition("</script>")
    assert "vegaEmbed" in script
    assert "</script" not in script
    assert "{plot_divs}" in rest
    assert "{scripts}" not in head + script + rest
    assert " src=" not in head + rest


def test_a_browser_without_a_network_draws_the_plots(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="extra `browser`")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    (tmp_path / "losses.csv").write_text("step,loss\n0,3\n1,2\n2,1\n")
    (tmp_path / "plots.html").write_text(plot_template.plot_template())
    for words in (
        ("init", "--no-scm", "--quiet"),
        ("plots", "show", "losses.csv", "-x", "step", "--html-template", "plots.html", "-o", "out"),
    ):
        subprocess.run(
            [sys.executable, "-m", "dvc", *words], cwd=tmp_path, check=True, capture_output=True,
            env={**os.environ, "HOME": str(tmp_path), "DVC_NO_ANALYTICS": "1"},
        )  # fmt: skip

    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "out" / "index.html").as_uri())
        page.locator(".vega-embed canvas, .vega-embed svg").first.wait_for(timeout=30_000)
        assert errors == []
        browser.close()
