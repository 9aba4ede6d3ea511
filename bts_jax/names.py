"""Names of policies and bandits: lookup, and suggestions for unknown names."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bts_jax import checks
from bts_jax.text import shown


def suggestion(name: Any, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known name, or an empty string.

    Example:
        >>> suggestion("kub", ["bts", "kube"]), suggestion("thomson", ["bts", "kube"])
        ("; did you mean 'kube'?", '')
    """
    if not isinstance(name, str) or len(name) > 100:
        return ""
    plain = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), plain, n=1)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""


def named(argument: str, value: Any, registry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `value` as a dict by name. `value` is such a dict, or a list of names in the
    registry.
    """
    example = (
        '{"BTS": BTS()}'
        if registry
        else '{"two arms": Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])}'
    )
    if not isinstance(value, Mapping):
        if not registry or isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(
                f"{argument} = {shown(value)} has no names: give a dict, such as {example}"
            )
        for name in value:
            if not isinstance(name, str) or name not in registry:
                raise ValueError(
                    f"{argument} has {shown(name)}, which is not a name: give a dict, such as "
                    f"{example}, or some of {', '.join(registry)}{suggestion(name, registry)}"
                )
            if list(value).count(name) > 1:
                raise ValueError(f"{argument} has {name!r} twice: name each once")
        value = {name: registry[name]() for name in value}
    if not value:
        raise ValueError(f"{argument} is empty: give a dict, such as {example}")
    for name in value:
        checks.name(argument, name)
    return dict(value)
