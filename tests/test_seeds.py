from __future__ import annotations

import torch

from adaptcl.seeds import derive, generator


def test_every_argument_matters() -> None:
    seeds = {
        derive(seed, purpose, worker, number)
        for seed in range(3)
        for purpose in ("batches", "model")
        for worker in range(11)
        for number in range(11)
    }
    assert len(seeds) == 3 * 2 * 11 * 11


def test_neighbouring_names_do_not_run_together() -> None:
    assert derive(1, 12, 3) != derive(1, 1, 23)
    assert derive(11, 2) != derive(1, 12)


def test_a_generator_is_fresh_each_time() -> None:
    first, second = generator(1, "a"), generator(1, "a")
    drawn = torch.rand(5, generator=first)
    assert torch.equal(drawn, torch.rand(5, generator=second))
    assert not torch.equal(drawn, torch.rand(5, generator=generator(1, "b")))


def test_a_seed_is_the_same_in_every_process_and_version() -> None:
    assert derive(3, "jitter", 2, 9) == 4_155_170_446_542_185_727
