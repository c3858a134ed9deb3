"""Speed benchmarks against peers."""
