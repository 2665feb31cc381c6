"""Tree-structured distributions of bits and categories."""
