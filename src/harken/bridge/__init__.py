"""Other people's weights in and out. Their names and formats live in this room and nowhere else.

A family is one file: a class that reads its config.json and says two things, the settings of our recipe and, for each
weight of ours, where it lies among theirs (`family.Config`). A folder (`folder.py`) and a GGUF file (`gguf.py`) are
read in the same way; `bring.py` writes a run folder from either, with a certificate that both models say the same.
"""
