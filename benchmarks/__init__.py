"""Benchmarks: runnable modules that print a table and write JSON. Never timed tests."""
