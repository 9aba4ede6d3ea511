"""A fingerprint of a bandit. By it, `regret` notices that it is given another bandit than the one that was played."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bts_jax.contract import Bandit


def fingerprint(bandit: Bandit, batch: tuple[int, ...] = (), xp: Any = jnp) -> Any:
    """A checksum of all numbers in a bandit, uint32. It is the same inside and outside of `jit`.

    `batch` is the shape of a batch of bandits. Arrays that do not begin with these axes are shared by all of them. `xp` is the
    array library to use, `jax.numpy` or `numpy`.

    Example:
        >>> from bts_jax import Bernoulli
        >>> one, other = Bernoulli(reward=[0.5, 0.9], cost=[0.5, 0.5]), Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])
        >>> bool(fingerprint(one) == fingerprint(other)), bool(fingerprint(one) == fingerprint(one, xp=np))
        (False, True)
    """
    total = xp.zeros(batch, np.uint32)
    for place, leaf in enumerate(jax.tree.leaves(bandit)):
        words = _words(leaf, xp)
        own = words.shape[len(batch):] if words.shape[: len(batch)] == batch else words.shape
        words = words.reshape(*words.shape[: words.ndim - len(own)], -1)
        positions = xp.arange(words.shape[-1], dtype=np.uint32) + np.uint32(place << 20)
        with np.errstate(over="ignore"):  # modulo 2³²
            total = total + _mixed(words ^ _mixed(positions)).sum(-1, dtype=np.uint32)
    return total


def _words(leaf: Any, xp: Any) -> Any:
    """The numbers of a leaf as uint32: the bits of floats, which a run converts to float32."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    leaf = xp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.astype(np.uint32)
    leaf = leaf.astype(np.float32)
    return leaf.view(np.uint32) if xp is np else jax.lax.bitcast_convert_type(leaf, jnp.uint32)


def _mixed(words: Any) -> Any:
    """Every bit of the result depends on all bits of a word (the last steps of MurmurHash3)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
