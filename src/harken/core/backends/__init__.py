"""Backends of `attend`: the ways to compute the attention equation."""
