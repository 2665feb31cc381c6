"""Numerics of spike-and-slab energies."""

import torch

from skebm.energies.rbm.spike_slab import cholesky
from tests.support.oracle import DOUBLE


def test_a_matrix_without_cholesky_factor_has_nan():
    matrices = torch.tensor([[[-1.0]], [[4.0]]], dtype=DOUBLE)
    factor = cholesky(matrices)
    assert factor[0].isnan().all()
    assert float(factor[1]) == 2.0
