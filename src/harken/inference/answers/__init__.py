"""One module per kind of answer of a loaded run."""
