"""Batches: every row once, with its own weight and number, however they are cut."""

import pytest
import scipy.sparse as sp
import torch

from skebm.training.rows import BLOCK, Batches, Rows


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize(
    ("d", "size"),
    [
        (64, 10),  # several blocks of many batches
        (4, 10),  # one block
        (BLOCK // 5, 10),  # a batch is more than a block
    ],
)
def test_batches_hold_every_row_once(d, size, subset, sparse):
    n = 43 if d > 64 else 2503
    x = torch.zeros(n, d)
    x[:, 0] = torch.arange(n)
    weight = torch.rand(n) + 0.5
    table = sp.csr_array(x.numpy()) if sparse else x
    rows = Rows(table, weight, dtype=torch.float32, device=x.device)
    chosen = torch.arange(0, n, 2) if subset else torch.arange(n)
    generator = torch.Generator().manual_seed(0)
    batches = Batches(rows, size, generator, chosen if subset else None)
    seen = list(batches)
    assert len(seen) == len(batches)
    lengths = {len(batch.x) for batch in seen}
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    number = torch.cat([batch.row_index for batch in seen])
    assert not torch.equal(number, chosen)  # shuffled
    assert torch.equal(number.sort().values, chosen)
    for batch in seen:
        assert torch.equal(batch.x, x[batch.row_index])
        assert torch.equal(batch.weight, rows.weight[batch.row_index])
