"""Noise contrastive estimation: of networks, and of trees that are added one by one."""
