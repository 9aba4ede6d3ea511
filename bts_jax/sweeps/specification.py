"""The specification of a sweep in the root of its store: JSON that anyone may have written, checked
before it is used.

A checksum protects it from damage, not from an author with bad intentions. After `check` the sizes
that follow from it are limited, and so are the memory and the time that it takes to open the store.
"""

import ast
import dataclasses
import inspect
import json
import math
import sys
import textwrap
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from bts_jax import checks
from bts_jax.arguments import canonicalize
from bts_jax.checks import LONGEST_NAME
from bts_jax.contract import LARGEST_SCALE, SMALLEST_SCALE
from bts_jax.engine.fixed_point import LARGEST, UNIT
from bts_jax.posteriors import POSTERIORS
from bts_jax.pytrees import Names
from bts_jax.sweeps import classes
from bts_jax.text import counted, shown

# Of the root: about 4.5 million numbers, as of 9,000 bandits with up to 100 arms and 10 numbers
# each.
MOST_BYTES = 3 * 2**25
# Numbers and names in the root: short ones take two bytes of text, and far more memory.
MOST_VALUES = 5 * 2**20
MOST_CHUNKS = 2**20  # each is eight files
CHUNK_BYTES = 2**29  # of the results in a chunk
LABEL_BYTES = 2**27  # of all coordinates
# Lists and tables in the root: an empty one takes three bytes of text, and twenty times as much
# memory.
MOST_TABLES = 2**20
RESERVED = {
    "policy",
    "bandit",
    "budget",
    "seed",
    "arm",
    "resource",
    "requires",
    "family",
    "num_arms",
    "reward_mean",
    "cost_mean",
    "reward",
    "cost",
    "rounds",
    "truncated",
    "pulls",
    "regret",
    "pseudo_regret",
    "checksum",
    "group",
    "range",
    "lost_run",
    "runs",
    "arm_name",
}
AGAIN = "go on with bts-jax sweep grid.toml --out STORE, or in Python with the call that started it"
DEEPEST = 8  # nesting of lists, and of bandits that wrap another


def check_length(root: bytes) -> None:
    """Raises a `ValueError` if the root of a store is too long to be read."""
    tables = root.count(b"[") + root.count(b"{")
    for what, size, most in (
        ("bytes", len(root), MOST_BYTES),
        ("numbers and names", root.count(b","), MOST_VALUES),
        ("lists and tables", tables, MOST_TABLES),
    ):
        if size > most:
            raise ValueError(
                f"the description of the sweep takes {size:,} {what}, and {most:,} are allowed in "
                "a store"
            )


def parse(text: str | bytes) -> Any:
    """The value that JSON describes."""
    marks = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, marks)) > MOST_TABLES:  # type: ignore
        raise ValueError(f"it has more than {MOST_TABLES:,} lists and tables")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(found, dict) and isinstance(found.get("policies"), dict):
        for entry in found["policies"].values():
            if isinstance(entry, dict):
                if "told" in entry:  # the name of `requires` in stores of version 0.1
                    entry["requires"] = entry.pop("told")
                _with_posteriors(entry)
    return found


def _with_posteriors(entry: dict[str, Any]) -> None:
    """Changes the entry of a BTS of version 0.2, which had the prior counts of its Beta posteriors
    as fields.
    """
    fields, names = (
        entry.get("fields"),
        {f"{part}_{inner}" for part in ("reward", "cost") for inner in ("alpha", "beta")},
    )
    if (
        entry.get("class") in ("BTS", "KnapsackBTS")
        and isinstance(fields, dict)
        and fields.keys() == names
    ):
        entry["fields"] = {
            part: {
                "class": "Beta",
                "fields": {inner: fields[f"{part}_{inner}"] for inner in ("alpha", "beta")},
            }
            for part in ("cost", "reward")
        }


