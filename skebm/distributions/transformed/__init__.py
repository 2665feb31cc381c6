"""Distributions by changes of variables."""
