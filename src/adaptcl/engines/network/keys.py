"""Who may take part: a certificate for the server and a key for each worker.

`make_keys` writes one folder for each machine. A worker trusts the one certificate authority in
its folder, and nothing else. The server knows workers by their public keys, whose order gives them
their numbers. The authority's key is used once and never written, so nobody can certify another
server.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from adaptcl.errors import SettingError

_VALID = datetime.timedelta(days=730)
_SOON = datetime.timedelta(days=60)  # how long before its end a certificate is warned of
_CLOCKS_DIFFER = datetime.timedelta(hours=1)

_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?({_LABEL}\.)*{_LABEL}", re.ASCII | re.IGNORECASE)
"""A host's name: labels with dots between, and underscores, as container networks have them."""

_AUTHORITY, _CERTIFICATE, _KEY, _WORKERS = "authority.pem", "server.pem", "key.pem", "workers"


@dataclass(frozen=True)
class ServerKeys:
    """The server's folder."""

    certificate: Path
    key: Path
    workers: tuple[bytes, ...]  # each worker's public key
    surplus: tuple[bytes, ...] = ()  # keys of further workers, for which the run has no place


@dataclass(frozen=True)
class WorkerKeys:
    """A worker's folder."""

    authority: bytes
    key: ec.EllipticCurvePrivateKey


def make_keys(folder: Path, workers: int, hosts: Sequence[str]) -> list[Path]:
    """Write the folders `server`, `worker-0`, `worker-1`, … into a new folder; gives them."""
    with _saying_why_not(folder):
        if folder.exists() and any(folder.iterdir()):
            raise SettingError(
                f"{folder} is not empty; keys are never written over others. `adaptcl keys "
                f"{folder} --renew N` makes a new key for worker N alone."
            )
        return _make_keys(folder, workers, hosts)


def renew_key(folder: Path, worker: int) -> Path:
    """Make a new key for one worker, or for one more than there are; gives the worker's folder.

    A server that is running lets the old key in until it is started again.
    """
    server, own = folder / "server", folder / f"worker-{worker}"
    _read(server / _KEY)
    there = len(_worker_pems(server))
    if not 0 <= worker <= there:
        raise SettingError(
            f"{folder} has keys for {there} workers, so --renew takes 0 to {there}, where {there} "
            "adds a worker."
        )
    with _saying_why_not(folder):
        key = ec.generate_private_key(ec.SECP384R1())
        authority = _known_authority(folder)
        own.mkdir(mode=0o700, exist_ok=True)
        public = server / _WORKERS / f"{worker}.pem"
        for path in (own / _AUTHORITY, own / _KEY, public):
            path.unlink(missing_ok=True)
        _write_worker(own, key, authority, public)
    return own


