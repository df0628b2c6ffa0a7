"""Configuration: composing it with Hydra, checking it, and instantiating its parts."""
