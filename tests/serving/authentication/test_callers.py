"""Token files: accepted tokens, permissions of roles, and error messages without secrets."""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, ForbiddenError, UnauthenticatedError
from presage.serving.authentication import token_file
from presage.serving.authentication.callers import ROLES, Caller, Tokens
from presage.serving.authentication.token_file import TokenFile, add_token, new_token, read_tokens

AGENT = {"node": "n0", "devices": "h200:8"}  # what the role agent is bound to
HASH = hashlib.sha256(b"somebody's token").hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


@pytest.fixture
def often(monkeypatch):
    """Check token files for changes on every call."""
    monkeypatch.setattr(token_file, "CHECK_S", 0.0)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="presage.serving")
    return lambda: [(row.getMessage(), row.fields) for row in caplog.records]


def authenticate(tokens: Tokens, token: str) -> Caller:
    return tokens.authenticate([("x-other", "1"), ("authorization", f"Bearer {token}")])


def is_known(tokens: Tokens, token: str) -> bool:
    try:
        return bool(authenticate(tokens, token))
    except UnauthenticatedError:
        return False


# Tokens ----------------------------------------------------------------------------------------


def test_a_new_token_authenticates_by_its_line(path):
    token, line = new_token("scheduler-1", ["predict", "report"])
    path.write_text(f"# made today\n\n{line}  # for the cluster\n")

    assert authenticate(read_tokens(path), token) == Caller(
        "scheduler-1", frozenset({"predict", "report"})
    )
    assert token not in line
    assert len(token) >= 43  # 32 random bytes


def test_two_new_tokens_are_never_the_same():
    assert len({new_token("a", ["admin"])[0] for _ in range(100)}) == 100


def test_a_name_may_have_several_tokens(path):
    made = [new_token("a", ["predict"]) for _ in range(2)]  # while one takes the other's place
    path.write_text("\n".join(line for _, line in made))

    assert [authenticate(read_tokens(path), token).name for token, _ in made] == ["a", "a"]


@pytest.mark.parametrize("name", ["", "a b", "a,b", "#a", "-a", "a" * 65, "a\n", "\u00e4", "a/b"])
def test_an_invalid_name_is_rejected(name):
    with pytest.raises(ConfigError, match=r"must be|the name"):
        new_token(name, ["predict"])


@pytest.mark.parametrize("roles", [[], ["Predict"], ["predict", ""], ["predict", "root"], ["a b"]])
def test_an_unknown_role_is_rejected(roles):
    with pytest.raises(ConfigError, match=r"must be|role .* does not exist; use predict, report"):
        new_token("a", roles)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("around", ["", " ", "\t "])
def test_the_scheme_ignores_case_and_blanks_around_the_token(path, scheme, around):
    token, line = new_token("a", ["predict"])
    path.write_text(line)

    sent = f"{scheme} {around}{token}{around}"
    assert read_tokens(path).authenticate([("authorization", sent)]).name == "a"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("x-authorization", "Bearer s3cret")],
        [("authorization", "s3cret")],
        [("authorization", "Basic s3cret")],
        [("authorization", "Bearers3cret")],
        [("authorization", b"Bearer s3cret")],
        [("authorization", "")],
    ],
)
def test_a_missing_token_is_requested_by_the_error(path, metadata):
    path.write_text(new_token("a", ["predict"])[1])

    with pytest.raises(UnauthenticatedError, match="send the metadata") as caught:
        read_tokens(path).authenticate(metadata)
    assert "s3cret" not in str(caught.value)


def test_the_error_does_not_repeat_an_unknown_token(path):
    token, line = new_token("a", ["predict"])
    path.write_text(line)
    tokens = read_tokens(path)

    for wrong in ("s3cret", token[:-1], token + "x", token.swapcase(), HASH, line.split()[2]):
        with pytest.raises(UnauthenticatedError, match="does not know") as caught:
            authenticate(tokens, wrong)
        assert not wrong or wrong not in str(caught.value)


def test_roles_determine_the_allowed_methods():
    caller = Caller("ann", frozenset({"report"}))

    caller.require_role("report")
    for role in ("predict", "admin"):
        with pytest.raises(
            ForbiddenError, match=f"'ann' lacks the role '{role}' that this call requires"
        ):
            caller.require_role(role)


