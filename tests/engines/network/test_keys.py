"""Keys are for their owner's eyes, and for one run's machines only."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the network engine needs flwr: pip install 'adaptcl[network]'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from adaptcl.engines.network import keys
from adaptcl.engines.network.keys import (
    expiry_warning,
    make_keys,
    public_pem,
    renew_key,
    server_keys,
    worker_keys,
)
from adaptcl.errors import SettingError

BROKEN = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_each_machine_gets_a_folder_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folders = make_keys(tmp_path / "keys", 2, ["localhost"])
    assert [folder.name for folder in folders] == ["server", "worker-0", "worker-1"]
    for path in (tmp_path / "keys").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_server_knows_the_workers_in_their_order(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 3, ["localhost"])
    known = server_keys(tmp_path / "keys", 3).workers
    own = [public_pem(worker_keys(tmp_path / "keys" / f"worker-{n}").key) for n in range(3)]
    assert list(known) == own
    assert len(set(own)) == 3
    assert server_keys(tmp_path / "keys" / "server", 3).workers == known


def test_the_certificate_is_for_the_hosts_named_and_signed_by_the_authority(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 1, ["server.example", "192.0.2.7"])
    content = (tmp_path / "keys" / "server" / "server.pem").read_bytes()
    certificate = x509.load_pem_x509_certificate(content)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    authority = x509.load_pem_x509_certificate(
        (tmp_path / "keys" / "worker-0" / "authority.pem").read_bytes()
    )
    certificate.verify_directly_issued_by(authority)


def test_the_authoritys_own_key_is_nowhere(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 2, ["localhost"])
    authority = x509.load_pem_x509_certificate(
        (tmp_path / "keys" / "worker-0" / "authority.pem").read_bytes()
    ).public_key()
    assert isinstance(authority, ec.EllipticCurvePublicKey)
    for path in (tmp_path / "keys").rglob("key.pem"):
        assert path.parent.name in ("server", "worker-0", "worker-1")
    folders = [tmp_path / "keys" / name for name in ("worker-0", "worker-1")]
    assert authority not in [worker_keys(folder).key.public_key() for folder in folders]


def test_keys_are_never_written_over_others(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 1, ["localhost"])
    with pytest.raises(SettingError, match="not empty"):
        make_keys(tmp_path / "keys", 1, ["localhost"])


@pytest.mark.parametrize("worker", [1, 2])  # one that is there, and one more
def test_a_renewed_key_changes_nothing_for_the_other_machines(tmp_path: Path, worker: int) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, 2, ["localhost"])
    before = server_keys(keys, 2)
    trusted = worker_keys(keys / "worker-0").authority
    shutil.rmtree(keys / "worker-0")  # as the documents tell
    shutil.rmtree(keys / "worker-1")

    folder = renew_key(keys, worker)

    assert folder == keys / f"worker-{worker}"
    mine = worker_keys(folder)
    assert mine.authority == trusted
    after = server_keys(keys, max(2, worker + 1))
    assert after.workers[worker] == public_pem(mine.key) not in before.workers
    assert after.workers[0] == before.workers[0]
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("worker", [-1, 3])
def test_only_the_next_worker_is_added(tmp_path: Path, worker: int) -> None:
    make_keys(tmp_path / "keys", 2, ["localhost"])
    with pytest.raises(SettingError, match="so --renew takes 0 to 2, where 2 adds a worker"):
        renew_key(tmp_path / "keys", worker)


def test_keys_are_not_written_where_there_is_no_folder_to_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "keys"):
        with pytest.raises(SettingError) as refused:
            make_keys(folder, 1, ["localhost"])
        assert str(refused.value) == f"Keys cannot be written to {folder} (Not a directory)."


def test_a_key_that_asks_for_a_password_is_refused_with_what_to_do(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 1, ["localhost"])
    own = tmp_path / "keys" / "worker-0"
    locked = worker_keys(own).key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    (own / "key.pem").write_bytes(locked)
    with pytest.raises(
        SettingError, match=r"key\.pem is locked by a password, .* put back the key"
    ):
        worker_keys(own)


@pytest.mark.parametrize("content", [b"", b"\xff", b"words", BROKEN])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("key.pem", "is not a private key"), ("authority.pem", "is not a certificate")],
)
def test_what_is_no_key_or_certificate_of_a_worker_is_named(
    tmp_path: Path, name: str, sentence: str, content: bytes
) -> None:
    make_keys(tmp_path / "keys", 1, ["localhost"])
    own = tmp_path / "keys" / "worker-0"
    (own / name).write_bytes(content)
    with pytest.raises(SettingError) as refused:
        worker_keys(own)
    assert str(refused.value) == f"{own / name} {sentence}."


@pytest.mark.parametrize("content", [b"", b"\xff", b"words", BROKEN])
@pytest.mark.parametrize("name", ["key.pem", "server.pem"])
def test_what_is_no_key_or_certificate_of_a_server_is_named(
    tmp_path: Path, name: str, content: bytes
) -> None:
    make_keys(tmp_path / "keys", 1, ["localhost"])
    (tmp_path / "keys" / "server" / name).write_bytes(content)
    with pytest.raises(SettingError, match="are not a certificate and its key"):
        server_keys(tmp_path / "keys", 1)


@pytest.mark.parametrize(("made", "words"), [(1, "1 worker only"), (2, "2 workers only")])
def test_fewer_keys_than_workers_are_counted(tmp_path: Path, made: int, words: str) -> None:
    make_keys(tmp_path / "keys", made, ["localhost"])
    with pytest.raises(SettingError) as refused:
        server_keys(tmp_path / "keys", 3)
    assert str(refused.value) == (
        f"{tmp_path / 'keys' / 'server'} has keys for {words}, but the run has 3; give --workers "
        f"{made}, or add one by `adaptcl keys FOLDER --renew {made}`."
    )
    assert len(server_keys(tmp_path / "keys", made).workers) == made


@pytest.mark.parametrize(
    "host",
    ["bad host", "", " ", "host:9092", "http://host", "-host", "host-", "a..b", ".host",
     "256.1.1.1", "[::1]", "a" * 64, ".".join(["abcdefg"] * 40), "münchen.example", "*",
     "localhost\n"],
)  # fmt: skip
def test_what_is_neither_a_name_nor_an_address_is_no_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingError) as refused:
        make_keys(tmp_path / "keys", 1, ["localhost", host])
    assert str(refused.value) == (
        f"--host is {host!r}, but it must be a host's name or its address."
    )
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    "host", ["localhost", "Server-1.example", "a_b", "3com.example", "*.example", "::1", "10.0.0.1"]
)
def test_names_and_addresses_are_hosts(tmp_path: Path, host: str) -> None:
    assert len(make_keys(tmp_path / "keys", 1, [host])) == 2


def test_a_certificate_is_warned_of_in_its_last_sixty_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "new", 1, ["localhost"])
    assert expiry_warning(worker_keys(tmp_path / "new" / "worker-0").authority) == ""
    monkeypatch.setattr(keys, "_VALID", timedelta(days=59))
    make_keys(tmp_path / "old", 1, ["localhost"])
    for content in (
        worker_keys(tmp_path / "old" / "worker-0").authority,
        server_keys(tmp_path / "old", 1).certificate.read_bytes(),
    ):
        assert re.match(
            r"warning: .* is valid until \d{4}-\d\d-\d\d; make new", expiry_warning(content)
        )
