"""Clustering of tables and of embeddings."""
