"""Training: one loop for every model family, optimizers, checkpoints and cost accounting."""
