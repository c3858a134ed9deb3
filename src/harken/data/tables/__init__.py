"""Reads tables: CSV, TSV, JSON Lines and numeric arrays."""
