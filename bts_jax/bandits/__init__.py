"""What is pulled: one family of arms per file. `BANDITS` names them all."""

from bts_jax.bandits.bernoulli import Bernoulli
from bts_jax.bandits.multinomial import Multinomial

BANDITS = {
    "bernoulli": Bernoulli,
    "multinomial": Multinomial,
}

__all__ = ["BANDITS", "Bernoulli", "Multinomial"]
