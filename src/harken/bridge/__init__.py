"""Import and export of other libraries' weights. Their names and formats are used in this package only.

A model family is one class in `families/` (a `weight_mapping.ModelMapping`): the config.json fields it reads, and the
settings of our recipe. `names.toml` has the names of its tensors. Folders (`folder.py`) and GGUF files (`gguf.py`)
offer the same interface; `importer.py` writes a run folder from either, with a certificate of parity
(`certificate.py`); `export.py` inverts the mapping. `onnx.py` and `ctranslate2.py` export for other engines, from our
modules instead of the names of their weights.
"""
