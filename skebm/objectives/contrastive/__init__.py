"""Contrastive divergence, its chains and its faster steps."""
