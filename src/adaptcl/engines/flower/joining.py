"""Why a worker cannot take part: in full for its owner, in general words for the server.

An error's text may hold what is the worker's own, such as the names of files. Only of what server
and worker have compared do both hear the same.
"""

from __future__ import annotations

from adaptcl.errors import AdaptCLError, DataError, SettingError


class MismatchError(AdaptCLError):
    """What the worker has does not go with what the server asks for.

    The sentence is read on both sides, so it says which is whose, and nothing of the data beyond
    what has to fit.
    """


def for_the_server(error: Exception) -> str:
    """What may be told of an error."""
    if isinstance(error, MismatchError):
        return str(error)
    what = {DataError: "its data cannot be used", SettingError: "its settings cannot be used"}
    general = (words for kind, words in what.items() if isinstance(error, kind))
    return f"{next(general, 'something failed on it')}; it says there what is wrong."


def for_the_owner(error: Exception) -> AdaptCLError:
    """An error that nobody foresaw, as one sentence."""
    words = " ".join([f"{type(error).__name__}: {error}.", *getattr(error, "__notes__", ())])
    return AdaptCLError(f"This worker cannot take part, because something failed: {words}")
