"""Checks of arguments.

They run on the host, at the public entry points, and only on concrete values. Under `jit`, `vmap`
or `grad` the values are not known, and only shapes can be checked.
"""

import dataclasses
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import errors

from bts_jax.devices import check_fork
from bts_jax.jax_internals import Tracer
from bts_jax.text import shown

LONGEST_NAME = 200  # characters

# The methods of policies, bandits and posteriors: their arguments, and what they return.
METHODS = {
    "init": ("problem", "state"),
    "__call__": ("state, key", "(arm, state)"),
    "update": ("state, arm, reward, cost, key", "state"),
    "pull": ("key, arm", "(reward, cost)"),
    "draw": ("state, key", "draws [K]"),
    "record": ("state, arm, value, word", "state"),
}

# JAX's errors about code that needs the value of a traced array: what the code does, and the
# remedy.
TRACED = {
    errors.TracerBoolConversionError: (
        "branches on a traced value",
        "use jnp.where or jax.lax.cond instead of `if`, and jax.lax.while_loop instead of `while`",
    ),
    errors.TracerIntegerConversionError: (
        "uses a traced value as a Python int",
        "use jax.lax.fori_loop instead of a loop over `range`, and index an array instead of a "
        "list",
    ),
    errors.TracerArrayConversionError: (
        "gives a traced value to NumPy",
        "use jax.numpy instead of numpy",
    ),
    errors.NonConcreteBooleanIndexError: (
        "selects entries by a traced mask, so that their number is not known",
        "use jnp.where(mask, x, 0), which keeps the shape",
    ),
    errors.ConcretizationTypeError: (  # the base class of the first one, so it comes last
        "needs the value of a traced array",
        "use x.astype(jnp.int32) instead of int(x), and arrays of fixed shapes",
    ),
}


def is_concrete(tree: Any) -> bool:
    """Whether every leaf is a value and not a tracer."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def numbers(name: str, value: Any, remedy: str) -> np.ndarray:
    """Returns `value` as a float64 array. Raises a `ValueError` that names it if this is
    impossible.
    """
    try:
        # NumPy would read strings as numbers, and JAX would not.
        if np.asarray(value).dtype.kind in "US":
            raise ValueError
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        # A Series of pandas: its text has several lines.
        value = value.to_list() if hasattr(value, "to_list") else value
        raise ValueError(
            f"{name} = {shown(value)} is not a number or an array of numbers: {remedy}"
        ) from None
    return array


def no_table(name: str, value: Any) -> None:
    """Raises if `value` is a DataFrame. It has two axes and text in its header, and the user may
    mean one of its columns.
    """
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        columns = list(value.columns)
        raise ValueError(
            f"{name} is a DataFrame with the columns {shown(columns)[1:-1]}: give one column, such "
            f"as table[{columns[0] if columns else 'name'!r}], or an array, such as "
            "table.to_numpy()"
        )


def require(name: str, value: Any, good: Any, remedy: str) -> None:
    """Raises a `ValueError` that shows the first invalid element, unless `good` is true for every
    element of `value`.
    """
    good = np.asarray(good)
    if good.all():
        return
    value, good = np.broadcast_arrays(value, good)
    place = np.argwhere(~good)[0]
    where = f"{name}[{', '.join(map(str, place))}]" if len(place) else name
    raise ValueError(f"{where} = {value[tuple(place)]} is not allowed: {remedy}")


def whole(name: str, value: Any, low: int) -> int:
    """Returns `value`. Raises a `ValueError` that names it unless it is a whole number of at least
    `low`.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not low <= value < 2**31
    ):
        raise ValueError(
            f"{name} = {shown(value)} is not allowed: give a whole number of at least {low}, below "
            "2³¹"
        )
    return int(value)


