"""Operations of PyTorch, as a function mode sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class OperationMode(TorchFunctionMode):
    """Stands between a forward pass and the operations that it calls, while it is active."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.on_operation(func, args, dict(kwargs or {}))

    def on_operation(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation, or something else in its place."""
        raise NotImplementedError


def operation_name(func: Callable[..., Any]) -> str:
    """One name for all spellings of an operation: `x += y`, `x.add_(y)`, `torch.add(x, y)`."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.strip("_")
    return _SPELLINGS.get(name, name)


_SPELLINGS = {
    **{f"{kind}{name}": name for kind in "ir" for name in ("add", "mul", "pow")},
    **dict.fromkeys(("isub", "subtract"), "sub"),
    **dict.fromkeys(("truediv", "itruediv", "rtruediv", "rdiv", "true_divide"), "div"),
    "multiply": "mul",
}
