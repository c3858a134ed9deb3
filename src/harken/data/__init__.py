"""From the user's files to batches, padded or packed."""
