"""Weight mappings: one module per model family of other libraries."""
