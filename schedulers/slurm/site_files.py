"""Files that an administrator installs into the folder of slurm.conf."""

from __future__ import annotations

import re
from pathlib import Path

from presage.errors import ConfigError
from presage.schedulers.slurm.bridge.bridge_server import SOCKET
from presage.schedulers.slurm.watch.slurm_job import FORMAT
from presage.system.files.atomic_file import write_new

_SITE = Path(__file__).with_name("site")
JOB_SUBMIT, EPILOG = "job_submit.lua", "presage_epilog.sh"
_PATH = re.compile(r"[\w/.-]+", re.ASCII)
_MODES = {JOB_SUBMIT: 0o644, EPILOG: 0o755}


def site_file(name: str, state: Path, conf: Path) -> str:
    """Return the content of a file for a state folder and a slurm.conf.

    Raises
    ------
    ConfigError
        A path has characters that would need quoting.
    """
    text = str(state.resolve())
    for path in (text, str(conf.resolve())):
        if not _PATH.fullmatch(path):
            raise ConfigError(f"{path}: use a path of letters, digits, / - _ and .")
    values = {
        "@SOCKET@": f"{text}/{SOCKET}",
        "@STATE@": text,
        "@CONF@": str(conf.resolve()),
        "@FORMAT@": FORMAT,
    }
    content = (_SITE / name).read_text()
    for mark, value in values.items():
        content = content.replace(mark, value)
    return content


def write_site_files(folder: Path, state: Path) -> list[Path]:
    """Write all files; return their paths.

    Raises
    ------
    ConfigError
        A file exists already, or cannot be written.
    """
    contents = {folder / name: site_file(name, state, folder / "slurm.conf") for name in _MODES}
    for path in contents:
        if path.exists():
            raise ConfigError(f"{path} exists; name another folder, and merge the file by hand")
    for path, content in contents.items():
        try:
            write_new(path, content.encode(), mode=_MODES[path.name])
            path.chmod(_MODES[path.name])
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name the folder of slurm.conf") from error
    return list(contents)
