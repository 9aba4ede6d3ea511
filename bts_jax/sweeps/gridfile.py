"""Reads a sweep from a TOML file. `examples/grid.toml` shows all keys.

A kind such as "my_module:MyPolicy" is a user-defined class. Reading the file imports that module,
which runs its code.
"""

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from bts_jax import checks, files
from bts_jax.bandits import BANDITS
from bts_jax.contract import Bandit
from bts_jax.names import suggestion
from bts_jax.policies import ALL_POLICIES
from bts_jax.posteriors import POSTERIORS
from bts_jax.sweeps import classes
from bts_jax.sweeps.specification import DEEPEST
from bts_jax.text import printable, shown

EXAMPLE = Path(__file__).parents[1] / "examples" / "grid.toml"
MOST_BYTES = 2**21  # tomllib reads about a megabyte in a second
MOST_INSTANCES = 100_000
KINDS = {"policy": ALL_POLICIES, "bandit": BANDITS, "posterior": POSTERIORS}
# The memory of tomllib grows with the square of the number of parts in a dotted key (Python 3.11.7,
# 3.12.1 and 3.13.0): 385 MB for 10,000 parts, 1.5 GB for 20,000. To see whether this is still
# needed, measure tomllib.loads("a." * 10_000 + "b = 1").
LONG_KEY = re.compile(r"""(?<![\w.-])(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*+\.[ \t]*+){100}""")


