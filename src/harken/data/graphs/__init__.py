"""Graphs: node, edge and graph targets."""
