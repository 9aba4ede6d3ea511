"""Bandits: one family of arms per file. `BANDITS` lists all of them by name."""

from bts_jax.bandits.bernoulli import Bernoulli
from bts_jax.bandits.beta import Beta
from bts_jax.bandits.copula import Copula
from bts_jax.bandits.correlated import Correlated
from bts_jax.bandits.empirical import Empirical
from bts_jax.bandits.fixed_price import FixedPrice
from bts_jax.bandits.multinomial import Multinomial
from bts_jax.bandits.pricing import Pricing
from bts_jax.bandits.scaled import Scaled
from bts_jax.bandits.timed import Timed
from bts_jax.bandits.with_null import WithNull

BANDITS = {
    "bernoulli": Bernoulli,
    "multinomial": Multinomial,
    "beta": Beta,
    "correlated": Correlated,
    "copula": Copula,
    "empirical": Empirical,
    "fixed-price": FixedPrice,
    "scaled": Scaled,
    "pricing": Pricing,
    "timed": Timed,
    "with-null": WithNull,
}

__all__ = [
    "BANDITS",
    "Bernoulli",
    "Beta",
    "Copula",
    "Correlated",
    "Empirical",
    "FixedPrice",
    "Multinomial",
    "Pricing",
    "Scaled",
    "Timed",
    "WithNull",
]
