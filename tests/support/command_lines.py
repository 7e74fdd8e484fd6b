"""Commands in texts, parsed but not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from presage.cli.app import app
from presage.serving.arguments import parser


def shell_commands(text: str) -> list[list[str]]:
    """Words after ``presage`` of each command in a text, with its continuation lines."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        match = re.match(r" *(?:\$ )?(?:sudo )?presage (?P<rest>.*)", line)
        if match:
            words = shlex.split(match["rest"], comments=True)
            found.append(list(_until_operator(words)))
    return found


def _until_operator(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in ("|", "||", "&&", "&", ">", ";"):
            return
        yield word.removesuffix(";")
        if word.endswith(";"):
            return


def check_parses(words: list[str]) -> None:
    """Parse a command line by the command's own parser; nothing is run and no file is read."""
    if words[0] == "serve":
        parser().parse_args(words[1:])
        return
    command: Any = get_command(app)
    rest, path = list(words), ["presage"]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        path.append(rest.pop(0))
    if rest and getattr(command, "commands", None) and not command.invoke_without_command:
        raise AssertionError(f"{' '.join(path)} has no command {rest[0]!r}")
    with command.make_context(" ".join(path), rest):
        pass
