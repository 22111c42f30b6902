"""Custom codecs and pruning orders across a network: a worker imports only what its owner names."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from adaptcl.data.description import SampleForm
from adaptcl.engines.network.invitation import Invitation, MismatchError
from adaptcl.engines.network.worker.local_data import LocalData
from adaptcl.errors import AdaptCLError, SettingError
from adaptcl.runs.network.worker import OwnerChoices, prepare, refuse_unusable, work

if TYPE_CHECKING:
    from tests.engines.network.conftest import Site

OWNER = OwnerChoices("digits", "", "", "cpu", dealt=True)
METHODS = """
import torch
from adaptcl.codecs.codec import Plain
from adaptcl.strategies import Synchronous

class Codec(Plain):
    summary = "mine"

class Order:
    summary = "mine"
    def importance(self, view):
        return torch.arange(view.units.count).float()

class Strategy(Synchronous):
    summary = "mine"

def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)

def halved(round):
    return 0.5 ** round
"""


def allowing(setting: str, name: str) -> OwnerChoices:
    return replace(OWNER, **{setting: name})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_owner.py").write_text(METHODS)
    (tmp_path / "of_the_server.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_the_owner", raising=False)


def invitation(**others: Any) -> Invitation:
    settings = {"model": "small", "workers": 1, "codec": "plain", "seed": 3}
    inputs = SampleForm((1, 8, 8), "uint8", None, None, tuple("0123456789"))
    return Invitation("run", 0, "print", {**settings, **others}, inputs, {})


@pytest.mark.parametrize(
    ("setting", "does"),
    [
        ("codec", "uses the codec"),
        ("pruning", "prunes in the order"),
        ("optimizer", "trains with the optimizer"),
        ("schedule", "trains by the schedule"),
    ],
)
def test_a_worker_imports_nothing_that_only_the_server_names(setting: str, does: str) -> None:
    asked = invitation(**{setting: "of_the_server:Best"})
    for own, allowed in (("", "none is"), ("of_the_owner:Codec", "only 'of_the_owner:Codec' is")):
        owner = allowing(setting, own)
        with pytest.raises(MismatchError) as refused:
            prepare(owner, LocalData.named("digits"), asked)
        assert str(refused.value) == (
            f"The server {does} 'of_the_server:Best'; a worker imports only what its owner names, "
            f"and {allowed} allowed there; start the worker with --{setting} 'of_the_server:Best' "
            "if that is meant."
        )
    assert "of_the_server" not in sys.modules


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [("codec", "cannot be a codec: it has no"), ("pruning", "cannot be a pruning order")],
)
def test_what_an_owner_allows_must_be_one(tmp_path: Path, setting: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        refuse_unusable(allowing(setting, "of_the_owner:Strategy"), tmp_path)


def test_runs_with_a_custom_strategy_codec_and_order(site: Site) -> None:
    """Workers need the codec and the order; the strategy is needed on the server only."""
    owner = replace(OWNER, codec="of_the_owner:Codec", pruning="of_the_owner:Order")
    for number in range(2):
        _work(site, number, owner)
    first, second = site.serve(
        site.settings(
            strategy="adaptcl",
            codec=owner.codec,
            pruning=owner.pruning,
            rounds=3,
            first_pruning=2,
            pruned_rates=((0.3, 0.2),),
            width_multiple=1,
        ),
        site.settings(strategy="of_the_owner:Strategy", rounds=1),
    )
    assert max(first.summary.retention) < 1
    assert not any(bool(kept[0]) for kept in first.sub_models.distinct)
    assert second.summary.strategy == "of_the_owner:Strategy"


def test_an_optimizer_and_a_schedule_of_the_owners_train_as_in_a_simulation(site: Site) -> None:
    owner = replace(OWNER, optimizer="of_the_owner:adam", schedule="of_the_owner:halved")
    for number in range(2):
        _work(site, number, owner)
    chosen = site.settings(
        strategy="fedavg", rounds=2, optimizer=owner.optimizer, schedule=owner.schedule
    )
    (result,) = site.serve(chosen)
    expected = site.undisturbed(chosen).model.state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


def _work(site: Site, number: int, owner: OwnerChoices) -> None:
    def run() -> None:
        site.wait_for_server()
        memory = site.folder / f"memory-{number}"
        with suppress(AdaptCLError):  # as it is where a test ends without its workers
            work(owner, site.connection(number), memory, lambda _: None)

    threading.Thread(target=run, daemon=True).start()