# Tokens that are added -------------------------------------------------------------------------


def test_a_new_token_file_is_readable_only_by_its_owner(path):
    token = add_token(path, "ann", ["predict", "report"])

    assert authenticate(read_tokens(path), token) == Caller("ann", frozenset({"predict", "report"}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("end", ["\n", "", "  # ours", "\n\n# more\n"])
def test_a_token_is_appended_to_an_existing_file(path, end):
    first, line = new_token("ann", ["predict"])
    path.write_text(f"# of this year\n{line}{end}")
    path.chmod(0o640)
    before = path.read_text()

    second = add_token(path, "bob", ["admin"])

    tokens = read_tokens(path)
    assert (authenticate(tokens, first).name, authenticate(tokens, second).name) == ("ann", "bob")
    assert path.read_text().startswith(before)
    assert path.stat().st_mode & 0o777 == 0o640  # the user of the server may still read it


def test_a_token_is_added_to_the_target_of_a_symbolic_link(path, tmp_path):
    (tmp_path / "secret").write_text(new_token("ann", ["admin"])[1])
    path.symlink_to(tmp_path / "secret")

    add_token(path, "bob", ["admin"])

    assert path.is_symlink()
    assert len(read_tokens(tmp_path / "secret")) == 2


def test_tokens_added_concurrently_are_all_written(path):
    with ThreadPoolExecutor(8) as threads:
        tokens = list(threads.map(lambda i: add_token(path, f"n{i}", ["predict"]), range(40)))

    known = read_tokens(path)
    assert [authenticate(known, token).name for token in tokens] == [f"n{i}" for i in range(40)]


def test_a_duplicate_name_is_rejected(path):
    add_token(path, "ann", ["predict"])
    before = path.read_text()

    with pytest.raises(ConfigError, match="'ann' has a token"):
        add_token(path, "ann", ["admin"])
    with pytest.raises(ConfigError, match="the name must be"):
        add_token(path, "a/b", ["admin"])
    assert path.read_text() == before


@pytest.mark.parametrize("place", ["none/tokens", "", "latin-1"])
def test_the_error_names_a_file_that_cannot_be_written(tmp_path, place):
    (tmp_path / "latin-1").write_bytes(b"# \xe4")

    with pytest.raises(ConfigError, match=r"cannot be written \(.*--file"):
        add_token(tmp_path / place, "ann", ["predict"])


# Files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann", "must be NAME ROLE"),
        (f"ann {HASH}", "must be NAME ROLE"),
        (f"ann {HASH} predict", "must be NAME ROLE"),
        (f"ann predict, report {HASH}", "must be NAME ROLE"),
        (f"ann predict {HASH.upper()}", "must be NAME ROLE"),
        (f"ann predict {HASH[:-1]}", "must be NAME ROLE"),
        (f"ann predict {HASH}0", "must be NAME ROLE"),
        (f"a/b predict {HASH}", "the name must be"),
        (f"{HASH} predict {HASH}", ""),
        (f"ann root {HASH}", "role 'root' does not exist; use predict, report, admin"),
        (f"ann predict,{HASH} {HASH}", "role no. 2 does not exist"),
        (f"ann {HASH} {HASH}", "role no. 1 does not exist"),
        (f"ann predict, {HASH}", "role no. 2 does not exist"),
    ],
)
def test_the_error_names_an_invalid_line_without_repeating_it(path, line, said):
    path.write_text(f"# comment\nok predict {'0' * 64}\n{line}\n")

    if not said:  # a name may look like that
        assert len(read_tokens(path)) == 2
        return
    with pytest.raises(ConfigError) as caught:
        read_tokens(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert said in str(caught.value)
    assert HASH[:16] not in str(caught.value).lower()


WORDS = st.sampled_from(
    [HASH, HASH.upper(), HASH[:63], "0123456789abcdef" * 4, "s3cret-s3cret-s3cret", "ann", "#",
     "predict", "admin", f"predict,{HASH}", f"{HASH},s3cret-s3cret-s3cret", ",", ""]
)  # fmt: skip


@settings(deadline=None)
@given(lines=st.lists(st.lists(WORDS, max_size=5).map(" ".join), max_size=4))
def test_errors_of_any_file_contain_no_hash_and_no_token(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "tokens-of-any-kind"
    path.write_text("\n".join(lines))
    try:
        read_tokens(path)
    except ConfigError as error:
        said = str(error)
        assert not any(word in said for word in (HASH[:16], HASH[:16].upper(), "s3cret", "0123"))


def test_a_hash_on_two_lines_is_rejected(path):
    path.write_text(f"ann admin {HASH}\nbob predict {HASH}\n")

    with pytest.raises(ConfigError, match=r"tokens:2: another line has this hash"):
        read_tokens(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "a folder"])
def test_an_unreadable_file_is_an_error(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()

    with pytest.raises(ConfigError, match=r"tokens: the tokens cannot be read .*presage token"):
        TokenFile(path)


@pytest.mark.parametrize("content", ["", "\n", "# no token yet\n"])
def test_a_server_does_not_start_with_an_empty_token_file(path, content):
    path.write_text(content)

    with pytest.raises(ConfigError, match="contains no token"):
        TokenFile(path)


# Files that change -----------------------------------------------------------------------------


def test_a_changed_file_is_reloaded(path, often, logged):
    (old, old_line), (new, new_line) = (new_token("a", [role]) for role in ("predict", "admin"))
    path.write_text(old_line)
    tokens = TokenFile(path)
    assert is_known(tokens(), old)
    assert not is_known(tokens(), new)

    path.write_text(f"{old_line}\n{new_line}")
    assert is_known(tokens(), old)
    assert authenticate(tokens(), new).roles == {"admin"}

    path.write_text(new_line)
    assert not is_known(tokens(), old)
    assert is_known(tokens(), new)
    assert logged() == [
        ("tokens read again", {"file": str(path), "tokens": count}) for count in (2, 1)
    ]


def test_a_file_replaced_by_one_of_equal_length_is_reloaded(path, often):
    (old, old_line), (new, new_line) = (new_token("a", ["predict"]) for _ in range(2))
    path.write_text(old_line)
    tokens = TokenFile(path)

    (other := path.with_name("other")).write_text(new_line)
    other.rename(path)  # as editors do it, and what lays secrets down in containers

    assert is_known(tokens(), new)
    assert not is_known(tokens(), old)


@pytest.mark.parametrize("revoked", ["", "# {}"])
def test_a_token_is_revoked_although_another_line_is_invalid(path, often, logged, revoked):
    (old, old_line), (kept, kept_line) = (new_token(name, ["predict"]) for name in "ab")
    path.write_text(f"{old_line}\n{kept_line}\n")
    tokens = TokenFile(path)

    path.write_text(f"{revoked.format(old_line)}\n{kept_line} expires=soon\nc predict x\n")

    assert not is_known(tokens(), old)
    assert is_known(tokens(), kept)
    assert [event for event, _ in logged()] == ["tokens not read again"]


@pytest.mark.parametrize("how", ["gone", "a bad line", "a folder", "not text"])
def test_tokens_stay_valid_while_their_file_is_unreadable(path, often, logged, how):
    token, line = new_token("a", ["predict"])
    path.write_text(line)
    tokens = TokenFile(path)

    if how == "a bad line":
        path.write_text(f"{line}\nann {HASH} {HASH}")
    elif how == "not text":
        path.write_bytes(b"\xff")
    else:
        path.unlink()
    if how == "a folder":
        path.mkdir()
    for _ in range(3):
        assert is_known(tokens(), token)

    ((event, fields),) = logged()  # once
    assert event == "tokens not read again"
    assert str(path) in fields["reason"]
    assert HASH[:16] not in fields["reason"]

    if path.is_dir():
        path.rmdir()
    path.write_text(new_token("a", ["predict"])[1])
    assert not is_known(tokens(), token)


def test_a_file_without_its_last_token_authenticates_no_client(path, often, logged):
    token, line = new_token("a", ["predict"])
    path.write_text(line)
    tokens = TokenFile(path)

    path.write_text(f"# {line}\n")

    assert not is_known(tokens(), token)
    assert logged() == [("tokens read again", {"file": str(path), "tokens": 0})]


def test_a_file_changed_during_a_read_is_reloaded(path, often, monkeypatch):
    (old, old_line), (new, new_line) = (new_token("a", ["predict"]) for _ in range(2))
    path.write_text(old_line)

    def read_and_change(read):
        found = read_tokens(read)
        path.write_text(f"{new_line}  # and a comment")
        return found

    monkeypatch.setattr(token_file, "read_tokens", read_and_change)
    tokens = TokenFile(path)
    monkeypatch.undo()
    monkeypatch.setattr(token_file, "CHECK_S", 0.0)

    assert is_known(tokens(), new)
    assert not is_known(tokens(), old)


def test_the_file_is_not_checked_on_every_call(path):
    token, line = new_token("a", [*ROLES], AGENT)
    path.write_text(line)
    tokens = TokenFile(path)
    path.write_text(new_token("b", ["admin"])[1])

    assert is_known(tokens(), token)  # within a second


# Limits of a token -----------------------------------------------------------------------------


def test_a_line_may_limit_its_token(path):
    words = {
        "expires": "2999-01-31T12:00:00Z",
        "run-as": "ann_w",
        "node": "n0",
        "devices": "h200:8,NVIDIA%20A2:1",
        "max-jobs": "5",
        "max-bytes": "1000000",
    }
    token, line = new_token("ann", ["submit", "agent"], words)
    path.write_text(line)

    caller = authenticate(read_tokens(path), token)
    assert caller.run_as == caller.account == "ann_w"
    assert caller.node == "n0"
    assert caller.devices == (("h200", 8), ("NVIDIA A2", 1))
    assert (caller.max_jobs, caller.max_bytes) == (5, 1_000_000)


def test_jobs_run_as_the_name_of_the_token_without_an_account():
    assert Caller("ann", frozenset()).account == "ann"


@pytest.mark.parametrize("zone", ["Z", "+02:00", ""])
def test_the_error_names_an_expired_token(zone):
    token, line = new_token("ann", ["predict"], {"expires": f"2027-01-31T12:00:00{zone}"})
    at_s = datetime.fromisoformat(f"2027-01-31T12:00:00{zone or 'Z'}").timestamp()
    digest = line.split()[2]
    caller = Caller("ann", frozenset({"predict"}), expires_unix_s=at_s)

    assert authenticate(Tokens({digest: caller}, clock=lambda: at_s - 1), token) == caller
    with pytest.raises(
        UnauthenticatedError,
        match=r"token of 'ann' has expired; create a new one with `presage token`",
    ):
        authenticate(Tokens({digest: caller}, clock=lambda: at_s), token)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("expires=soon", "expires= must be a time, such as"),
        ("run-as=0", "run-as= must be the name of an account"),
        ("run-as=", "run-as= must be"),
        ("devices=h200", "devices= must be KIND:COUNT"),
        ("devices=h200:0", "devices= must be"),
        ("max-jobs=0", "max-jobs= must be a whole number from 1"),
        ("max-jobs=1 max-bytes=-1", "max-bytes= must be"),
        ("color=red", "word no. 4 must be one of expires=, run-as="),
        (HASH, "word no. 4 must be one of"),
    ],
)
def test_the_error_names_an_invalid_limit(path, words, said):
    path.write_text(f"ann predict {HASH} {words}\n")

    with pytest.raises(ConfigError) as caught:
        read_tokens(path)
    assert said in str(caught.value)
    assert HASH not in str(caught.value)


def test_the_role_agent_requires_one_node_and_its_devices(path):
    path.write_text(f"n0 agent {HASH} node=n0\n")

    with pytest.raises(ConfigError, match=r"tokens:1: the role 'agent' requires a node"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"devices": "h100"}, "--device 'h100': must be KIND:COUNT"),
        ({"expires": "tomorrow"}, "--expires 'tomorrow': must be a time, such as"),
        ({"run-as": "a b"}, "--run-as 'a b': must be the name of an account"),
    ],
)
def test_the_error_names_the_option_of_an_invalid_limit(path, limits, said):
    with pytest.raises(ConfigError) as caught:
        add_token(path, "n0", ["submit"], limits)

    assert str(caught.value).startswith(said)
    assert not path.exists()
