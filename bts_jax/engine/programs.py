"""Compiled programs: how many are stored, their compiler options, and fallbacks if one fails.

The options for GPUs are those of XLA in jaxlib 0.11.2. `bts-jax bench` on a GPU measures their effect; `engine/README.md` has
the numbers.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from threading import Lock, RLock
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.sharding import SingleDeviceSharding

from bts_jax import text

_LOG = logging.getLogger("bts_jax")


PROGRAM_BYTES = 16 * 2**20  # about the memory of a program: 8 to 20 MiB on a CPU (jaxlib 0.10.2 and 0.11.2)


def most_programs() -> int:
    """How many programs a process stores: up to 128, and no more than fit into an eighth of the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(memory // 8 // PROGRAM_BYTES, 32), 128)  # 24 may be compiled ahead of their use, see `compiling`


class Programs:
    """Stores the `most` most recently used programs. Others are dropped, also from JAX's caches.

    Each compiled program takes about 170 memory maps. Linux allows a process 65,530 of them (`vm.max_map_count`). Beyond that,
    LLVM ends the process. It also takes about `PROGRAM_BYTES` of memory, mostly for what JAX caches while it traces. Only
    `jax.clear_caches` frees this memory, together with everything else. So it is called after every `most` dropped programs.
    """

    def __init__(self, most: int):
        self.most, self.kept, self.lock, self.dropped = most, OrderedDict(), Lock(), 0

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.kept:
                self.kept[key] = make()
            self.kept.move_to_end(key)
            program = self.kept[key]
            while len(self.kept) > self.most:
                self._drop(next(iter(self.kept)))
        return program

    def drop(self, key: Any) -> None:
        with self.lock:
            if key in self.kept:
                self._drop(key)

    def _drop(self, key: Any) -> None:
        self.kept.pop(key).clear_cache()
        self.dropped += 1
        if self.dropped >= self.most:
            self.dropped = 0
            jax.clear_caches()


# Quick compilation: with XLA's older emitters and LLVM's level 1, a program compiles in 55 to 65% of the CPU time, and takes
# 1.2 to 1.4 times as long to run (jaxlib 0.10.2, 2 Arm cores; `bts-jax bench --latency`). The operations in `SAME_BITS` give
# the same bits with and without it: `test_programs.py` compares them. `tan`, `erf` and `cbrt` do not. Other operations were
# not compared.
QUICKLY = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 2}
SAME_BITS = {*"""
    abs add and argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp complex concatenate cond convert_element_type
    copy cummax cummin cumsum div dynamic_slice dynamic_update_slice eq exp expm1 floor gather ge gt imag integer_pow iota
    is_finite jit le log log1p lt max min mul ne neg not optimization_barrier or pad pjit real reduce reduce_and reduce_max
    reduce_min reduce_or reduce_sum rem reshape reshard rev round scan scatter scatter-add select_n shard_map shift_left
    shift_right_arithmetic shift_right_logical sign slice sort split sqrt square squeeze stack stop_gradient sub transpose
    unstack while xor
    """.split()}


def jit_on(device: Any, function: Callable, options: dict | None = None) -> Any:
    """`jax.jit` for one device. Without a device, `function` is divided among several by `jax.shard_map`."""
    return jax.jit(function, in_shardings=device and SingleDeviceSharding(device), compiler_options=options)


class OnCPU:
    """A program for CPUs. It is compiled with `QUICKLY` if that is requested and changes no bit."""

    def __init__(self, function: Callable, quickly: bool, device: Any = None):
        self.program: Any = jit_on(device, function)
        self.quickly, self.ready, self.lock = quickly, None, RLock()

    def lower(self, batches: list) -> "LoweredOnCPU":
        traced = self.program.trace(batches)
        quickly = self.quickly and _operations(traced.jaxpr.jaxpr) <= SAME_BITS
        return LoweredOnCPU(self, traced.lower(), known(QUICKLY) if quickly else None)

    def __call__(self, batches: list) -> Any:
        program = self.ready or self.lower(batches).compile()
        return jax.block_until_ready(program(batches))

    def clear_cache(self) -> None:
        self.ready = None
        self.program.clear_cache()


class LoweredOnCPU(NamedTuple):
    """A traced and lowered program for CPUs."""

    program: OnCPU
    lowered: Any
    options: dict | None

    def compile(self) -> Any:
        with self.program.lock:
            if self.program.ready is None:
                self.program.ready = self.lowered.compile(self.options)
            return self.program.ready


def _operations(jaxpr: Any) -> set[str]:
    """The names of all operations, including those in bodies of loops, branches and calls."""
    inner = [body for equation in jaxpr.eqns for body in core.jaxprs_in_params(equation.params)]
    return {equation.primitive.name for equation in jaxpr.eqns}.union(*map(_operations, inner))


