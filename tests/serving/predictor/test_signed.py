"""Signed releases: a server with trusted keys serves no other, at the start and later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.errors import ConfigError, ReleaseError
from presage.models.registry.registry import Registry
from presage.models.release.release import MANIFEST, SIGNATURE, load_release
from presage.models.release.release_id import content_id
from presage.models.release.signature import TrustedKeys, generate_key, sign_release
from presage.serving.client.client import PresageClient
from presage.serving.predictor.release_follower import FolderSource, TrustedSource
from presage.serving.server_options import Options
from presage.system.files.atomic_folder import put_in_place
from tests.models.mlflow_server import served
from tests.serving.conftest import make_models, make_release
from tests.serving.support.processes import serving
from tests.serving.support.running_server import RunningServer, start_server
from tests.support.waiting import wait_until

LEARNT_FROM = {
    "folders": [{"folder": "data/profiles/a", "campaigns": ["a"], "tables": {}}],
    "rows": [],
}


@pytest.fixture
def key(tmp_path):
    generate_key(tmp_path / "release.key")
    return tmp_path / "release.key"


@pytest.fixture
def public(key):
    return key.with_name("release.key.pub")


@pytest.fixture
def folder(tmp_path, key):
    """Folder of a signed release."""
    release = make_release(tmp_path / "release", training_data=LEARNT_FROM)
    sign_release(release.folder, key)
    return release.folder


def presage(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "presage", *map(str, words)],
        env=os.environ | env, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_private_key_is_readable_only_by_its_owner_and_never_overwritten(key, public):
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes(), public.read_bytes()

    with pytest.raises(ConfigError, match="the file exists"):
        generate_key(key)
    public.unlink()
    with pytest.raises(ConfigError, match="the file exists"):
        generate_key(key)
    assert key.read_bytes() == before[0]
    assert b"PRIVATE KEY" in before[0] and b"PUBLIC KEY" in before[1]


def test_other_tools_verify_a_signature(folder, public):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    done = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in",
         folder / MANIFEST, "-sigfile", folder / SIGNATURE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "Signature Verified Successfully" in done.stdout, done.stderr


def unsigned(folder: Path) -> None:
    (folder / SIGNATURE).unlink()


def signed_by_another(folder: Path) -> None:
    generate_key(folder.parent / "other.key")
    sign_release(folder, folder.parent / "other.key")


def cut_short(folder: Path) -> None:
    (folder / SIGNATURE).write_bytes((folder / SIGNATURE).read_bytes()[:-1])


def altered_beyond_its_id(folder: Path) -> None:
    """Alter a byte that the id does not cover; the signature covers every byte."""
    path = folder / MANIFEST
    path.write_text(path.read_text().replace("data/profiles/a", "data/profiles/b"))


def altered_with_a_new_id(folder: Path) -> None:
    """Alter the release and recompute its id, so that it is consistent but different."""
    content = json.loads((folder / MANIFEST).read_text())
    content["setup_s"][""] = [9.0, 9.0, 9.0, 9.0, 9.0]
    content["release_id"] = content_id(content)
    (folder / MANIFEST).write_text(json.dumps(content))
    load_release(folder)


def with_another_model(folder: Path) -> None:
    (folder / "memory.onnx").write_bytes((folder / "step_time.onnx").read_bytes())


def with_the_signature_of_another_release(folder: Path) -> None:
    key = folder.parent / "release.key"
    other = make_release(folder.parent / "other", data_digest="1" * 16)
    sign_release(other.folder, key)
    shutil.copyfile(other.folder / SIGNATURE, folder / SIGNATURE)


SPOILED = {
    unsigned: "is not signed",
    signed_by_another: "not by a trusted key",
    cut_short: "not by a trusted key",
    altered_beyond_its_id: "was changed after it was signed",
    altered_with_a_new_id: "was changed after it was signed",
    with_another_model: "the manifest says",
    with_the_signature_of_another_release: "not by a trusted key",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_server_does_not_start_with_a_release_without_a_trusted_signature(folder, public, spoil):
    spoil(folder)

    done = presage("serve", "--port", 0, "--no-outcomes", "--release", folder,
                   "--trusted-key", public)  # fmt: skip

    assert done.returncode == 1
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: ") and SPOILED[spoil] in error


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_running_server_rejects_it_with_the_reason_and_keeps_serving(
    folder, public, spoil, tmp_path
):
    key = tmp_path / "release.key"
    with serving_trusted(folder, public) as server, PresageClient(server.target) as ask:
        before = ask.release()
        new = make_release(tmp_path / "new", data_digest="2" * 16, training_data=LEARNT_FROM).folder
        sign_release(new, key)
        spoil(new)
        put_in_place(new, folder)

        wait_until(lambda: ask.release().refused is not None)
        after = ask.release()
        assert after.release_id == before.release_id
        assert after.refused is not None
        assert SPOILED[spoil] in after.refused.reason

        good = make_release(tmp_path / "good", data_digest="3" * 16)
        sign_release(good.folder, key)
        put_in_place(good.folder, folder)
        wait_until(lambda: ask.release().release_id == good.release_id)
        assert ask.release().refused is None


def serving_trusted(folder: Path, public: Path) -> RunningServer:
    source = TrustedSource(FolderSource(folder), TrustedKeys([public]))
    return start_server(source, Options(port=0, poll_s=0.05))


def test_a_release_that_is_signed_after_its_rejection_is_served(folder, public, key, tmp_path):
    with serving_trusted(folder, public) as server, PresageClient(server.target) as ask:
        new = make_release(tmp_path / "new", data_digest="2" * 16)
        put_in_place(new.folder, folder)
        wait_until(lambda: ask.release().refused is not None)

        sign_release(folder, key)

        wait_until(lambda: ask.release().release_id == new.release_id)


def test_a_manifest_replaced_between_loading_and_verification_is_rejected(folder, key, public):
    """A writer cannot give one manifest to the loader and another to the verification."""
    good = (folder / MANIFEST).read_bytes()
    altered_with_a_new_id(folder)
    loaded = load_release(folder)
    (folder / MANIFEST).write_bytes(good)

    with pytest.raises(ReleaseError, match="was changed"):
        TrustedKeys([public]).check(loaded)


def test_a_model_replaced_after_the_verification_is_rejected(folder):
    from presage.serving.predictor.predictor import Predictor

    checked = load_release(folder)
    other = make_models()["step_time"]
    (folder / "memory.onnx").write_bytes(other)

    with pytest.raises(ReleaseError, match="replaced after its release was checked"):
        Predictor(checked)


def test_one_of_several_trusted_keys_suffices(folder, public, tmp_path):
    other = generate_key(tmp_path / "other.key")

    with serving("--release", folder, "--no-outcomes", "--trusted-key", other,
                 "--trusted-key", public) as server:  # fmt: skip
        (event,) = server.events("signature checked")
        assert event["release_id"] == server.release_id


@pytest.fixture(params=["database", "mlflow server"])
def registry(request, tmp_path) -> Iterator[Registry]:
    if request.param == "database":
        yield Registry(f"sqlite:///{tmp_path}/registry/mlflow.db")
    else:
        (tmp_path / "registry").mkdir()
        with served(tmp_path / "registry") as uri:
            yield Registry(uri)


def test_the_registry_carries_the_signature_to_the_server(registry, folder, public, key, tmp_path):
    """A release is rejected unsigned, and served once it is signed in the registry."""
    cache = str(tmp_path / "cache")
    serve = ("--registry", registry.uri, "--trusted-key", public, "--no-outcomes")
    unsigned_one = make_release(tmp_path / "unsigned", data_digest="4" * 16)
    version = registry.register(unsigned_one, {})
    registry.promote(version)
    refused = presage("serve", "--port", 0, *serve, XDG_CACHE_HOME=cache)
    assert refused.returncode == 1
    assert "is not signed" in refused.stderr
    with serving("--registry", registry.uri, "--no-outcomes", XDG_CACHE_HOME=cache):
        pass  # laid down in the cache without a signature

    signed = presage("models", "sign", "champion", "--key", key, "--registry", registry.uri)
    assert signed.returncode == 0, signed.stderr
    checked = presage("models", "verify", version, "--trusted-key", public,
                      "--registry", registry.uri)  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    with serving(*serve, XDG_CACHE_HOME=cache) as server:
        assert server.release_id == unsigned_one.release_id

    # A folder that is signed takes its signature along, also where it is registered already.
    registered = registry.register(load_release(folder), {})
    downloaded = registry.download(registered, tmp_path / "downloaded").folder
    assert TrustedKeys([public]).check(load_release(downloaded))
    generate_key(tmp_path / "next.key")
    sign_release(folder, tmp_path / "next.key")
    assert registry.register(load_release(folder), {}) == registered
    registry.promote(registered)
    after = ("--registry", registry.uri, "--trusted-key", tmp_path / "next.key.pub")
    with serving(*after, "--no-outcomes", XDG_CACHE_HOME=cache) as server:
        assert server.release_id == load_release(folder).release_id


def test_signing_and_verifying_by_command(folder, key, public, tmp_path):
    unsigned(folder)
    assert presage("models", "verify", folder, "--trusted-key", public).returncode == 1

    done = presage("models", "sign", folder, "--key", key)
    assert done.returncode == 0, done.stderr
    verified = presage("models", "verify", folder, "--trusted-key", public)
    assert verified.returncode == 0, verified.stderr
    assert load_release(folder).release_id in verified.stdout
    for words in (("verify", "--trusted-key", public), ("sign", "--key", key)):
        missing = presage("models", words[0], folder / "absent", *words[1:])
        assert missing.returncode == 1
        assert "absent: not a release folder" in missing.stderr


def missing_key(path: Path) -> None:
    path.unlink()


def no_key(path: Path) -> None:
    path.write_text("hello")


def private_key(path: Path) -> None:
    shutil.copyfile(path.with_suffix(""), path)


@pytest.mark.parametrize("spoil", [missing_key, no_key, private_key], ids=lambda one: one.__name__)
def test_the_error_of_an_invalid_public_key_is_one_line(folder, public, spoil):
    spoil(public)
    done = presage("serve", "--port", 0, "--no-outcomes", "--release", folder,
                   "--trusted-key", public)  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {public}: ")
    assert done.stderr.count("\n") == 1


def test_the_error_of_signing_with_a_public_key_names_the_problem(folder, public):
    with pytest.raises(ConfigError, match="a public key; sign with the private key"):
        sign_release(folder, public)


def test_a_private_key_readable_by_other_users_cannot_sign(folder, key):
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        sign_release(folder, key)


def test_a_damaged_release_is_not_signed(folder, key):
    with_another_model(folder)
    before = (folder / SIGNATURE).read_bytes()
    with pytest.raises(ReleaseError, match="the manifest says"):
        sign_release(folder, key)
    assert (folder / SIGNATURE).read_bytes() == before


def test_a_server_imports_cryptography_only_for_trusted_keys(folder, public):
    program = (
        "import sys; from presage.serving.arguments import parser;"
        "from presage.serving.main import _source;"
        "_source(parser().parse_args(sys.argv[1:])); print('cryptography' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "--release", str(folder)]
    without, trusted = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ((), ("--trusted-key", str(public)))
    )

    assert (without, trusted) == ("False\n", "True\n")
