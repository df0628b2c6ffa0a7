"""The wind tunnel: small tasks that each ask one thing of an algorithm, and its scores on them."""