def read_toml(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a TOML file and returns the arguments of `sweep` by name. `examples/grid.toml` shows
    all keys.

    A kind such as "my_module:MyPolicy" is imported. Its module is looked for in the folder of the
    file first.
    """
    try:
        text = files.read(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise ValueError(
            f"cannot read {str(path)!r} ({reason}): name a TOML file; see bts-jax sweep --example"
        ) from None
    try:
        if LONG_KEY.search(text):
            raise RecursionError
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else "nested too deeply"
        raise ValueError(
            f"{str(path)!r} is not TOML ({reason}): see bts-jax sweep --example"
        ) from None
    needed = ("num_seeds", "rounds" if "rounds" in table else "budgets", "policies", "bandits")
    known = (
        "seed",
        "num_seeds",
        "budgets",
        "relative_to_min_cost",
        "max_rounds",
        "rounds",
        "policies",
        "bandits",
    )
    _known("", table, known, needed)
    policies, bandits, folder = {}, {}, Path(path).parent
    for name, entry in _tables("policies", table["policies"]).items():
        where, options = f"policies.{name}", dict(entry)
        kind = _kind(where, options, ALL_POLICIES, folder)
        _check_options(where, kind, options)
        options = {
            field: _posteriors(f"{where}.{field}", value, folder)
            for field, value in options.items()
        }
        policies[name] = _made(where, kind, options)
    for name, entry in _tables("bandits", table["bandits"]).items():
        where, options = f"bandits.{name}", dict(entry)
        for label, bandit in _bandits(
            name, where, _kind(where, options, BANDITS, folder), options, folder
        ):
            if label in bandits:
                raise ValueError(
                    f"there are two bandits {label!r}, one of them a random instance: change the "
                    f"name of {where}"
                )
            bandits[label] = bandit
    return {**table, "policies": policies, "bandits": bandits}


def _posteriors(where: str, value: Any, folder: Path) -> Any:
    """A posterior if `value` is a table, and a tuple of posteriors if it is a list of tables. Other
    values as they are.
    """
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return tuple(_posteriors(f"{where}[{i}]", part, folder) for i, part in enumerate(value))
    if not isinstance(value, dict):
        return value
    options = dict(value)
    return _made(where, _kind(where, options, POSTERIORS, folder), options)


def _bandits(
    name: str, where: str, kind: Any, options: dict[str, Any], folder: Path, depth: int = 0
) -> Iterator[tuple[str, Bandit]]:
    """Yields the name and the bandit that a table describes, or those of its random instances.

    A table gives the arms, or it names a class method that creates the bandit.
    """
    maker = next(
        (
            key
            for key in options
            if isinstance(inspect.getattr_static(kind, key, None), classmethod)
        ),
        None,
    )
    if isinstance(options.get("bandit"), dict):  # the bandit that this one wraps
        if depth == DEEPEST:
            raise ValueError(
                f"{where} is nested too deeply: make a bandit of at most {DEEPEST} others"
            )
        inner, within = dict(options["bandit"]), f"{where}.bandit"
        for label, bandit in _bandits(
            name, within, _kind(within, inner, BANDITS, folder), inner, folder, depth + 1
        ):
            yield label, _made(where, kind, {**options, "bandit": bandit})
        return
    if maker is None:
        yield name, _made(where, kind, options)
        return
    _known(where, options, (maker,))
    options = dict(_tables(where, options)[maker])
    where = f"{where}.{maker}"
    if maker != "random":
        if maker == "load" and not _own(kind):
            options["on_report"] = lambda loaded: print(
                printable(f"{where}: {loaded}", keep="\n"), file=sys.stderr
            )
            if isinstance(options.get("table"), str):
                options["table"] = folder / options["table"]
        yield name, _made(where, getattr(kind, maker), options)
        return
    if not _own(kind):
        _known(where, options, None, needed=("num_arms",))
    numbered = "instances" in options
    count = checks.whole(f"{where}.instances", options.pop("instances", 1), 1)
    if count > MOST_INSTANCES:
        raise ValueError(
            f"{where}.instances = {count} is not allowed: give a whole number up to "
            f"{MOST_INSTANCES}"
        )
    key = jax.random.key(
        checks.whole(f"{where}.seed", options.pop("seed", 0), -(2**31)), impl="threefry2x32"
    )
    for i in range(count):
        drawn = _made(where, kind.random, options, key=jax.random.fold_in(key, i))
        yield (f"{name}-{i}" if numbered else name), drawn


def _known(
    where: str, table: dict[str, Any], known: tuple[str, ...] | None, needed: tuple[str, ...] = ()
) -> None:
    inside = f" in {where}" if where else ""
    for name in table:
        if known is not None and name not in known:
            raise ValueError(
                f"unknown key {name!r}{inside}: there are "
                f"{', '.join(known)}{suggestion(name, known)}"
            )
    for name in needed:
        if name not in table:
            raise ValueError(f"the key {name!r} is missing{inside}: see bts-jax sweep --example")


def _tables(where: str, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
        raise ValueError(
            f"{where} = {shown(value)} is not a table of tables: see bts-jax sweep --example"
        )
    return value


def _kind(where: str, options: dict[str, Any], registry: Mapping[str, Any], folder: Path) -> Any:
    _known(where, options, None, needed=("kind",))
    kind, what = (
        options.pop("kind"),
        next(name for name, known in KINDS.items() if known is registry),
    )
    if isinstance(kind, str) and kind in registry:
        return registry[kind]
    if classes.is_name(kind):
        return classes.find(kind, what, folder=folder, where=f"{where}.kind")
    raise ValueError(
        f"{where}.kind = {shown(kind)} is unknown: there are {', '.join(registry)}; a class of "
        f"your own is {classes.EXAMPLE[what]!r}{suggestion(kind, registry)}"
    )


def _own(kind: type) -> bool:
    return all(kind not in registry.values() for registry in KINDS.values())


def _check_options(where: str, make: Any, options: dict[str, Any], key: Any = None) -> None:
    """Raises unless these options are parameters of `make`."""
    parameters = [
        one
        for one in inspect.signature(make).parameters.values()
        if one.kind is not one.VAR_POSITIONAL
    ]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters)
    parameters = [
        one
        for one in parameters
        if one.kind is not one.VAR_KEYWORD and (key is None or one.name != "key")
    ]
    names = tuple(parameter.name for parameter in parameters) + (
        ("instances", "seed") if key is not None else ()
    )
    names += tuple(getattr(make, "renamed", ()))
    needed = tuple(
        parameter.name for parameter in parameters if parameter.default is parameter.empty
    )
    _known(where, options, None if open_ended else names, needed)


def _made(where: str, make: Any, options: dict[str, Any], key: Any = None) -> Any:
    """Calls `make` with these options, which must be parameters of it, and with the key of a random
    instance.
    """
    _check_options(where, make, options, key)
    options = options if key is None else {"key": key, **options}
    if _own(getattr(make, "__self__", make)):
        return classes.arrays(classes.call(where, make, options))
    try:
        return make(**options)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ) as error:  # such as a list where a number should be
        raise ValueError(f"{where}: {error}") from None
