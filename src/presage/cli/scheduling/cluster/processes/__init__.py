"""``presage cluster up``, ``controller`` and ``agent``: the processes of a live cluster."""
