"""Custom strategies, pruning orders and codecs, named `package.module:Class`."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptcl
from adaptcl import data
from adaptcl.config.config import all_settings, configure
from adaptcl.errors import SettingError
from adaptcl.events import Event, RoundFinished
from adaptcl.models import build
from adaptcl.pruning import custom_order, custom_worker_orders, server_order
from adaptcl.strategies import Synchronous, strategy_class

METHODS = """
from dataclasses import dataclass

import torch

from adaptcl.codecs.codec import Plain
from adaptcl.settings import setting
from adaptcl.strategies import Synchronous, SynchronousSettings


def settings_with(name, default=1.0, kind=float, **more):
    made = type("Made", (SynchronousSettings,), {
        "__annotations__": {name: kind}, name: setting(default, "a number", **more)})
    return dataclass(frozen=True)(made)


class Momentum(Synchronous):
    summary = "momentum"
    Settings = settings_with("server_momentum", 0.9, at_least=0, below=1)

    def __init__(self, job, settings):
        super().__init__(job, settings)
        self.momentum, self.velocity = settings.server_momentum, {}

    def next_model(self, merged):
        for name in self.units.parameters & merged.keys():
            change = merged[name] - self.state[name]
            self.velocity[name] = self.momentum * self.velocity.get(name, 0) + change
            merged[name] = self.state[name] + self.velocity[name]
        return merged

    def snapshot(self):
        return {"barrier": super().snapshot(), "velocity": self.velocity}

    def restore(self, tree):
        super().restore(tree["barrier"])
        self.velocity = tree["velocity"]


class TakesAName(Synchronous):
    summary = "clashes"
    Settings = settings_with("learning_rate")


class TakesAFlag(Synchronous):
    summary = "clashes"
    Settings = settings_with("out")


class OddType(Synchronous):
    summary = "settings of an odd type"
    Settings = settings_with("odd", b"", bytes)


class Undeclared(Synchronous):
    summary = "settings that are none"

    @dataclass(frozen=True)
    class Settings(SynchronousSettings):
        server_rate: float = 1.0


class NoDataclass(Synchronous):
    summary = "no settings"
    Settings = dict


class OtherArguments(Synchronous):
    summary = "takes something else"

    def __init__(self, job):
        pass


class Fails(Synchronous):
    summary = "fails"

    def next_model(self, merged):
        return merged["nowhere"]


class Overwrites(Synchronous):
    summary = "has a private attribute that its base has too"

    def __init__(self, job, settings):
        super().__init__(job, settings)
        self._asked = []


class FailsAtOnce(Synchronous):
    summary = "fails"

    def __init__(self, job, settings):
        raise ZeroDivisionError("at once")


class Reversed:
    summary = "computed by each worker"

    def importance(self, view):
        assert view.samples is not None
        return torch.arange(view.units.count).float()


class TooShort:
    summary = "of too few"
    computed = "every-pruning"

    def importance(self, view):
        return torch.ones(view.units.count - 1)


class Nobodys(Reversed):
    computed = "by-nobody"


class Once(Reversed):
    computed = "once"


class Anew(Reversed):
    computed = "every-pruning"


class ByWorkers(Reversed):
    computed = "by-workers"


class NotFinite(TooShort):
    def importance(self, view):
        return torch.full((view.units.count,), float("nan"))


class Mine(Plain):
    summary = "mine"


def function(job, settings):
    pass


