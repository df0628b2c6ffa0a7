"""Types of settings."""
