"""The passes, in order: how the engine rewrites what policies and bandits compute.

A pass is a function from a program to a program (a closed jaxpr). It either makes the bits the same
everywhere, or makes the program faster. `bts-jax bench --ablate` measures what each pass of the
second kind buys on this machine. A pass that buys less than 5% for the policies that people run is
deleted.

`BTS_JAX_PASSES=-storing,-rows` in the environment switches passes off. Without `rounding`,
`summation`, `division` or `functions`, a run may depend on the batch that it is in.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from bts_jax.engine.failures import PassFailed, naming, report
from bts_jax.engine.jaxprs import is_hash, retrace, simplified
from bts_jax.engine.passes.carrying import cache_rows, compute_ahead
from bts_jax.engine.passes.dividing import divide_truly
from bts_jax.engine.passes.functions import write_out_functions
from bts_jax.engine.passes.halving import halves
from bts_jax.engine.passes.keys import write_out_keys
from bts_jax.engine.passes.masking import mask_scatters
from bts_jax.engine.passes.rounding import round_all_products, round_products
from bts_jax.engine.passes.storing import levels
from bts_jax.engine.passes.summation import in_fixed_order, without_reductions
from bts_jax.jax_internals import Closed

VARIABLE = "BTS_JAX_PASSES"
CPU, GPU = ("cpu",), ("gpu",)
ALL = CPU + GPU


class Pass(NamedTuple):
    """One pass.

    What it does decides what its function takes and returns:

    - "rewrite": closed -> closed
    - "carry": closed, number of inputs that are the same in all steps -> `Carried`
    - "arrange": jaxpr, and maybe that number -> in which order to evaluate it (`step`)
    """

    name: str
    apply: Callable
    platforms: tuple[str, ...]
    does: str
    buys: str
    once: Callable | None = None  # the same for what is computed outside of the step
    after: tuple[str, ...] = ()  # passes that must precede it
    for_speed: bool = False  # whether it can be switched off without a change of bits


def clean(closed: Closed) -> Closed:
    """Inlines calls except hashes, and removes unused and repeated operations."""
    return simplified(retrace(closed, opaque=is_hash))


def sum_in_order(closed: Closed) -> Closed:
    """Sums in a fixed order. Then functions that round their own products need not be calls."""
    return clean(without_reductions(closed))


# fmt: off
PASSES = (
    Pass("keys", write_out_keys, ALL, "rewrite", "other passes see integers, not keys"),
    Pass("functions", write_out_functions, CPU, "rewrite", "same bits of exp, log, and others",
         once=write_out_functions),
    Pass("rounding", round_products, ALL, "rewrite", "same bits of products",
         once=round_all_products, after=("functions",)),
    Pass("summation", sum_in_order, ALL, "rewrite", "same bits of sums",
         once=in_fixed_order, after=("rounding",)),
    Pass("division", divide_truly, ALL, "rewrite", "same bits of quotients", after=("summation",)),
    Pass("masking", mask_scatters, CPU, "rewrite", "no copies of statistics", for_speed=True),
    Pass("ahead", compute_ahead, GPU, "carry", "a kernel less", for_speed=True),
    Pass("rows", cache_rows, CPU, "carry", "only the pulled arm is computed again",
         after=("masking",), for_speed=True),
    Pass("storing", levels, CPU, "arrange", "values are computed once", for_speed=True),
    Pass("halving", halves, GPU, "arrange", "a kernel less", for_speed=True),
)
# fmt: on


@cache
def switched_off() -> frozenset[str]:
    """The names of the passes that `BTS_JAX_PASSES` switches off."""
    value = os.environ.get(VARIABLE, "")
    names = [one.strip() for one in value.split(",") if one.strip()]
    known = {one.name for one in PASSES}
    for name in names:
        if name[:1] != "-" or name[1:] not in known:
            raise ValueError(
                f"{VARIABLE} = {value!r} has {name!r}: give names of passes to switch off, such as "
                f"-storing; the passes are {', '.join(one.name for one in PASSES)}"
            )
    return frozenset(name[1:] for name in names)


def passes(platform: str, does: str) -> list[Pass]:
    """The passes of one kind on a platform, "cpu" or "gpu", in order."""
    return [
        one
        for one in PASSES
        if platform in one.platforms and one.does == does and one.name not in switched_off()
    ]


def rewritten(closed: Closed, platform: str) -> Closed:
    """A step of the loop after all rewriting passes. Only hashes remain calls."""
    for one in passes(platform, "rewrite"):
        with naming(f"pass {one.name}"):
            closed = one.apply(closed)
    with naming("the removal of repeated operations"):
        return clean(closed)


def rewritten_once(closed: Closed, platform: str) -> Closed:
    """What is computed outside of the step, such as the first state and the records, with the same
    bits everywhere.

    If a pass fails, it is left out. The step then fails, too, and is played by the plain engine.
    """
    for one in passes(platform, "rewrite"):
        if one.once is not None:
            try:
                with naming(f"pass {one.name}"):
                    closed = one.once(closed)
            except PassFailed as error:
                report(str(error))
    return closed
