"""Pairs of sequences: translation and every other sequence-to-sequence data set."""
