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
_TAG = "tag:yaml.org,2002:"
_TEXTS = tuple(_TAG + name for name in ("str", "int", "float", "timestamp"))
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of the file the defaults of the options."""
    if path is not None and not context.resilient_parsing:
        options = _options(context)
        content = _load(path)
        command = _words(path, content.pop(_COMMAND, None))
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
    """Return the keys and the nodes of the values of a file.

    The values are read as they are written: as numbers, 007 would be 7, and 1.10 would be 1.1.

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
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else one_line(error)
        raise ConfigError(
            f"--file {path}: cannot be read ({cause}); name a YAML file of options"
        ) from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"--file {path}: must have lines such as `gpus: 2`, one per option")
    found: dict[str, Any] = {}
    for key, value in root.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else key.id
        if name in found:
            raise ConfigError(f"--file {path}: {name!r} is there twice; remove one of them")
        found[name] = value
    return found


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


def _value(path: Path, key: str, option: Any, node: Any) -> Any:
    """Return the value of an option, as the command line would have it."""
    if option.multiple:
        nodes = node.value if node.id == "sequence" else [node]
        return [_text(path, key, one) for one in nodes]
    if option.is_flag:
        if node.tag != _TAG + "bool" or node.value.lower() not in _FLAGS:
            raise ConfigError(f"--file {path}: {key!r} must be true or false")
        return _FLAGS[node.value.lower()]
    return _text(path, key, node)


def _text(path: Path, key: str, node: Any) -> str:
    """Return a text or a number as it is written."""
    if node.tag not in _TEXTS or node.id != "scalar":
        raise ConfigError(f"--file {path}: {key!r} must be a text or a number; quote it if it is")
    return str(node.value)


def _words(path: Path, node: Any) -> list[str]:
    """Return the words of a command, given as a list or as one line."""
    if node is None:
        return []
    if node.id == "scalar" and node.tag == _TAG + "str":
        try:
            return shlex.split(node.value)
        except ValueError as error:
            raise ConfigError(f"--file {path}: {_COMMAND!r}: {error}; give a list") from None
    if node.id != "sequence":
        raise ConfigError(f"--file {path}: {_COMMAND!r} must be a list of words, or one line")
    return [_text(path, _COMMAND, one) for one in node.value]
