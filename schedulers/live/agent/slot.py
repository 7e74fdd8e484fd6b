"""Device that an agent allocates to tasks: a GPU, or some processors of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from presage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Slot:
    """Device of a node.

    Attributes
    ----------
    kind : str
        As in the catalogue of :mod:`presage.features.device.device`, such as "h100".
    cpus : tuple of int or None
        Processor numbers of the device; None for a GPU, whose tasks may use any processor.
    cuda : int or None
        Number of the GPU in the order of the PCI bus.
    device_id : str
        UUID of the GPU, by which its history of outages is found; "" if unknown.
    pci_address : str
        PCI address such as "0000:3b:00", by which the kernel log names it; "" if unknown.
    """

    kind: str
    memory_bytes: int
    cpus: tuple[int, ...] | None = None
    cuda: int | None = None
    device_id: str = field(default="", compare=False)
    pci_address: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.kind or self.memory_bytes < 1:
            raise ConfigError(
                f"device {self.kind!r} with {self.memory_bytes} bytes of memory: the kind must not "
                "be empty, and the memory must be >= 1 byte"
            )
        if (self.cpus is None) == (self.cuda is None):
            raise ConfigError(f"device {self.kind!r}: give either processors or a GPU")
        if self.cpus is not None and len(set(self.cpus)) != len(self.cpus):
            raise ConfigError(f"device {self.kind!r}: duplicate processor number in {self.cpus}")