@contextmanager
def _saying_why_not(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(f"Keys cannot be written to {folder} ({error.strerror}).") from None


def _make_keys(folder: Path, workers: int, hosts: Sequence[str]) -> list[Path]:
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority = _authority(authority_key)
    server_key = ec.generate_private_key(ec.SECP384R1())
    certificate = _server_certificate(server_key, hosts, authority, authority_key)

    server = folder / "server"
    server.mkdir(parents=True, mode=0o700)
    (server / _WORKERS).mkdir(mode=0o700)
    folders = [server]
    _write(server / _CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    _write(server / _KEY, _private(server_key))
    trusted = authority.public_bytes(serialization.Encoding.PEM)
    _write(server / _AUTHORITY, trusted)  # for keys that are renewed later
    for number in range(workers):
        worker = folder / f"worker-{number}"
        worker.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP384R1())
        _write_worker(worker, key, trusted, server / _WORKERS / f"{number}.pem")
        folders.append(worker)
    return folders


def _write_worker(
    folder: Path, key: ec.EllipticCurvePrivateKey, authority: bytes, public: Path
) -> None:
    """Write a worker's folder, and its public key for the server."""
    _write(folder / _AUTHORITY, authority)
    _write(folder / _KEY, _private(key))
    _write(public, public_pem(key))


def _known_authority(folder: Path) -> bytes:
    """The certificate of the authority that signed the server's, as workers trust it."""
    places = [folder / "server" / _AUTHORITY, *sorted(folder.glob(f"worker-*/{_AUTHORITY}"))]
    return _read(next((place for place in places if place.exists()), places[0]))


def _worker_pems(server: Path) -> list[Path]:
    """The public keys of workers 0, 1, …, as far as there are any."""
    every = (server / _WORKERS / f"{number}.pem" for number in count())
    return list(takewhile(os.path.exists, every))


def server_keys(folder: Path, workers: int) -> ServerKeys:
    """The server's certificate and the workers it lets in."""
    if (folder / "server").is_dir():
        folder = folder / "server"
    present = _worker_pems(folder)
    there = len(present)
    if 0 < there < workers:
        raise SettingError(
            f"{folder} has keys for {there} worker{'' if there == 1 else 's'} only, but the run "
            f"has {workers}; give --workers {there}, or add one by `adaptcl keys FOLDER "
            f"--renew {there}`."
        )
    paths = [folder / _WORKERS / f"{number}.pem" for number in range(workers)]
    keys = tuple(map(_read, paths))
    for name in (_CERTIFICATE, _KEY):
        _read(folder / name)
    _refuse_unpaired(folder / _CERTIFICATE, folder / _KEY)
    surplus = tuple(map(_read, present[workers:]))
    return ServerKeys(folder / _CERTIFICATE, folder / _KEY, keys, surplus)


def worker_keys(folder: Path) -> WorkerKeys:
    """A worker's key, and the authority it trusts."""
    if (folder / _WORKERS).is_dir():
        raise SettingError(
            f"{folder} is the server's folder of keys; a worker's --tls is one of those named "
            "worker-N beside it."
        )
    content = _read(folder / _KEY)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise SettingError(
            f"{folder / _KEY} is locked by a password, but nobody is there to give it when a "
            "worker starts; put back the key as `adaptcl keys` made it."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise SettingError(f"{folder / _KEY} is not a private key.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{folder / _KEY} is not an elliptic-curve key.")
    authority = _read(folder / _AUTHORITY)
    try:
        trusting(authority)
    except (ValueError, ssl.SSLError):
        raise SettingError(f"{folder / _AUTHORITY} is not a certificate.") from None
    return WorkerKeys(authority, key)


def expiry_warning(certificate: bytes) -> str:
    """A sentence if a certificate ends soon; nothing otherwise."""
    last = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    left = last - datetime.datetime.now(datetime.UTC)
    if left > _SOON:
        return ""
    is_valid = "is valid until" if left.total_seconds() > 0 else "was valid until"
    return (
        f"warning: the certificate of the server {is_valid} {last:%Y-%m-%d}; make new folders for "
        "all machines by `adaptcl keys`."
    )


def trusting(authority: bytes) -> ssl.SSLContext:
    """TLS that trusts the servers certified by this authority, and no others."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(cadata=authority.decode("ascii"))
    return trust


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half of a key, as Flower writes it."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "AdaptCL authority of one run")])
    return (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certifies=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server_certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "AdaptCL server")])
    return (
        _certificate(name, authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certifies=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
    )


def _usage(*, certifies: bool) -> x509.KeyUsage:
    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not certifies,
        key_cert_sign=certifies,
        crl_sign=certifies,
        **dict.fromkeys((*never, "encipher_only", "decipher_only"), False),
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if _NAME.fullmatch(host) is None or host.rpartition(".")[2].isdigit():
        raise SettingError(f"--host is {host!r}, but it must be a host's name or its address.")
    return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _refuse_unpaired(certificate: Path, key: Path) -> None:
    """Else the port would fail when it opens, in the words of OpenSSL."""
    try:
        # For a key with a password this gives an empty one, which no key has.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError):
        raise SettingError(
            f"{certificate} and {key.name} beside it are not a certificate and its key, as "
            "`adaptcl keys` made them."
        ) from None


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}); `adaptcl keys` makes the folders for "
            "--tls, one for each machine."
        ) from None