def check(found: Any, chunk_size: Any, group: Any = 1) -> None:
    """Raises a `ValueError` that names the problem, unless `found` is the specification of a sweep
    with such chunks.

    A chunk has `chunk_size` seeds and `group` bandits, see `results`.
    """
    _table("specification", found, ("policies", "bandits", "budgets", "seeds", "seed"))
    seeds, arms, names, resources = checks.whole("seeds", found["seeds"], 1), 2, 0, 1
    checks.whole("seed", found["seed"], -(2**31))
    budgets = increasing(found["budgets"])
    if checks.whole("chunk_size", chunk_size, 1) > seeds:
        raise ValueError(f"chunk_size = {chunk_size} is more than seeds = {seeds}")
    if not isinstance(found.get("relative", False), bool):
        raise ValueError(f"relative = {shown(found['relative'])} is neither true nor false")
    if not isinstance(found.get("rounds", False), bool):
        raise ValueError(f"rounds = {shown(found['rounds'])} is neither true nor false")
    checks.whole("max_rounds", found.get("max_rounds", 1), 1)
    for kind, more in (("policies", ("requires",)), ("bandits", ("reward_mean", "cost_mean"))):
        if not _table(kind, found[kind]):
            raise ValueError(f"{kind} is empty")
        for name, entry in found[kind].items():
            where = f"{kind}[{shown(name)}]"
            checks.name(kind, name)
            _entry(where, entry, ("class", "fields", *more))
            if kind == "policies":
                if not isinstance(entry["requires"], list) or not all(
                    map(_is_name, entry["requires"])
                ):
                    raise ValueError(
                        f"{where}.requires = {shown(entry['requires'])} is not a list of names"
                    )
                continue
            means = [
                _means(f"{where}.{mean}", entry[mean], mean == "cost_mean")
                for mean in ("reward_mean", "cost_mean")
            ]
            resources = max(
                resources, *(len(cost) if isinstance(cost, list) else 1 for cost in means[1])
            )
            if len(means[0]) != len(means[1]):
                raise ValueError(
                    f"{where} has {len(means[0])} expected rewards and {len(means[1])} expected "
                    "costs"
                )
            names = max(names, *map(len, _arm_names(where, entry, len(means[0]))), 0)
            arms = max(arms, len(means[0]))
    policies, bandits, coords = found["policies"], found["bandits"], found.get("coords", {})
    check_coords(coords, len(bandits))
    if len(bandits) % checks.whole("group", group, 1):
        raise ValueError(f"group = {group} does not divide the number of bandits, {len(bandits)}")
    texts = (
        policies,
        (", ".join(entry["requires"]) for entry in policies.values()),
        bandits,
        (entry["class"] for entry in bandits.values()),
    )
    columns = [list(map(len, column)) for column in texts]
    labels = (
        8 * (seeds + arms + len(budgets)) + (8 + 8 * resources + 4 * names) * len(bandits) * arms
    )
    columns += [[len(x) if isinstance(x, str) else 2 for x in column] for column in coords.values()]
    labels += sum(4 * len(sizes) * max(sizes) for sizes in columns)
    chunks = len(policies) * (len(bandits) // group) * -(-seeds // chunk_size)
    of_a_chunk = group * chunk_size * len(budgets) * bytes_of_a_run(arms, resources)
    in_a_chunk = (
        f"{chunk_size:,} in a chunk"
        if group == 1
        else f"{group:,} bandits and {chunk_size:,} seeds in a chunk"
    )
    for what, size, most in (
        ("labels", labels, LABEL_BYTES),
        ("results of a chunk", of_a_chunk, CHUNK_BYTES),
    ):
        if size > most:
            raise ValueError(
                f"the {what} take {size:,} bytes, and at most {most:,} are allowed: "
                f"{counted(len(bandits), 'bandit')} of up to {counted(arms, 'arm')}, "
                f"{counted(len(budgets), 'budget')} and {counted(seeds, 'seed')}, {in_a_chunk}"
            )
    if chunks > MOST_CHUNKS:
        raise ValueError(
            f"there are {chunks:,} chunks of {chunk_size} seeds, and at most {MOST_CHUNKS:,} are "
            "allowed"
        )


def words_of(bandits: Iterable[str]) -> np.ndarray:
    """The integers that are folded into the keys of the runs on each bandit: the CRC-32 of its
    name.

    Raises a `ValueError` if two bandits have the same one, because their runs would be the same.
    """
    found: dict[int, str] = {}
    for name in bandits:
        other = found.setdefault(zlib.crc32(name.encode()), name)
        if other != name:
            raise ValueError(
                f"bandits {shown(other)} and {shown(name)} have names with the same CRC-32, so "
                "that their runs would have the same keys: rename one of them"
            )
    return np.array(list(found), np.uint32)


def check_coords(coords: Any, bandits: int) -> None:
    """Raises a `ValueError` unless these are coordinates of this many bandits."""
    for name, values in _table("coords", coords).items():
        where = f"coords[{shown(name)}]"
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{where} is not a name of letters, digits and underscores")
        if name in RESERVED:
            raise ValueError(f"{where} has a name that the results have already")
        if not isinstance(values, list) or len(values) != bandits:
            raise ValueError(f"{where} = {shown(values)} is not a list of {bandits}")
        if not (
            all(isinstance(x, str) for x in values)
            or all(type(x) in (bool, int, float) for x in values)
        ):
            raise ValueError(f"{where} = {shown(values)} has neither numbers alone nor texts alone")
        if any(isinstance(x, str) and not x.isprintable() for x in values):
            raise ValueError(
                f"{where} = {shown(values)} has line breaks or other control characters: leave "
                "them out"
            )


def bytes_of_a_run(arms: int, resources: int = 1) -> int:
    """The bytes of memory that the results of one run with one budget take."""
    return 4 * arms + 4 * resources + 25


def increasing(budgets: Any, name: str = "budgets") -> np.ndarray:
    """Returns budgets, or other amounts of that name, as float64. A `ValueError` names the first
    that is not allowed.
    """
    remedy = f"give positive numbers up to {LARGEST}, in increasing order"
    amounts = checks.numbers(name, budgets, remedy)
    if np.asarray(budgets).dtype.kind not in "iuf":
        raise ValueError(f"{name} = {shown(budgets)} are not numbers: {remedy}")
    if amounts.ndim != 1 or not amounts.size:
        raise ValueError(
            f"{name} = {shown(budgets)} is not a list of at least one number: {remedy}"
        )
    checks.require(name, amounts, (amounts * UNIT >= 0.5) & (amounts <= LARGEST), remedy)
    # Two may be equal after rounding.
    bad = np.flatnonzero(~(np.diff(amounts.astype(np.float32)) > 0))
    if bad.size:
        raise ValueError(
            f"{name} has {amounts[bad[0]]:g} before {amounts[bad[0] + 1]:g}: {remedy}, each once"
        )
    return amounts


# The entry of a policy or a bandit.


def entry_of(thing: Any, registry: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A policy or bandit as JSON: its class and its numbers, in the precision of the
    computation.
    """
    entry = {"class": type(thing).__name__, **more}
    if not is_ours(thing, registry):
        # May hold settings that are not numbers.
        entry["structure"] = str(jax.tree.structure(thing))
        with suppress(OSError, TypeError):  # no source available
            entry["code"] = zlib.crc32(
                "\n".join(_code(made) for made in _own_classes(thing, registry)).encode()
            )
    fields = {}

    def whole(part: Any) -> bool:
        return part is not thing and (is_ours(part, registry) or _is_list(part))

    for path, leaf in jax.tree.leaves_with_path(thing, is_leaf=whole):
        inner = is_ours(leaf, registry)  # a bandit that wraps another, or a posterior
        name = jax.tree_util.keystr(path).removeprefix(".")
        if type(leaf) is tuple and inner:
            fields[name] = [entry_of(part, registry) for part in leaf]
        elif inner:
            names = getattr(leaf, "arms", ())
            fields[name] = entry_of(leaf, registry, **({"arms": list(names)} if names else {}))
        elif (
            name not in ("reward_scale", "cost_scale") or listed(leaf) != 1
        ):  # later additions, usually 1
            fields[name] = listed(leaf)
    return {**entry, "fields": fields}


def _own_classes(thing: Any, registry: Mapping[str, Any]) -> list[type]:
    """The user-defined classes of a policy or a bandit and of its parts, with those they inherit
    from.
    """
    found = _lineage(type(thing))
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        part = getattr(thing, field.name)
        if (
            dataclasses.is_dataclass(part)
            and not isinstance(part, type)
            and not is_ours(part, registry)
        ):
            found += _own_classes(part, registry)
    return list(dict.fromkeys(found))


def _lineage(made: type) -> list[type]:
    """A class and those it inherits from, as far as they are user-defined."""
    return [
        base
        for base in made.__mro__
        if base.__module__.split(".")[0]
        not in (*sys.stdlib_module_names - {"__main__"}, "bts_jax", "chex")
    ]


def code_of(made: type) -> str:
    """The source of a user-defined class and of those it inherits from; empty if there is none."""
    with suppress(OSError, TypeError):
        return "\n".join(map(_code, _lineage(made)))
    return ""


def _code(made: type) -> str:
    """The source of a class without comments, docstrings and layout."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def is_ours(thing: Any, registry: Mapping[str, Any]) -> bool:
    """Whether a policy or bandit is of a class in the registry, and so are all of its parts. A
    posterior is a part, too.
    """
    if type(thing) is tuple:  # posteriors, one for each resource
        return len(thing) > 0 and all(is_ours(part, registry) for part in thing)
    kind = type(thing)
    of_a_study = kind.__module__.startswith("bts_jax.experiments.")
    if not of_a_study and kind not in (*registry.values(), *POSTERIORS.values()):
        return False
    parts = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    return all(
        part is None
        or isinstance(part, Names)
        or _is_list(part)
        or jax.tree_util.all_leaves([part])
        or is_ours(part, registry)
        for part in parts
    )


def _is_list(part: Any) -> bool:
    """Whether a part of a policy is a list of numbers, such as one for each arm."""
    return type(part) is tuple and jax.tree_util.all_leaves(part)


def listed(leaf: Any) -> Any:
    return np.asarray(canonicalize(leaf)).tolist()


def remade(
    where: str,
    entry: dict[str, Any],
    registry: Mapping[str, Any],
    own: Mapping[str, type] | None = None,
) -> Any:
    """Creates the policy or bandit that an entry describes. Its class is in the registry or, by
    name, in `own`.

    A store cannot ask for an import: the caller has imported the classes in `own`.
    """
    ours = {made.__name__: made for made in (*POSTERIORS.values(), *registry.values())}
    own, name = own or {}, entry["class"]
    is_own = "structure" in entry or name not in ours
    if is_own and name not in own:
        if name in ours:
            raise ValueError(
                f"{where} is a {name:.60}, which has a part of a class of your own: {AGAIN}"
            )
        raise ValueError(
            f"{where} is a {name:.60}, which is not built in: {AGAIN}; or name its class, as in "
            f"bts-jax sweep --resume STORE --import my_module:{name:.60}"
        )

    def part_of(value: Any) -> Any:
        if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            return tuple(map(part_of, value))
        return remade(where, value, registry, own) if isinstance(value, dict) else value

    fields = {name: part_of(value) for name, value in entry["fields"].items()}
    if is_own:
        return _own(where, entry, own[name], fields)
    if "arms" in entry and "arms" in getattr(ours[name], "__dataclass_fields__", {}):
        fields["arms"] = entry["arms"]
    for scale in {"reward_scale", "cost_scale"} & set(
        getattr(ours[name], "__dataclass_fields__", {})
    ):
        fields.setdefault(scale, 1.0)  # `entry_of` leaves it out if it is 1
    try:
        return ours[name](**fields)
    except (TypeError, ValueError) as error:  # such as a field that the class does not have
        raise ValueError(f"{where}: {error}") from None


def _own(where: str, entry: dict[str, Any], kind: type, fields: dict[str, Any]) -> Any:
    """Creates an instance of a user-defined class, if its fields are enough to recreate it."""
    for part in fields:
        if not part.isidentifier():  # such as a field of a field
            raise ValueError(
                f"{where} is a {entry['class']:.60} with a part {shown(part, 60)}, which cannot be "
                f"recreated from its class: {AGAIN}"
            )
    made = classes.arrays(classes.call(where, kind, fields))
    if str(jax.tree.structure(made)) != entry.get("structure"):
        raise ValueError(
            f"{where} is a {entry['class']:.60} with settings that are not numbers, or with other "
            f"fields than its class has now: {AGAIN}"
        )
    return made


def arguments(
    described: dict[str, Any],
    policies: Mapping[str, Any],
    bandits: Mapping[str, Any],
    own: tuple[Mapping[str, type], Mapping[str, type]] = ({}, {}),
) -> dict[str, Any]:
    """Converts a specification to arguments of `sweep`, with the classes in the two registries and
    the classes `own`.
    """
    policies, bandits = (
        {
            name: remade(f"{kind}[{shown(name)}]", entry, registry, mine)
            for name, entry in described[kind].items()
        }
        for kind, registry, mine in (("policies", policies, own[0]), ("bandits", bandits, own[1]))
    )
    return {
        "policies": policies,
        "bandits": bandits,
        "relative_to_min_cost": described.get("relative", False),
        "bandit_coords": described.get("coords"),
        "max_rounds": described.get("max_rounds"),
        "budgets": None,
        "rounds" if described.get("rounds") else "budgets": described["budgets"],
        "num_seeds": described["seeds"],
        "seed": described["seed"],
    }


def _table(where: str, value: Any, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} = {shown(value)} is not a table")
    for name in needed:
        if name not in value:
            raise ValueError(f"{where} has no {name!r}")
    return value


def _entry(
    where: str, value: Any, needed: tuple[str, ...] = ("class", "fields"), depth: int = 0
) -> None:
    """Raises unless `value` describes a policy or a bandit: its class, and fields of numbers, lists
    or a bandit within it.
    """
    _table(where, value, needed)
    if not _is_name(value["class"]):
        raise ValueError(f"{where}.class = {shown(value['class'])} is not the name of a class")
    for name, field in _table(f"{where}.fields", value["fields"]).items():
        parts = (
            field
            if isinstance(field, list) and field and all(isinstance(x, dict) for x in field)
            else [field]
        )
        if isinstance(parts[0], dict) and depth < DEEPEST:
            for part in parts:
                _entry(f"{where}.{shown(name)}", part, depth=depth + 1)
        elif not _numbers(field):
            raise ValueError(
                f"{where}.fields[{shown(name)}] = {shown(field)} is neither a number nor a list of "
                "numbers"
            )


def _is_name(value: Any) -> bool:
    """Whether this can be the name of a class or of side information."""
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME


def _arm_names(where: str, entry: dict[str, Any], count: int) -> list[str]:
    """The names of the arms in the entry of a bandit. Raises a `ValueError` if they or the scales
    are invalid.
    """
    for name in ("reward_scale", "cost_scale"):
        scale = entry.get(name, 1.0)
        several: list = (
            scale if name == "cost_scale" and isinstance(scale, list) and scale else [scale]
        )
        if not all(
            type(one) in (int, float) and SMALLEST_SCALE <= one <= LARGEST_SCALE for one in several
        ):
            raise ValueError(
                f"{where}.{name} = {shown(scale)} is not a number from {SMALLEST_SCALE:g} to "
                f"{LARGEST_SCALE}"
            )
    if "arms" not in entry:
        return []
    names = entry["arms"]
    if (
        not isinstance(names, list)
        or len(names) != count
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"{where}.arms = {shown(names)} is not a list of {count} names")
    if len(set(names)) < count:
        raise ValueError(f"{where}.arms = {shown(names)} has a name twice")
    for name in names:
        checks.name(f"{where}.arms", name)
    return names


def _numbers(value: Any, depth: int = 0) -> bool:
    """Whether a field of a policy or bandit is a number or consists of numbers."""
    if isinstance(value, list):
        if set(map(type, value)) <= {int, float}:  # almost always, and many times faster
            return depth < DEEPEST
        return depth < DEEPEST and all(_numbers(part, depth + 1) for part in value)
    return isinstance(value, (int, float))


def _means(where: str, value: Any, vectors: bool = False) -> list:
    """The expected rewards or costs in the entry of a bandit. If `vectors`, each may be a list, as
    long as the others.
    """

    def finite(values: Any) -> bool:  # without a loop in Python: a large sweep has a million means
        return (
            isinstance(values, list)
            and set(map(type, values)) <= {int, float}
            and min(values, default=0) > -1e30
            and max(values, default=0) < 1e30
            and not any(map(math.isnan, values))
        )

    rows = (
        vectors
        and isinstance(value, list)
        and all(map(finite, value))
        and len({len(row) for row in value} - {0}) == 1
    )
    if not (rows or finite(value)) or len(value) < 2:
        raise ValueError(f"{where} = {shown(value)} is not a list of at least two finite numbers")
    return value
