"""Unsupervised analysis of vectors: clusters, their number, principal components."""
