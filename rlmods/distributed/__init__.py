"""Training on several ranks: strategies, sharding and the Trainer."""
