"""Configuration: composing it with Hydra, checking it, and instantiating the parts it names."""
