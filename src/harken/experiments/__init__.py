"""Whole experiments made of train and use: choose a recipe, train, judge, report."""
