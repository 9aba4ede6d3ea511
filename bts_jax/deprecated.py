"""Old names of arguments. They work for one version, with a warning."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**new_names: str) -> Callable[[F], F]:
    """Decorator of a function that also accepts the old names of its arguments: `@renamed(old="new")`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for old, new in new_names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{function.__name__} got {new!r} and its old name {old!r}: give {new!r} alone")
                warnings.warn(f"the argument {old!r} of {function.__name__} is now called {new!r}: rename it",
                              DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(F, called)

    return decorate
