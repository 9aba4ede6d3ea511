"""Writes out functions such as `exp` and `log` in operations that XLA computes in the same way in
every program.

XLA's compiler for CPUs computes such functions by series. From jaxlib 0.11 on, the last bit of the
result depends on the shape of the array and on the loop around it: `exp` of three numbers may
differ from `exp` of four (jaxlib 0.11.2 and 0.12.0.1 on an x86 CPU). A sum, a product, a quotient
and a square root are correctly rounded in all programs. So this pass replaces each function by a
series of its own. `rounding` then rounds the products. The errors are a few units in the last
place.

Version 0.10 of jaxlib gives the same bits in the numbers of lanes that `loop.lane_count` allows,
and is left alone. To see whether a later version does, switch the pass off and run
`test_property.py` and `test_engine.py`.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bts_jax.engine.jaxprs import bind, has_bodies, is_exact, retrace
from bts_jax.engine.passes.rounding import round_product
from bts_jax.jax_internals import Closed, Equation, Jaxpr, jaxlib_version_info, jaxprs_in_params

NEEDED = jaxlib_version_info >= (0, 11)  # on CPUs
# Functions of XLA that are not written out, because policies rarely use them. `check_policy` names
# them.
LEFT = """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh cumlogsumexp
    digamma erf erfc igamma igammac lgamma one_minus_square polygamma polynomial pow
    regularized_incomplete_beta sin sinh tan zeta
    """.split()
_TINY = np.float32(np.finfo(np.float32).tiny)


def write_out_functions(closed: Closed) -> Closed:
    """The same closed jaxpr without the functions in `FUNCTIONS`. Those of other floats than
    float32 stay.
    """
    return _written_out(closed) if NEEDED else closed


def functions_left(jaxpr: Jaxpr) -> set[str]:
    """The functions in a jaxpr that are not written out."""
    found = {
        equation.primitive.name
        for equation in jaxpr.eqns
        if not is_exact(equation) and _is_left(equation)
    }
    bodies = (
        body for one in jaxpr.eqns if not is_exact(one) for body in jaxprs_in_params(one.params)
    )
    return found.union(*map(functions_left, bodies))


def _is_left(equation: Equation) -> bool:
    name = equation.primitive.name
    return name in LEFT or (name in FUNCTIONS and equation.outvars[0].aval.dtype != jnp.float32)


def _written_out(closed: Closed) -> Closed:
    def rule(equation: Equation, inputs: Sequence) -> Sequence:
        if has_bodies(equation):
            return bind(equation, inputs, _written_out)
        return [FUNCTIONS[equation.primitive.name](*inputs)]

    return retrace(closed, _applies, rule, is_exact)


def _applies(equation: Equation) -> bool:
    if has_bodies(equation):
        return not is_exact(equation)
    floats = (
        bool(equation.outvars) and getattr(equation.outvars[0].aval, "dtype", None) == jnp.float32
    )
    return floats and equation.primitive.name in FUNCTIONS


def _exp(x: jax.Array) -> jax.Array:
    """2^n · e^r with x = n ln 2 + r. The coefficients are those of Cephes."""
    x = jnp.clip(x, -104, 89)  # beyond: 0 and infinity
    n = jnp.round(x * jnp.float32(1 / math.log(2)))
    # The first product is exact.
    r = (x - n * jnp.float32(0.693359375)) - n * jnp.float32(-2.12194440e-4)
    return jnp.where(x < math.log(_TINY), 0, _two_to(n, 1 + _exp_excess(r)))


def _exp2(x: jax.Array) -> jax.Array:
    x = jnp.clip(x, -150, 129)
    n = jnp.round(x)
    return jnp.where(x < -126, 0, _two_to(n, 1 + _exp_excess((x - n) * jnp.float32(math.log(2)))))


def _exp_excess(r: jax.Array) -> jax.Array:
    """e^r − 1 for |r| ≤ ln 2 / 2."""
    return r + r * r * _polynomial(
        r,
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )


def _two_to(n: jax.Array, x: jax.Array) -> jax.Array:
    """2^n · x, in two steps, because 2^128 is not a float32."""
    n = n.astype(jnp.int32)  # 0 for NaN, and then x is NaN
    half = n >> 1
    powers = (
        lax.bitcast_convert_type((part + 127) << 23, jnp.float32) for part in (half, n - half)
    )
    return x * next(powers) * next(powers)


def _log(x: jax.Array) -> jax.Array:
    """e ln 2 + log(1 + t) with x = 2^e (1 + t) and √½ ≤ 1 + t < √2. The coefficients are those of
    Cephes.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - jnp.int32(0x3F3504F3)) >> 23
    t = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    e, square = exponent.astype(jnp.float32), t * t
    y = (
        t
        * square
        * _polynomial(
            t,
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        )
    )
    y = (y + e * jnp.float32(-2.12194440e-4)) - square * jnp.float32(0.5)
    found = (t + y) + e * jnp.float32(0.693359375)
    found = jnp.where(x < _TINY, jnp.where(x < 0, jnp.nan, -jnp.inf), found)
    return jnp.where(x < jnp.inf, found, x)  # infinity and NaN


def _log2(x: jax.Array) -> jax.Array:
    """An operation of its own from JAX 0.12 on."""
    return _log(x) * jnp.float32(1 / math.log(2))


def _log1p(x: jax.Array) -> jax.Array:
    """log(u) · x / (u − 1) with u = 1 + x: the errors of u in both factors cancel (Kahan)."""
    u = round_product(1 + x)  # otherwise XLA simplifies (1 + x) − 1
    exact = (u == 1) | ~(u < jnp.inf)
    return jnp.where(exact, x, _log(u) * (x / jnp.where(exact, 1, u - 1)))


def _expm1(x: jax.Array) -> jax.Array:
    """(u − 1) · x / log(u) with u = exp(x), as in `_log1p`."""
    u = _exp(x)
    less = u - 1
    found = less * (x / jnp.where(u == 1, 1, _log(u)))
    found = jnp.where((u > 1e8) | (less == -1), less, found)
    return jnp.where(u == 1, x, found)


def _tanh(x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    y = _expm1(2 * jnp.minimum(size, 10))
    found = jnp.where(size > 9.1, 1, y / (y + 2))
    return jnp.where(x < 0, -found, jnp.where(x != x, x, found))


def _logistic(x: jax.Array) -> jax.Array:
    return 1 / (1 + _exp(-x))


def _rsqrt(x: jax.Array) -> jax.Array:
    return 1 / round_product(jnp.sqrt(x))  # otherwise XLA would use `rsqrt`


def _erf_inv(x: jax.Array) -> jax.Array:
    """The inverse of `erf`, from which JAX makes normal draws (Giles 2012, "Approximating the
    erfinv function").
    """
    w = -_log1p(-x * x)
    near, far = w - jnp.float32(2.5), jnp.sqrt(w) - 3
    p = jnp.where(
        w < 5,
        _polynomial(
            near,
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ),
        _polynomial(
            far,
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ),
    )
    return jnp.where(jnp.abs(x) == 1, x * jnp.inf, p * x)


def _polynomial(x: jax.Array, *coefficients: float) -> jax.Array:
    result = jnp.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + jnp.float32(coefficient)
    return result


FUNCTIONS: dict[str, Callable] = {
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "expm1": _expm1,
    "tanh": _tanh,
    "logistic": _logistic,
    "rsqrt": _rsqrt,
    "erf_inv": _erf_inv,
}
