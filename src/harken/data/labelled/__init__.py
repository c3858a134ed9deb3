"""Labelled text: tables with labels, CoNLL tags, SQuAD spans."""
