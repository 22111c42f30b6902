"""Shells complete commands, flags and values; editors check settings files."""

from __future__ import annotations

import json
import subprocess
import tomllib

import pytest
from jsonschema import Draft202012Validator

from adaptcl.cli.main import main
from adaptcl.config import configure, preset, presets


def completed(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash offers for the last word."""
    assert main(["completion"]) == 0
    script = capsys.readouterr().out
    listed = words.split(" ")
    ask = f"""
COMP_WORDS=({" ".join(word or "''" for word in listed)}); COMP_CWORD={len(listed) - 1}
_adaptcl; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_flags_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert completed("adaptcl fore", capsys) == ["forecast"]
    assert completed("adaptcl run --pruning-i", capsys) == ["--pruning-interval"]
    assert completed("adaptcl run --partition dir", capsys) == ["dirichlet"]
    assert "--token" not in completed("adaptcl watch --", capsys)


def test_every_preset_and_its_complete_settings_fit_the_schema(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)
    for name in presets():
        settings = tomllib.loads(configure(preset(name)).to_toml())
        assert list(check.iter_errors(settings)) == []
    assert list(check.iter_errors({"rounds": 0}))
    assert list(check.iter_errors({"strategy": "adaptcll"}))
    assert not list(check.iter_errors({"strategy": "my.module:Mine"}))
