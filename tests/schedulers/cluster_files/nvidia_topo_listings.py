"""Output of ``nvidia-smi topo -m`` on machines of several builds."""

from __future__ import annotations

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501


def listing(matrix: list[list[str]], cards: int = 0) -> str:
    """Return a listing as a recent driver prints it on a terminal, with network cards."""
    gpus, nics = [f"GPU{i}" for i in range(len(matrix))], [f"NIC{i}" for i in range(cards)]
    head = "\t".join(["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m"]
    for name, row in zip(gpus, matrix, strict=True):
        kinds = [" X " if kind == "X" else kind for kind in row]
        lines.append("\t".join([name, *kinds, *["PXB"] * cards, "0-31,64-95", "0", "", "N/A"]))
    lines += [
        "\t".join([nic, *["PXB"] * len(gpus), *(" X " if nic == to else "SYS" for to in nics), ""])
        for nic in nics
    ]
    legend = "".join(f"\n  {nic}: mlx5_{i}" for i, nic in enumerate(nics))
    return "\n".join([*lines, LEGEND, f"NIC Legend:\n{legend}\n" if nics else ""])


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


NVSWITCH = [["X" if i == j else "NV18" for j in range(8)] for i in range(8)]
PAIRS = table("""
    X    NV12 SYS  SYS
    NV12 X    SYS  SYS
    SYS  SYS  X    NV12
    SYS  SYS  NV12 X""")
# Two sockets of two PCIe switches of two GPUs each; one socket has two host bridges.
PCIE = table("""
    X    PIX  PHB  PHB  SYS  SYS  SYS  SYS
    PIX  X    PHB  PHB  SYS  SYS  SYS  SYS
    PHB  PHB  X    PXB  SYS  SYS  SYS  SYS
    PHB  PHB  PXB  X    SYS  SYS  SYS  SYS
    SYS  SYS  SYS  SYS  X    PIX  NODE NODE
    SYS  SYS  SYS  SYS  PIX  X    NODE NODE
    SYS  SYS  SYS  SYS  NODE NODE X    PIX
    SYS  SYS  SYS  SYS  NODE NODE PIX  X""")
# A V100 has six NVLinks; in this mesh none leads to three of the other seven.
CUBE_MESH = table("""
    X   NV1 NV1 NV2 NV2 SYS SYS SYS
    NV1 X   NV2 NV1 SYS NV2 SYS SYS
    NV1 NV2 X   NV2 SYS SYS NV1 SYS
    NV2 NV1 NV2 X   SYS SYS SYS NV1
    NV2 SYS SYS SYS X   NV1 NV1 NV2
    SYS NV2 SYS SYS NV1 X   NV2 NV1
    SYS SYS NV1 SYS NV1 NV2 X   NV2
    SYS SYS SYS NV1 NV2 NV1 NV2 X""")
