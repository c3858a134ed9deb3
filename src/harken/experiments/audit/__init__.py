"""Audits: whether a model respects its masks."""
