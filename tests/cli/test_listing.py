"""Lists of everything that has a name, and help for shells and editors."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable, Iterable

import pytest
from jsonschema import Draft202012Validator

from adaptcl.cli import main
from adaptcl.codecs import CODECS
from adaptcl.config.config import configure
from adaptcl.config.files import preset, presets
from adaptcl.data import DATASETS
from adaptcl.models import MODELS
from adaptcl.pruning import ORDERS
from adaptcl.strategies import STRATEGIES

Command = Callable[..., tuple[int, str, str]]


def test_everything_with_a_name_is_listed(command: Command) -> None:
    lists: dict[str, Iterable[str]] = {
        "strategies": STRATEGIES,
        "prunings": ORDERS,
        "codecs": CODECS,
        "models": MODELS,
        "presets": presets(),
        "data": DATASETS,
    }
    for what, names in lists.items():
        status, output, errors = command(what)
        assert (status, errors) == (0, "")
        listed = [line.split(maxsplit=1) for line in output.splitlines()]
        assert [name for name, _ in listed] == list(names)
        assert all(len(summary) > 5 for _, summary in listed)


def test_custom_classes_are_told_if_they_can_be_used(command: Command) -> None:
    for what, name, summary, flag in [
        ("strategies", "adaptcl.strategies.ssp:SSP", "", "--staleness-threshold"),
        ("prunings", "adaptcl.pruning.worker_orders:L1", "(computed by each worker)", ""),
        ("codecs", "adaptcl.codecs.dgc:DGC", "", "--dgc-sparsity"),
    ]:
        status, output, _ = command(what, name)
        assert status == 0
        assert output.startswith(f"{name}: ")
        assert output.splitlines()[0].endswith(summary)
        assert flag in output
    status, _, errors = command("codecs", "adaptcl.pruning.worker_orders:L1")
    assert (status, errors.partition(":")[0]) == (2, "adaptcl")
    assert "is not one of the models" in command("models", "adaptcl.codecs.codec:Plain")[2]


def test_shipped_and_custom_methods_are_told_together(command: Command) -> None:
    output = command("strategies", "fedavg", "adaptcl.strategies.ssp:SSP")[1]
    assert output.startswith("fedavg: ")
    assert "\nadaptcl.strategies.ssp:SSP: " in output


def test_one_method_is_told_with_its_settings(command: Command) -> None:
    status, output, errors = command("strategies", "adaptcl")
    assert (status, errors) == (0, "")
    assert output.startswith("adaptcl: a sub-model for each worker")
    assert "  --pruning-interval\n" in output
    assert "  --grow, --no-grow\n" in output
    assert "--mixing" not in output  # of another strategy
    assert "--aggregation" not in command("strategies", "fedavg")[1]  # has no effect there
    assert "--dgc-sparsity" in command("codecs", "dgc")[1]
    assert tomllib.loads(command("presets", "default")[1].partition("\n")[2]) == preset("default")


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
    shown = {name: each.get("default") for name, each in schema["properties"].items()}
    assert (shown["model"], shown["rounds"], shown["participants"]) == ("small", 16, 0)
    check = Draft202012Validator(schema)
    check.validate({"strategy": ["fedavg", "adaptcl"], "seed": [1, 2], "sigma": [2, 4]})
    for name in presets():
        settings = tomllib.loads(configure(preset(name)).to_toml())
        assert list(check.iter_errors(settings)) == []
    assert list(check.iter_errors({"rounds": 0}))
    assert list(check.iter_errors({"strategy": "adaptcll"}))
    assert not list(check.iter_errors({"strategy": "my.module:Mine"}))
