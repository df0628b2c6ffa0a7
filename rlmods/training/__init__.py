"""Components of the training loop: optimizer step, scorer, buffer, metrics, validation and
extensions."""
