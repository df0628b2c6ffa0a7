"""How much memory a run will take."""

from rlmods.memory.devices import Devices
from rlmods.memory.footprint import Footprint, footprint, persistent, size

__all__ = ["Devices", "Footprint", "footprint", "persistent", "size"]
