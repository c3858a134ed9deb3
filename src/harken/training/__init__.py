"""The loop, its optimiser, its meters. One loop for every family: a family brings batches, a loss and a metric."""
