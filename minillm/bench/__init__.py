"""Measurements of the parts that have to be fast: both sides in one run, as plain numbers."""
