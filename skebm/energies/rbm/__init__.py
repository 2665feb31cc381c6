"""Restricted Boltzmann machines: energies of a visible and a hidden layer."""
