"""Choice of the trained weights: all of them, or an adapter's."""

from rlmods.adapter.lora import LoRA
from rlmods.adapter.no_adapter import NoAdapter

__all__ = ["LoRA", "NoAdapter"]
