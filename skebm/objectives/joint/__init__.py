"""Objectives of classes and rows: with negatives by chains, and by gradient ascent."""
