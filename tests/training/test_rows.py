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


@pytest.mark.parametrize(("n", "size", "calls"), [(300, 20, 1), (300, 300, 1), (2500, 100, 3)])
def test_missing_entries_of_several_small_batches_are_completed_at_once(n, size, calls):
    rows, seen = Rows(torch.zeros(n, 3), dtype=torch.float32, device="cpu"), []

    def complete(x, index):
        seen.append(index)
        return x + index[:, None]

    batches = Batches(rows, size, torch.Generator().manual_seed(0))
    batches.complete = complete
    for batch in batches:
        assert torch.equal(batch.x, batch.row_index[:, None].expand(-1, 3).to(batch.x))
    assert len(seen) == calls
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(n))
