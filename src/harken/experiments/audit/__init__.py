"""Audits: checks of masking, padding, packing and caching on a model's own weights."""
