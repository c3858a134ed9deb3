"""Baselines that need no neural network."""
