"""The largest log-probabilities equal those of PyTorch's kernels."""

import pytest
import torch

from harken.decode.best_tokens import BLOCK, largest, log_softmax


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("width", [5, BLOCK * 20, BLOCK * 30 + 7])
def test_the_largest_numbers_and_their_indices_equal_those_of_topk(width, n):
    torch.manual_seed(0)
    x, n = torch.randn(40, width), min(n, width)
    x[3, 2:] = -torch.inf
    x[4, -1], x[5, 0] = 9.0, 9.0
    values, indices = largest(x, n)
    expected = x.topk(n, -1)
    assert torch.equal(values, expected.values)
    finite = values.isfinite()
    assert torch.equal(indices[finite], expected.indices[finite])
    assert torch.equal(x.gather(1, indices), values)


def test_the_block_maxima_are_used_although_all_numbers_are_in_one_block():
    x = torch.zeros(1, BLOCK * 30)
    x[0, BLOCK : BLOCK + 8] = torch.arange(8.0) + 1
    assert largest(x, 8)[1].tolist() == [list(range(BLOCK + 7, BLOCK - 1, -1))]


def test_log_softmax_of_a_slice_equals_that_of_a_copy():
    torch.manual_seed(0)
    x = torch.randn(37, 70)
    expected = x[:, :65].double().log_softmax(-1)
    torch.testing.assert_close(log_softmax(x[:, :65]).double(), expected, rtol=0, atol=1e-6)
