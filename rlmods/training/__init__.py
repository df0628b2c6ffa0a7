"""The objects that the training loop owns."""
