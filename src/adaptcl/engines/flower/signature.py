"""Whether a request's head was signed by the key that it shows.

Flower checks that too, but only when it has read all of the body, and until then anybody could
pass for a worker who has seen its public key. What is signed is the time alone, so the head says
enough.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime

from flwr.common.constant import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature


def is_signed(headers: Mapping[bytes, bytes], key: bytes) -> bool:
    """Whether whoever sends these headers has the private half of a key, and has signed lately."""
    try:
        stamp = headers[TIMESTAMP_HEADER.lower().encode()]
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower().encode()], validate=True)
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        return -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE and (
            verify_signature(bytes_to_public_key(key), stamp, signature)
        )
    except (KeyError, ValueError, TypeError):
        return False