nothing = 3
"""

SMALL = ["--model", "small", "--data", "digits", "--samples", "100", "--workers", "2",
         "--rounds", "2", "--epochs", "1"]  # fmt: skip
Command = Callable[..., tuple[int, str, str]]
TRAIN, TEST = (lambda made: (made.train.take(torch.arange(200)), made.test))(data.load("digits"))


@pytest.fixture(autouse=True)
def _methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(METHODS)
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def run(**settings: Any) -> adaptcl.Result:
    small = {"workers": 2, "rounds": 4, "epochs": 0.2, "strategy": "mine:Momentum"}
    small |= {"figures": "none"}
    return adaptcl.run(build("small", (1, 8, 8), 10, 1), TRAIN, TEST, **{**small, **settings})


def weights(result: adaptcl.Result) -> torch.Tensor:
    return torch.cat([tensor.flatten().float() for tensor in result.model.state_dict().values()])


# Refused -----------------------------------------------------------------------------------------

CLASH = "but that name has another meaning already; choose another name."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Best", "There is no module nowhere, where a strategy 'nowhere:Best' should be; "
         "is it in the folder where you are, or on PYTHONPATH?"),
        ("mine:Best", "The module mine has no Best, which a strategy 'mine:Best' should be."),
        ("mine:nothing", "mine:nothing is an int, but a strategy must be a class."),
        ("mine:function", "mine:function is a function, but a strategy must be a class."),
        ("mine:Mine", "mine:Mine cannot be a strategy: it has no start, receive, expired, lost, "
         "joined, rounds, finished, model, sub_models, outstanding, snapshot, restore."),
        ("mine:OtherArguments", "mine:OtherArguments is called as OtherArguments(job, settings) "
         "and must return a strategy, but it is defined as OtherArguments(job)."),
        ("mine:NoDataclass", "The Settings of mine:NoDataclass must be a dataclass."),
        ("mine:Undeclared", "The Settings of mine:Undeclared have server_rate, which must be "
         "declared as server_rate: TYPE = setting(DEFAULT, HELP)."),
        ("mine:OddType", "The Settings of mine:OddType have odd, whose type no setting can have; "
         "it must be a whole number, a number, true or false, text or a list of one of them."),
        ("mine:TakesAName", f"mine:TakesAName has a setting learning_rate, {CLASH}"),
        ("mine:TakesAFlag", f"mine:TakesAFlag has a setting out, {CLASH}"),
    ],
)  # fmt: skip
def test_a_strategy_that_is_none_is_refused_in_a_sentence_and_leaves_nothing_behind(
    command: Command, name: str, sentence: str
) -> None:
    told = command("run", *SMALL, "--strategy", name, "--out", "here")
    assert told == (2, "", f"adaptcl: {sentence}\n")
    assert not Path("here").exists()


def test_a_codec_or_order_that_is_none_is_refused_too(command: Command) -> None:
    told = command("run", *SMALL, "--codec", "mine:Reversed")
    assert told == (2, "", "adaptcl: mine:Reversed cannot be a codec: it has no Settings, encode, "
                    "size, decode.\n")  # fmt: skip
    told = command("run", *SMALL, "--strategy", "adaptcl", "--pruning", "mine:Mine")
    assert told == (2, "", "adaptcl: mine:Mine cannot be a pruning order: it has no importance.\n")
    told = command("run", *SMALL, "--strategy", "adaptcl", "--pruning", "mine:Nobodys")
    refusal = (
        "adaptcl: mine:Nobodys cannot be a pruning order: its `computed` is 'by-nobody', but it "
        "must be one of once, every-pruning, by-workers.\n"
    )
    assert told == (2, "", refusal)


@pytest.mark.parametrize(
    ("order", "computed"),
    [("Once", "once"), ("Anew", "every-pruning"), ("ByWorkers", "by-workers"),
     ("Reversed", "by-workers"), ("TooShort", "every-pruning")],
)  # fmt: skip
def test_an_order_says_who_computes_it(order: str, computed: str) -> None:
    name = f"mine:{order}"
    assert custom_order(name).computed == computed
    is_workers = computed == "by-workers"
    assert (server_order(name) is None) == is_workers
    assert bool(custom_worker_orders(name)) == is_workers


@pytest.mark.parametrize("name", ["mine", "mine:", ":Best", "a b:C", "..mine:Best", "mine:A.B"])
def test_what_does_not_look_like_a_name_is_no_choice(name: str) -> None:
    with pytest.raises(SettingError, match=r"must be one of fedavg, .*package\.module:Class"):
        configure({"strategy": name})


@pytest.mark.parametrize(
    ("order", "sentence"),
    [("TooShort", r"gives a Tensor of shape \[\d+\], but it must give a Tensor with one number"),
     ("NotFinite", "gives an importance that is not finite")],
)  # fmt: skip
def test_an_order_that_cannot_be_used_is_refused_when_it_is(order: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        run(strategy="adaptcl", pruning=f"mine:{order}")


@pytest.mark.parametrize(
    ("name", "error", "where"),
    [("Fails", KeyError, "Fails.next_model"),
     ("FailsAtOnce", ZeroDivisionError, "FailsAtOnce.__init__")],
)  # fmt: skip
def test_what_fails_inside_is_shown_in_full_and_said_whose_it_is(
    name: str, error: type[Exception], where: str
) -> None:
    with pytest.raises(error) as failed:
        run(strategy=f"mine:{name}")
    assert failed.value.__notes__ == [
        f"This happened in mine:{name}, in {where}, which is not AdaptCL's code."
    ]


def test_what_fails_in_an_inherited_method_is_said_to_be_called_in_ones_own_class() -> None:
    with pytest.raises(IndexError) as failed:
        run(strategy="mine:Overwrites")
    assert failed.value.__notes__ == [
        "This happened in Synchronous._task, which mine:Overwrites inherits; look whether your "
        "class sets an attribute that its base has too."
    ]


def test_an_import_that_a_module_lacks_is_not_taken_for_the_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there") as failed:
        strategy_class("broken:Best")
    assert failed.value.__notes__ == ["This happened when broken was imported for broken:Best."]


# Settings ----------------------------------------------------------------------------------------


def test_settings_of_ones_own_are_known_where_their_class_is_named() -> None:
    assert "server_momentum" not in all_settings()
    chosen = configure({"strategy": "mine:Momentum", "server_momentum": 0.5})
    assert chosen.values()["server_momentum"] == 0.5
    assert configure(tomllib.loads(chosen.to_toml())) == chosen
    with pytest.raises(SettingError, match=r"server_momentum is 1\.5, but it must be"):
        configure({"strategy": "mine:Momentum", "server_momentum": 1.5})
    with pytest.raises(SettingError, match="There is no setting 'server_momentum'"):
        configure({"server_momentum": 0.5})


@pytest.mark.slow
def test_a_section_of_a_file_may_be_for_a_strategy_of_ones_own(command: Command) -> None:
    Path("my.toml").write_text(
        'strategy = "fedavg-s,mine:Momentum"\n["mine:Momentum"]\nserver_momentum = 0.25\n'
    )
    assert command("run", "my.toml", *SMALL, "--out", "here")[0] == 0
    written = tomllib.loads(Path("here/mine.Momentum/config.toml").read_text())
    assert written["server_momentum"] == 0.25
    assert "server_momentum" not in Path("here/fedavg-s/config.toml").read_text()


def test_help_has_the_flags_of_the_classes_that_are_named(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command("run", "--strategy", "mine:Momentum", "--help")
    words = " ".join(capsys.readouterr().out.split())
    assert "--server-momentum X a number [a number, at least 0 and below 1; default 0.9]" in words


def test_a_flag_of_a_class_that_is_not_named_is_none(command: Command) -> None:
    status, _, errors = command("run", *SMALL, "--server-momentum", "0.5")
    assert (status, errors) == (
        2, "adaptcl: There is no flag --server-momentum; did you mean --momentum?\n")  # fmt: skip


# Going on ----------------------------------------------------------------------------------------


class StoppedError(BaseException):
    """In place of a kill."""


def stop(event: Event) -> None:
    if isinstance(event, RoundFinished) and event.record.round == 2:
        raise StoppedError


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_as_it_would_have(tmp_path: Path) -> None:
    whole = run()
    with pytest.raises(StoppedError):
        run(out=tmp_path / "run", listeners=[stop])
    again = run(out=tmp_path / "run", resume=True)
    assert torch.equal(weights(again), weights(whole))


@pytest.mark.slow
def test_resume_finds_the_class_again_and_says_if_it_is_gone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("run", *SMALL, "--strategy", "mine:Momentum", "--out", "here")[0] == 0
    before = Path("here/model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors", "rounds.jsonl"):
        Path("here", name).unlink()
    Path("mine.py").rename("elsewhere")
    monkeypatch.delitem(sys.modules, "mine")
    status, _, errors = command("resume", "here")
    assert (status, errors.splitlines()[-1]) == (
        2, "adaptcl: There is no module mine, where a strategy 'mine:Momentum' should be; is it in "
        "the folder where you are, or on PYTHONPATH?")  # fmt: skip
    Path("elsewhere").rename("mine.py")
    assert command("resume", "here")[0] == 0
    assert Path("here/model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_comparing_imports_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", *SMALL, "--strategy", "fedavg-s,mine:Momentum", "--out", "here")
    assert command(*words)[0] == 0
    Path("mine.py").unlink()
    monkeypatch.delitem(sys.modules, "mine")
    status, output, _ = command("compare", "here", "--markdown")
    assert status == 0
    assert [line.split("|")[1].strip() for line in output.splitlines()[2:4]] == [
        "fedavg-s", "mine:Momentum"]  # fmt: skip
    assert "mine" not in sys.modules


# From Python -------------------------------------------------------------------------------------


class AtTheTop(Synchronous):
    summary = "a class of a module"


def test_a_class_may_be_given_itself(tmp_path: Path) -> None:
    result = run(strategy=AtTheTop, rounds=1, out=tmp_path / "run")
    assert result.summary.strategy == f"{__name__}:AtTheTop"
    assert run(strategy=AtTheTop, rounds=1, out=tmp_path / "run", resume=True).rounds


def test_a_class_without_a_name_to_find_it_by_is_refused() -> None:
    class Inside(Synchronous):
        summary = "nobody finds it again"

    with pytest.raises(SettingError, match="the class Inside, which cannot be imported"):
        run(strategy=Inside)


def test_an_order_that_workers_compute_is_used() -> None:
    """It lets the first units go first, whichever layer they are of."""
    result = run(strategy="adaptcl", pruning="mine:Reversed", pruning_interval=1, width_multiple=1)
    smallest = min(result.sub_models.distinct, key=lambda kept: int(kept.sum()))
    assert not bool(smallest.all())
    assert not bool(smallest[0])
    assert bool(smallest[-1])
