"""Generated problems of mathematics."""
