"""Text from a model, one token at a time: what is drawn, what is remembered, what is recorded. No run, no task."""
