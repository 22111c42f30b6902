"""The kernel that makes batches against the plain operations; `make test-gpu` runs these."""

from __future__ import annotations

import pytest
import torch

from adaptcl.data import Samples
from adaptcl.training.batches import crop_and_flip, draw_moves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 9, 7)])
def test_a_batch_is_what_the_plain_operations_make(
    shape: tuple[int, int, int], moved: bool
) -> None:
    from adaptcl.training.gpu.batch import batch, fits

    randomness = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (50, *shape), dtype=torch.uint8, generator=randomness)
    labels = torch.randint(0, 10, (50,), generator=randomness)
    channels = shape[0]
    samples = Samples(inputs, labels, (0.4,) * channels, (0.2,) * channels).to("cuda")
    assert fits(samples, 16)
    indexes = torch.randint(0, 50, (3, 16), generator=randomness)
    moves = [draw_moves(16, randomness) for _ in indexes]
    table = torch.zeros(3, 4 if moved else 1, 20, dtype=torch.long)
    table[:, 0, :16] = indexes
    for row, each in zip(table, moves if moved else (), strict=False):
        row[1:, :16] = each
    for number in range(3):
        counter = torch.tensor([number], device="cuda")
        images, image_labels = batch(samples, table.cuda(), counter, 16, moved=moved)
        expected, expected_labels = samples.batch(indexes[number].cuda())
        if moved:
            expected = crop_and_flip(expected, moves[number])
        assert torch.allclose(images, expected, atol=1e-6)
        assert torch.equal(image_labels, expected_labels)
