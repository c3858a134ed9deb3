"""From files to padded or packed batches."""
