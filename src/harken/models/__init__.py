"""One file per family of the lectures. Each begins with its Shape (the settings) and ends with its module.

What a language model offers: `model(tokens, pos=, structure=, memory=) -> h` (B L d), `model.logits(h)`,
`model.memory(B, capacity)` for decoding, `model.context` (None: any length).
"""
