"""Tokenizers: trained here, or pretrained and loaded from tokenizer.json."""
