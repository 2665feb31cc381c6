"""Estimates of log Z that follow the graph of a pairwise energy."""
