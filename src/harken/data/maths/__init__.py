"""Generated mathematical problems."""
