"""Types of arguments that have a name of their own: `help()` shows `ArrayLike`, and not the union
that it stands for.
"""

import jax.typing
from typing_extensions import TypeAliasType  # in Python's own `typing` since 3.12

ArrayLike = TypeAliasType("ArrayLike", jax.typing.ArrayLike)  # a JAX or NumPy array, or a number