def name(argument: str, value: Any) -> None:
    """Raises unless `value` can be the name of a policy, a bandit or an arm.

    Names are printed on terminals, drawn in figures and written into files, so they have no control
    characters.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{argument} has the name {shown(value)}: use strings that are not empty as names"
        )
    if not value.isprintable():
        raise ValueError(
            f"{argument} has the name {shown(value)}: leave out line breaks and other control "
            "characters"
        )
    if len(value) > LONGEST_NAME:
        raise ValueError(
            f"{argument} has a name of {len(value):,} characters, {shown(value, 60)}: use at most "
            f"{LONGEST_NAME}"
        )


def contract(name: str, value: Any, members: tuple[str, ...], example: str) -> None:
    """Raises unless `value` is a pytree of numbers with these members."""
    if isinstance(value, type):
        raise ValueError(f"{name} = {value!r} is a class: pass an instance, such as {example}")
    missing = [_declared(member) for member in members if not hasattr(value, member)]
    if missing:
        raise ValueError(
            f"{name} = {shown(value)} has no {', no '.join(missing)}: pass a {name}, such as "
            f"{example}; bts_jax.contract describes what your own classes need"
        )
    # The built-in classes have these signatures.
    if type(value).__module__.partition(".")[0] != "bts_jax":
        _check_signatures(f"{name} {type(value).__name__}", value, members)
    for leaf in jax.tree.leaves(value):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            raise ValueError(
                f"{name} = {value!r} is not a pytree of numbers: decorate its class with "
                "@chex.dataclass(frozen=True), and keep text out of its fields"
            )


def _declared(member: str) -> str:
    """A member of a policy or a bandit with its signature, if it is a method."""
    return (
        f"{member}({METHODS[member][0]}) -> {METHODS[member][1]}" if member in METHODS else member
    )


def _check_signatures(name: str, value: Any, members: tuple[str, ...]) -> None:
    """Raises unless the methods among these members take the arguments that they are called
    with.
    """
    for member in filter(METHODS.get, members):
        arguments, _ = METHODS[member]
        found = _other_signature(getattr(value, member), arguments.split(", "))
        if found is not None:
            raise ValueError(
                f"{name}: {member} takes {found}, and it is called with ({arguments}): write "
                f"{_declared(member)}; bts_jax.contract describes the arguments"
            )


def _other_signature(method: Callable, arguments: list[str]) -> str | None:
    """The signature of a method as text if it cannot be called with these arguments. `None` if it
    can be, or is not known.
    """
    found = None
    for follow in (True, False):  # a decorator may change the arguments
        try:
            signature = inspect.signature(method, follow_wrapped=follow)
        except (TypeError, ValueError):
            return None
        try:
            signature.bind(*arguments)
        except TypeError:
            found = found or str(signature.replace(return_annotation=signature.empty))
        else:
            return None
    return found


@contextmanager
def explained(method: str) -> Iterator[None]:
    """Explains JAX's errors about traced values in code of the user, such as the method `policy
    Mine: update`.
    """
    try:
        yield
    except tuple(TRACED) as error:
        does, remedy = next(found for kind, found in TRACED.items() if isinstance(error, kind))
        raise ValueError(f"{method} {does}{_place(error)}: {remedy}") from error


def _place(error: BaseException) -> str:
    """The last line of the user's code in a traceback, in parentheses. Empty if there is none.

    Code of Python and of installed packages, such as NumPy, is left out.
    """
    frames = [
        (frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    users = [
        (file, line)
        for module, file, line in frames
        if module.partition(".")[0] not in ("jax", "bts_jax") and not file.startswith(installed)
    ]
    return f" ({users[-1][0]}, line {users[-1][1]})" if users else ""


def key(value: Any, batch: bool = False) -> None:
    """Raises unless `value` is one typed JAX key. With `batch`, a batch of keys is allowed, too."""
    check_fork()  # here, because every function that plays runs needs a key
    name, remedy = "key", "pass one typed JAX key, such as jax.random.key(0)"
    if batch:
        name, remedy = (
            "keys",
            "pass typed JAX keys, such as jax.random.split(jax.random.key(0), 100)",
        )
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        raise ValueError(
            f"{name} = {shown(value)} is not {'a batch of keys' if batch else 'a key'}: {remedy}"
        )
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        old = "old-style keys" if batch else "an old-style key"
        raise ValueError(
            f"{name} is an array of {dtype}[{', '.join(map(str, value.shape))}], {old} at best: "
            f"{remedy} (jax.random.wrap_key_data converts old-style keys to typed keys)"
        )
    if value.shape != () and not batch:
        raise ValueError(
            f"key has shape {value.shape}, which is a batch of keys: {remedy}, or map over the "
            "batch with jax.vmap(simulate, in_axes=(None, None, None, 0))"
        )


def is_key(value: Any) -> bool:
    """Whether `value` is an array of typed JAX keys."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def hyperparameter(
    owner: Any,
    name: str,
    low: float,
    high: float,
    *,
    low_excluded: bool = False,
    high_excluded: bool = False,
) -> None:
    """Raises unless the field `name` of `owner`, a number or an array, is finite and between `low`
    and `high`.

    A whole number becomes a float, so that 1 and 1.0 share one program.
    """
    value = getattr(owner, name)
    if not is_concrete(value):
        return
    no_table(name, value)
    remedy = (
        f"give a number in {'(' if low_excluded else '['}{low:g}, "
        f"{high:g}{')' if high_excluded else ']'}"
    )
    array = numbers(name, value, remedy)
    # Computations use float32.
    single, least, most = array.astype(np.float32), np.float32(low), np.float32(high)
    above = single > least if low_excluded else single >= least
    below = single < most if high_excluded else single <= most
    require(name, array, above & below, remedy)
    if not isinstance(value, (float, jax.Array)):
        object.__setattr__(owner, name, array.astype(np.float32) if array.ndim else float(array))


def per_arm(owner: Any, name: str, low: float, high: float, *, low_excluded: bool = False) -> None:
    """As `hyperparameter`, for a field that may be one number or a list with one number for each
    arm.

    A list, or an array with one axis, becomes a tuple of numbers. So each leaf of a policy is one
    number, and an array with an axis in place of it is a batch of policies.
    """
    value = getattr(owner, name)
    if not isinstance(value, (list, tuple)) and np.ndim(value) != 1:
        hyperparameter(owner, name, low, high, low_excluded=low_excluded)
        return
    if is_concrete(value):
        remedy = (
            f"give one number, or one for each arm, in {'(' if low_excluded else '['}{low:g}, "
            f"{high:g}]"
        )
        array = numbers(name, value, remedy)
        if array.ndim != 1 or not array.size:
            raise ValueError(f"{name} has shape {array.shape}: {remedy}")
        single = array.astype(np.float32)
        above = single > np.float32(low) if low_excluded else single >= np.float32(low)
        require(name, array, above & (single <= np.float32(high)), remedy)
        value = array.tolist()
    object.__setattr__(owner, name, tuple(value))


def fits_arms(owner: Any, num_arms: int) -> None:
    """Raises if a field of `owner` is a list of numbers for the arms, and their number is not
    `num_arms`.
    """
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if isinstance(value, tuple) and len(value) != num_arms:
            raise ValueError(
                f"{field.name} of {type(owner).__name__} has {len(value)} numbers, and the bandit "
                f"has {num_arms} arms: give one number for each arm, or one for all. A batch of "
                "policies is made with jax.vmap, as in jax.vmap(lambda x: "
                f"BTS(cost={type(owner).__name__}({field.name}=x)))(values)"
            )


def switch(owner: Any, name: str) -> None:
    """Raises unless the field `name` of `owner`, a number or an array, is 0 or 1. Numbers can vary
    within a batch.
    """
    hyperparameter(owner, name, 0, 1)
    value = getattr(owner, name)
    if is_concrete(value):
        array = np.asarray(value, np.float64)
        require(name, array, (array == 0) | (array == 1), "give 0 or 1")


def is_on(value: Any) -> Any:
    """Whether an option is 1 and not 0, as a bool, traced or not."""
    return jnp.asarray(value, jnp.float32) > 0.5
