"""Time-division sharing of switches with in-network computing between training jobs.

Switches that compute (in-network computing, INC; for example NVIDIA SHARP) sum the tensors of an
AllReduce on their way, but for few jobs at a time. Instead of giving a switch to one job for life,
Presage decides at every AllReduce whether it runs on the switch or by ring. All ranks of a job
decide the same without a message, and none waits for the switch.

- ``collectives.core``: pure state machines without clock or I/O.
  ``arbitration`` computes decisions from a view of all jobs, ``rank`` chooses the way of each
  AllReduce of a rank, ``in_band`` and ``two_phase`` are two ways to agree on views with the
  controllers of the same names, ``switch`` admits AllReduces and refuses old epochs.
- ``collectives.phases``: when the AllReduces of a job start, learnt from those it has run.
- ``collectives.switch``: the software switch and its client.
- ``collectives.arbiter``: the process that decides for the jobs of a domain, and the connection
  of a rank to it; ``collectives.v1`` is its protocol.
- ``collectives.torch``: the backend of ``torch.distributed``.
- ``collectives.table``, ``collectives.nccl_tuner``: decisions in shared memory, and the plugin by
  which NCCL reads them.
- ``collectives.simulation``: simulator of AllReduce phases, with the arbiter as one of its rules.
- ``collectives.star_network``, ``collectives.demo``: emulated network, and jobs that contend in it.

The laws of these machines are checked in every reachable state by ``tests/collectives/explorer``.
Decision record 46 has the reasons and the results.
"""
