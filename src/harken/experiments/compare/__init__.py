"""Comparisons of settings and seeds."""
