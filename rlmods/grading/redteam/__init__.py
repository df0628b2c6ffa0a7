"""Hostile answers to a reward: families of attacks, and their scoring. Imports only this wing."""
