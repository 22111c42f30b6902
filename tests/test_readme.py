"""README.md: what a reader must find there."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_the_words_of_the_paper_are_explained() -> None:
    for word in ("FedAVG-S", "Virtual time", "σ", "H", "Retention"):
        assert re.search(rf"\*{word}\*(\s\(\w+\))?\sis\s", README), word


def test_the_paper_is_cited_with_its_year() -> None:
    (entry,) = re.findall(r"^```bibtex\n(.*?)^```$", README, re.M | re.S)
    for field in ("@article{", "year = {2021}", "title = {{AdaptCL}", "author = {Zhou, Guangmeng"):
        assert field in entry
