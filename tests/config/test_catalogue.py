"""The catalogue that the command line reads instead of the declarations."""

from __future__ import annotations

from dataclasses import replace

from adaptcl.config.catalogue import FILE, read_catalogue
from adaptcl.config.config import all_settings
from tools.make_catalogue import catalogue_text


def test_the_catalogue_is_up_to_date() -> None:
    up_to_date = FILE.read_text(encoding="utf-8") == catalogue_text()
    assert up_to_date, "A declaration has changed: run `make catalogue` and commit catalogue.json."


def test_settings_are_the_same_as_declared() -> None:
    for name, each in all_settings().items():
        assert read_catalogue().settings[name] == replace(each, condition=None)


def test_every_setting_stands_under_a_heading() -> None:
    groups = {each.group for each in read_catalogue().settings.values()}
    assert {"job", "data", "training", "environment", "output", "machine"} <= groups
    assert {"pruning (strategy adaptcl)", "strategy ssp-s", "codec dgc"} <= groups
    assert "strategies heterofl, fedrolex" in groups
