"""Measured training times."""

from __future__ import annotations

import pytest

from paper.profile import RETENTIONS, Profile, measure_profile
from paper.result import Provenance


def test_a_cpu_takes_less_time_for_a_smaller_sub_model() -> None:
    measured = measure_profile("small", "cpu", "tf32", batch_size=32, steps=1, seconds=0.1)
    assert measured.retention[0] == 1.0
    for kept, wanted in zip(measured.retention, RETENTIONS, strict=True):
        assert kept <= wanted + 1e-6
        assert kept > wanted - 0.05
    assert measured.seconds[-1] < measured.seconds[0]
    assert Profile.from_json(measured.to_json()) == measured


@pytest.mark.parametrize(
    ("seconds", "share"), [((2, 1.5, 1), 1), ((2, 2, 2), 0), ((2, 1.75, 1.5), 0.5)]
)
def test_the_share_is_how_much_of_the_time_falls_with_the_work(
    seconds: tuple[float, ...], share: float, nobody: Provenance
) -> None:
    made = Profile("vgg16", 64, nobody, (1.0, 0.75, 0.5), (1.0, 0.75, 0.5), seconds)
    assert made.flops_share == pytest.approx(share)
