"""``python -m presage.serving`` is ``presage serve``."""

from presage.serving.main import main

main()
