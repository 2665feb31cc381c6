"""Pairwise energies: Boltzmann machines, and their corrections of independent columns."""

from skebm.energies.pairwise.machine import (
    BoltzmannMachine,
    grid_edges,
    ising_grid,
    same_column,
)

__all__ = ["BoltzmannMachine", "grid_edges", "ising_grid", "same_column"]
