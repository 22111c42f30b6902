"""From the bytes of an answer to an update that can be used; whatever is wrong is one error.

A worker may have made its answer by hand, and with a codec of the user's own it is read by code
that is not AdaptCL's. Neither may end a server that others work with: what cannot be read is
refused, in a sentence that is fit to be shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptcl.codecs.codec import Codec
from adaptcl.engines.flower.frames import Frame
from adaptcl.engines.flower.messages import read_update
from adaptcl.engines.flower.printable import printable
from adaptcl.errors import UpdateError
from adaptcl.own_code import telling_whose
from adaptcl.training import Task, Update
from adaptcl.training.wire import unpack
from adaptcl.units import UnitMap


@dataclass(frozen=True)
class Reading:
    """A checked update, and how long the worker says it trained."""

    update: Update
    seconds: float


def read_answer(content: bytes, task: Task, units: UnitMap, codec: Codec) -> Reading:
    """The update in an answer to a task."""
    try:
        report = read_update(Frame.from_bytes(content), units)
        with telling_whose(_own(codec)):
            update = unpack(report.payload, report.header, task, units, codec)
    except UpdateError as error:
        raise UpdateError(printable(str(error))) from None
    except Exception as error:
        said = f"it cannot be decoded ({type(error).__name__}: {error})."
        sentences = [said, *getattr(error, "__notes__", ())]
        raise UpdateError(" ".join(map(printable, sentences))) from error
    return Reading(update, report.seconds)


def _own(codec: Codec) -> list[str]:
    """The codec's name, if it is the user's own."""
    kind = type(codec)
    ours = kind.__module__.split(".")[0] == "adaptcl"
    return [] if ours else [f"{kind.__module__}:{kind.__qualname__}"]
