"""A user's own data set, named `package.module:factory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptcl.data.convert import as_samples
from adaptcl.data.samples import DataSet, Samples
from adaptcl.errors import DataError
from adaptcl.kinds import kind_of
from adaptcl.own_code import call, own_function


def load_from_factory(name: str, data_dir: Path | None) -> DataSet:
    """What the function called `name` returns for `data_dir`.

    That is a DataSet, or a pair (train, test) of anything `as_samples` takes; its classes are
    then called by their numbers.
    """
    gives = "a DataSet or a pair (train, test)"
    factory = own_function(name, "a data set", ("data_dir",), gives)
    made = call(name, factory, data_dir)
    if isinstance(made, DataSet):
        return made
    if not isinstance(made, tuple | list) or len(made) != 2:
        number = f" of {len(made)}" if isinstance(made, tuple | list) else ""
        raise DataError(
            f"{name} returned {kind_of(made)}{number}, not a DataSet or a pair (train, test)."
        )
    train, test = _part(name, "training", made[0]), _part(name, "test", made[1])
    count = 1 + int(max(train.labels.max(), test.labels.max()))
    return DataSet(name, train, test, tuple(str(number) for number in range(count)))


def _part(name: str, part: str, made: Any) -> Samples:
    try:
        return as_samples(made)
    except DataError as error:
        raise DataError(f"The {part} part that {name} returned cannot be used: {error}") from error
