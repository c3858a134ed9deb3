"""Detects the kind of a data set from a bounded preview of its files."""
