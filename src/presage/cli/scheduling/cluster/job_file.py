"""Job file of ``presage cluster submit``: YAML whose keys are the command's options.

.. code-block:: yaml

    name: sweep
    array: 0-9%4
    gpus: 2
    kind: [h100, h200]
    time-limit: 2h
    command: [python, train.py]
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.errors import ConfigError, one_line
from presage.system.text.known_names import did_you_mean

_COMMAND = "command"
_MAX_BYTES = 1024 * 1024  # no job is larger
_EXCLUDED = ("file", "help")
_PANEL_EXCLUDED = "Connection"  # those have environment variables
_META = "presage.job_file.command"


def _read_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of the options."""
    if path is not None and not context.resilient_parsing:
        options = _options(context)
        content = _load(path)
        command = _words(path, content.pop(_COMMAND, ()))
        context.meta[_META] = command
        context.default_map = {
            options[key].name: _value(path, key, options[key], value)
            for key, value in _checked(path, content, options).items()
        }
    return path


JobFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        is_eager=True,
        callback=_read_file,
        help="YAML file with options, by their names without dashes, and the command of the job.",
    ),
]


def command_of(context: typer.Context) -> list[str]:
    """Return the command in the job file; empty if there is none."""
    return list(context.meta.get(_META, ()))


def _options(context: typer.Context) -> Mapping[str, Any]:
    """Return the options that a file may have, by their names without dashes."""
    found = {}
    for one in context.command.params:
        panel = getattr(one, "rich_help_panel", None)
        if one.name not in _EXCLUDED and panel != _PANEL_EXCLUDED:
            name = max(one.opts, key=len)
            if name.startswith("--"):
                found[name.removeprefix("--")] = one
    return found


def _load(path: Path) -> dict[str, Any]:
    """Return the keys and values of a file.

    Raises
    ------
    ConfigError
        It cannot be read, is no YAML mapping, or has a key twice.
    """
    import yaml

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"--file {path}: is larger than {_MAX_BYTES} bytes; write less")
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        found = yaml.safe_load(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"--file {path}: cannot be read ({one_line(error)}); name a YAML file of options"
        ) from error
    if not isinstance(found, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"--file {path}: must have lines such as `gpus: 2`, one per option")
    keys = [str(key.value) for key, _ in root.value]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"--file {path}: {twice!r} is there twice; remove one of them")
    return {str(key): value for key, value in found.items()}


def _checked(
    path: Path, content: Mapping[str, Any], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the content if all of its keys are options."""
    for key in content:
        if key not in options:
            known = [_COMMAND, *options]
            hint = did_you_mean(key, known, otherwise=f"options are {', '.join(known)}")
            raise ConfigError(f"--file {path}: {key!r} is no option of a job; {hint}")
    return content


def _value(path: Path, key: str, option: Any, value: Any) -> Any:
    """Return the value of an option, as the command line would have it."""
    if option.multiple:
        values = value if isinstance(value, list) else [value]
        return [_text(path, key, one) for one in values]
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"--file {path}: {key!r} must be true or false")
        return value
    return _text(path, key, value)


def _text(path: Path, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"--file {path}: {key!r} must be a text or a number; quote it if it is")
    return str(value)


def _words(path: Path, value: Any) -> list[str]:
    """Return the words of a command, given as a list or as one line."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ConfigError(f"--file {path}: {_COMMAND!r}: {error}; give a list") from None
    if not isinstance(value, list | tuple):
        raise ConfigError(f"--file {path}: {_COMMAND!r} must be a list of words, or one line")
    return [_text(path, _COMMAND, one) for one in value]
