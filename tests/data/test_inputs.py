"""What a trained model takes, on disk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptcl.data.samples import Inputs
from adaptcl.errors import RunFolderError

IMAGES = Inputs((3, 8, 8), "uint8", (0.5, 0.4, 0.3), (0.25, 0.25, 0.25), ("cat", "dog"))


@pytest.mark.parametrize("inputs", [IMAGES, Inputs((12,), "int64", None, None, ())])
def test_it_is_read_back_as_it_was_written(inputs: Inputs) -> None:
    assert Inputs.from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


@pytest.mark.parametrize(
    "change",
    [
        {"shape": ["sh", "-c", "id"]},
        {"shape": "3"},
        {"shape": None},
        {"kind": 8},
        {"mean": ["much"]},
        {"classes": [1, 2]},
        {"colour": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RunFolderError, match=r"inputs\.json does not describe inputs"):
        Inputs.from_json(json.loads(json.dumps(IMAGES.to_json())) | change)
