"""Backend ``presage_inc`` of torch.distributed; importing this package registers it.

.. code-block:: python

    import presage.collectives.torch
    torch.distributed.init_process_group("presage_inc")

``backend`` is the process group, ``collective_queue`` runs one collective at a time,
``driver`` drives the state machine of ``collectives.core.rank``, ``peers`` carries votes
between ranks, ``epoch_exchange`` agrees on views, and ``switch_link`` holds the connection to the
switch.
"""

from presage.collectives.torch.backend import BACKEND, register

register()

__all__ = ["BACKEND"]
