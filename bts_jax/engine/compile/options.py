"""Compiler options: how a program is compiled on a CPU and on a GPU.

The options for GPUs are those of XLA in jaxlib 0.11.2. `bts-jax bench` on a GPU measures their
effect; `.github/docs/measurements.md` has the numbers. None of them changes what a program
computes.
"""

import logging
from functools import cache
from typing import Any

import jax

from bts_jax import text
from bts_jax.jax_internals import Jaxpr, jaxprs_in_params

_LOG = logging.getLogger("bts_jax")

# Quick compilation: with XLA's older emitters and LLVM's level 1, a program compiles in 55 to 65%
# of the CPU time, and takes 1.2 to 1.4 times as long to run (jaxlib 0.10.2, 2 Arm cores; `bts-jax
# bench --latency`). The operations in `SAME_BITS` give the same bits with and without it:
# `test_programs.py` compares them. `tan`, `erf` and `cbrt` do not. Other operations were not
# compared.
QUICKLY = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 2,
}
SAME_BITS = {
    *"""
    abs add and argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp complex concatenate
    cond convert_element_type copy cummax cummin cumsum div dynamic_slice dynamic_update_slice eq
    exp expm1 floor gather ge gt imag integer_pow iota is_finite jit le log log1p lt max min mul
    ne neg not optimization_barrier or pad pjit real reduce reduce_and reduce_max reduce_min
    reduce_or reduce_sum rem reshape reshard rev round scan scatter scatter-add select_n shard_map
    shift_left shift_right_arithmetic shift_right_logical sign slice sort split sqrt square
    squeeze stack stop_gradient sub transpose unstack while xor
    """.split()
}

# On a GPU, blocks of calls are launched as one graph, and independent kernels run at the same time.
# With 500 runs, a call takes a third less time. The assembler may use all registers of a
# multiprocessor for one block of threads. By default it uses 32 registers, so that many blocks fit,
# and issues loads so late that the kernel waits for each. Autotuning is off: it would wait for the
# GPU, which is playing other batches. CONDITIONAL is not in the list, so that a branch ends a graph
# (`loop.play`). A turn is one operation. By default XLA makes graphs of at least five.
GRAPHS = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
}
REGISTERS = {"xla_gpu_ptx_compiler_extra_flags": "--minnctapersm=1"}
UNROLLED = {
    "xla_gpu_command_buffer_unroll_loops": True,
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
}
TWO_CALLS = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}


def ways(device: Any, quickly: bool, traced: Any, lowered: Any) -> list[dict | None]:
    """The options with which a program may be compiled, the best first. The others are for programs
    that fail.
    """
    if device.platform == "cpu":
        return [known(QUICKLY) if quickly and operations(traced.jaxpr.jaxpr) <= SAME_BITS else None]
    options, _ = known_on_gpu(device)
    if options is None:
        return [None]
    # Each iteration ends with a kernel that tests whether it was the last. With two calls per
    # iteration, half as many of these kernels are needed. In some programs, such as those with a
    # barrier in a call, XLA fails to join two iterations. They are compiled with one call per
    # iteration.
    every = [options | UNROLLED | TWO_CALLS, options | UNROLLED, options]
    # A block is a loop inside two loops (`loop.play`), and a user-defined policy or bandit may have
    # a fourth loop inside it. XLA cannot unroll such loops, and loops that run in parallel may
    # never end: some such programs deadlocked on an H200. The kernels of these programs run one
    # after the other.
    return every[-1:] if loops(lowered.compiler_ir()) > 3 else every


def operations(jaxpr: Jaxpr) -> set[str]:
    """The names of all operations, including those in bodies of loops, branches and calls."""
    inner = [body for equation in jaxpr.eqns for body in jaxprs_in_params(equation.params)]
    return {equation.primitive.name for equation in jaxpr.eqns}.union(*map(operations, inner))


def loops(module: Any) -> int:
    """The depth of nested loops in a lowered program.

    The jaxpr is not enough: some of JAX's primitives, such as `random_gamma`, become loops only
    when they are lowered.
    """
    functions = {one.attributes["sym_name"].value: one for one in module.body.operations}

    @cache
    def of_function(name: str) -> int:
        return of(functions[name])

    def of(operation: Any) -> int:
        name = operation.operation.name
        deepest = max(
            (of(one) for region in operation.regions for block in region for one in block),
            default=0,
        )
        if name == "func.call":
            return of_function(operation.attributes["callee"].value)
        return deepest + (name == "stablehlo.while")

    return of_function("main")


def known(options: dict) -> dict:
    """The options that the compiler for CPUs knows in this version."""
    device = jax.local_devices(backend="cpu")[0]
    return {
        name: value for name, value in options.items() if _refused(device, ((name, value),)) is None
    }


@cache
def known_on_gpu(device: Any) -> tuple[dict | None, tuple[str, ...]]:
    """The options for all programs that the compiler knows, and the names of the other options,
    which are logged.

    Another compiler or another version may know fewer options, or none.
    """
    if device.platform != "gpu":
        return None, ()
    refused: list[str] = []
    for some in (GRAPHS | UNROLLED, REGISTERS):
        reason = _refused(device, tuple(some.items()))
        if reason is not None:
            refused += some
            _LOG.warning(
                "the compiler for %s does not accept %s: programs are slower without it (%s)",
                device.device_kind,
                ", ".join(some),
                reason,
            )
    options = {name: value for name, value in (GRAPHS | REGISTERS).items() if name not in refused}
    return (options if GRAPHS.keys() <= options.keys() else None), tuple(refused)


@cache
def _refused(device: Any, options: tuple) -> str | None:
    """Why the compiler does not accept these options. `None` if it does."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(options)).lower(
            jax.device_put(0, device)
        ).compile()
    except jax.errors.JaxRuntimeError as error:
        return text.reason(error)
    return None
