"""``python -m presage`` is ``presage``."""

from presage.cli import main

main()
