"""Use a run: generate, score, evaluate, trace. Reads the run folder and nothing else."""
