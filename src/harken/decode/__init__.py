"""Decoding: sampling, beam search, constrained decoding, and CUDA graphs of decoding steps."""
