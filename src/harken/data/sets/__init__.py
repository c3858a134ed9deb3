"""Sets of rows with one target per set."""
