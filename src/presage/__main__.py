"""``python -m presage`` is ``presage``: the entry point that needs no optional package."""

from __future__ import annotations

import os
import sys

from presage.cli.extras import how_to_install
from presage.system.printable import error_line


def main() -> None:
    """Run the command line; one line where the packages that it needs are not installed."""
    _keep_others_from_writing()
    try:
        if sys.argv[1:2] == ["serve"]:  # without the command line's packages
            from presage.serving.main import main as serve

            serve(sys.argv[2:])
            return
        from presage.cli.app import main as run
    except ModuleNotFoundError as error:
        line = how_to_install(error)
        if line is None:
            raise
        sys.stderr.write(f"error: {error_line(line)}\n")
        sys.exit(1)
    run()


def _keep_others_from_writing() -> None:
    """Make no file or folder that every account may write to, whatever the umask is.

    A folder above a private one would do: who can rename the private one can put another there.
    """
    umask = os.umask(0o077)
    os.umask(umask if umask & 0o002 else umask | 0o022)


if __name__ == "__main__":
    main()
