"""Hostile answers to a reward."""
