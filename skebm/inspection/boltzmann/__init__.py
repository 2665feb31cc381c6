"""Displays of Boltzmann machines: filters and training of restricted ones, couplings of others."""
