"""``presage cluster drain`` and ``outages``: the nodes of a live cluster."""
