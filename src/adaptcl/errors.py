"""Every error a user of AdaptCL can meet, each carrying one sentence to act on.

The command line prints the sentence and nothing else; from Python they are ordinary
exceptions with a common base.
"""


class AdaptCLError(Exception):
    """Base of all errors AdaptCL raises on purpose."""


class SettingError(AdaptCLError):
    """A setting has an unknown name, the wrong type or a value out of range."""


class DataError(AdaptCLError):
    """Data is missing, corrupt or of a shape that cannot be used."""


class TraceError(AdaptCLError):
    """The units of a model cannot be found; the sentence names the module."""


class UpdateError(AdaptCLError):
    """What a worker sent back cannot be merged into the global model."""


class CodecError(AdaptCLError):
    """A codec does not do what it says."""


class RunFolderError(AdaptCLError):
    """A run folder is missing, occupied, incomplete or damaged."""


class AdaptCLWarning(UserWarning):
    """Something goes on, but the user would want to know."""
