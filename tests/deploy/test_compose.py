"""The compose file: valid by its specification, confined services, and files that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from presage.serving.arguments import options_of, parser
from tests.deploy.manifests import DEPLOY, ROOT, tool

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_the_file_is_valid_by_the_compose_specification():
    done = subprocess.run(
        [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec",
         DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined_and_has_a_version_and_a_health_check(name):
    service = SERVICES[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert re.search(r":[A-Za-z]*\.?v?\d", service["image"])
    assert "latest" not in service["image"]
    assert "healthcheck" in service or name == "bucket"  # which ends
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")


def test_all_secrets_are_files_and_no_service_has_one_in_its_environment():
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    words = [str(value) for s in SERVICES.values() for value in s.get("environment", {}).values()]

    assert used == set(COMPOSE["secrets"])
    assert {word for word in words if "password" in word and "/run/secrets/" not in word} == set()


def test_volumes_are_named_and_files_that_are_mounted_exist():
    named = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert volume.endswith(":ro")
            else:
                named.add(source)

    assert named == set(COMPOSE["volumes"])


def test_own_images_have_the_version_of_the_package():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None

    for service in SERVICES.values():
        if "build" in service:
            target = service["build"]["target"]
            assert service["image"] == f"presage-{target}:{version[1]}"
            assert f" AS {target}\n" in (DEPLOY / "Containerfile").read_text()


def test_the_server_accepts_its_options():
    args = parser().parse_args(SERVICES["serve"]["command"])

    options = options_of(args)

    assert (options.host, options.port, args.metrics_port) == ("0.0.0.0", 50051, 9464)
    assert args.http_port == 8080


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
def test_promtool_accepts_the_configuration(tmp_path):
    text = (DEPLOY / "prometheus.yaml").read_text().replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yaml").write_text(text)
    shutil.copy(ROOT / "examples/prometheus/alerts.yaml", tmp_path)

    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"], capture_output=True,
        text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "serve:9464" in text


def test_the_program_of_secrets_writes_all_of_them_once(tmp_path):
    folder = tmp_path / "secrets"
    program = tmp_path / "presage"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m presage "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}

    def contents() -> dict[str, str]:
        subprocess.run([DEPLOY / "make_secrets", folder], env=environment, check=True)
        return {file.name: file.read_text() for file in folder.iterdir()}

    first = contents()

    assert set(first) == {Path(row["file"]).name for row in COMPOSE["secrets"].values()}
    assert first["postgres_password"] in first["postgres_service"]
    assert first["s3_password"] in first["s3_credentials"]
    assert folder.stat().st_mode & 0o077 == 0
    assert contents() == first
