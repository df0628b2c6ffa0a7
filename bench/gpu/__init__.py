"""What the first minutes on a GPU have to tell: `make gpu` (docs/gpu.md)."""
