"""Recipes that come with harken: tuned settings for each kind of text, as TOML."""