def known(options: dict) -> dict:
    """The options that the compiler for CPUs knows in this version."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


@cache
def _is_known(option: str, value: Any) -> bool:
    device = jax.local_devices(backend="cpu")[0]
    try:
        jax.jit(lambda x: x, compiler_options={option: value}).lower(jax.device_put(0, device)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class Graphed:
    """A program that is launched as CUDA graphs: blocks are unrolled, kernels run in parallel, an iteration has two calls.

    Each iteration ends with a kernel that tests whether it was the last. With two calls per iteration, half as many of these
    kernels are needed. In some programs, such as those with a barrier in a call, XLA fails to join two iterations. They are
    compiled with one call per iteration.

    A block is a loop inside two loops (`loop.play`), and a user-defined policy or bandit may have a fourth loop inside it. XLA
    cannot unroll such loops, and loops that run in parallel may never end: some such programs deadlocked on an H200. The
    kernels of these programs run one after the other. The same holds for a program that fails to compile or to run for any
    other reason. A log line reports the failure.
    """

    def __init__(self, function: Callable, options: dict, device: Any = None):
        more = (_UNROLLED | _TWO_CALLS, _UNROLLED, {})
        self.ways: list[Any] = [jit_on(device, function, options | one) for one in more]
        self.ready: Any = ()  # the variant that has been compiled
        self.failed: list[str] = []  # the reasons why other variants were given up
        self.lock = RLock()

    def lower(self, batches: list) -> "Lowered":
        with self.lock:
            lowered = self.ways[0].lower(batches)
            if len(self.ways) > 1 and loops(lowered.compiler_ir()) > 3:
                self.ways = self.ways[-1:]
                lowered = self.ways[0].lower(batches)
            return Lowered(self, batches, self.ways[0], lowered)

    def __call__(self, batches: list) -> Any:
        while True:
            way = self.ready
            if not way:  # not compiled yet, or dropped by another thread
                self.lower(batches).compile()
                continue
            try:
                return jax.block_until_ready(way(batches))  # waiting raises the error of a failed launch
            except jax.errors.JaxRuntimeError as error:
                self.give_up(way, error)

    def give_up(self, way: Any, error: Exception) -> None:
        """Switches to the next variant, unless another thread has done so. Raises the error if no other variant would help."""
        reason = text.reason(error)
        with self.lock:
            if way is not self.ways[0]:
                return
            if len(self.ways) == 1 or "RESOURCE_EXHAUSTED" in reason or "callback" in reason.lower():
                raise error
            self.ways, self.ready = self.ways[1:], ()
            self.failed.append(reason)
        _LOG.warning("a GPU program failed and is compiled without some optimisations (%s)", reason)

    def clear_cache(self) -> None:
        self.ready = ()
        for way in self.ways:
            way.clear_cache()


class Lowered(NamedTuple):
    """A traced and lowered program for GPUs. `compile` uses the first variant that compiles."""

    program: Graphed
    batches: list
    way: Any
    lowered: Any

    def compile(self) -> Any:
        try:
            compiled = self.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            self.program.give_up(self.way, error)
            return self.program.lower(self.batches).compile()
        with self.program.lock:
            if self.way is self.program.ways[0]:
                self.program.ready = self.way
        return compiled


def loops(module: Any) -> int:
    """The depth of nested loops in a lowered program.

    The jaxpr is not enough: some of JAX's primitives, such as `random_gamma`, become loops only when they are lowered.
    """
    functions = {one.attributes["sym_name"].value: one for one in module.body.operations}

    @cache
    def of_function(name: str) -> int:
        return of(functions[name])

    def of(operation: Any) -> int:
        name = operation.operation.name
        deepest = max((of(one) for region in operation.regions for block in region for one in block), default=0)
        if name == "func.call":
            return of_function(operation.attributes["callee"].value)
        return deepest + (name == "stablehlo.while")

    return of_function("main")


# On a GPU, blocks of calls are launched as one graph, and independent kernels run at the same time. With 500 runs, a call
# takes a third less time. The assembler may use all registers of a multiprocessor for one block of threads. By default it uses
# 32 registers, so that many blocks fit, and issues loads so late that the kernel waits for each. These options do not change
# what a kernel computes. Autotuning is off: it would wait for the GPU, which is playing other batches. CONDITIONAL is not in
# the list, so that a branch ends a graph (`loop.play`). A turn is one operation. By default XLA makes graphs of at least five.
_GRAPHS = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
}
_REGISTERS = {"xla_gpu_ptx_compiler_extra_flags": "--minnctapersm=1"}
_UNROLLED = {"xla_gpu_command_buffer_unroll_loops": True, "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
_TWO_CALLS = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}
_KNOWN: dict[tuple, tuple[dict | None, tuple[str, ...]]] = {}  # what `graphs` has found, by kind of device


def graphs(device: Any) -> tuple[dict | None, tuple[str, ...]]:
    """The options for all programs that the compiler knows, and the names of the other options, which are logged.

    Another compiler or another version may know fewer options, or none.
    """
    kind = device.platform, device.device_kind
    if kind not in _KNOWN:
        _KNOWN[kind] = _find_graphs(device)
    return _KNOWN[kind]


def _find_graphs(device: Any) -> tuple[dict | None, tuple[str, ...]]:
    if device.platform != "gpu":
        return None, ()
    refused: list[str] = []
    for some in (_GRAPHS | _UNROLLED, _REGISTERS):
        try:
            jax.jit(lambda x: x + 1, compiler_options=some).lower(jax.device_put(0, device)).compile()
        except jax.errors.JaxRuntimeError as error:
            refused += some
            _LOG.warning("the compiler for %s does not accept %s: programs are slower without it (%s)", device.device_kind,
                         ", ".join(some), text.reason(error))
    options = {name: value for name, value in (_GRAPHS | _REGISTERS).items() if name not in refused}
    return (options if _GRAPHS.keys() <= options.keys() else None), tuple(refused)
