"""Inference with a trained run: generate, score, classify, evaluate, trace. Reads only the run folder."""
