"""BudgetPacer: upper confidence bounds, and prices that follow recent spending."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bts_jax import checks
from bts_jax.contract import Problem
from bts_jax.policies import resources
from bts_jax.policies.index import ArmStatistics, choose
from bts_jax.pytrees import pytree
from bts_jax.typing import ArrayLike

DECADES = 3.0  # of costs that the penalty tells apart


class BudgetPacerState(NamedTuple):
    arms: ArmStatistics
    spending: jax.Array  # [d − 1] the recent cost of a round, in multiples of the target B_j / T
    prices: jax.Array  # [d − 1] λ_j
    target: jax.Array  # [d − 1] B_j / T


@pytree
class BudgetPacer:
    """The budget pacer of ParetoBandit (2026), without features: prices follow recent spending.

    Let T be the number of rounds. The average e_j of recent costs of resource j begins at B_j / T,
    and its price λ_j at 0. After a pull with the costs c_j they become

        e_j' = (1 − a) e_j + a c_j,   λ_j' = min{max{λ_j + η (e_j' T / B_j − 1), 0}, λ_max}.

    Pull the arm with the largest

        Σ r / (n_i + 1) + α / √(n_i + 1) − Σ_j (λ_c + λ_j) g_ij,
        g_ij = max{1 + ln(c̄_ij / max_k c̄_kj) / ln(1000), 0},

    among the arms with c̄_ij ≤ max_k c̄_kj / (1 + λ_j) for all j, or among all arms if there is no
    such arm. Arms with fewer than `burn_in` pulls come first, the one with the fewest pulls before
    the others.

    Reference: Taberner-Miller, "ParetoBandit: Budget-Paced Adaptive Routing for Non-Stationary LLM
    Serving", arXiv 2604.00136, 2026, Algorithm 1, and the repository ParetoBandit/ParetoBandit.

    Side information: the budgets, and time as a resource, from which T follows.

    Guarantee: none. The source says that its averages, its ceiling and its logarithms leave none.

    Deviations from the source: the source has features, and its bound is that of linear regression
    with a ridge of 1. Without features it is the one above. The source forgets old rounds, which
    helps if the arms change; here nothing is forgotten. Its one resource is money. The source
    knows the price of each arm in advance and divides logarithms of prices by those of $0.0001 and
    $0.10 per 1,000 tokens, which are three decades apart. Here costs are learnt, and the three
    decades end at the largest average cost, so that the unit of money does not matter. a = η =
    0.05 and λ_max = 5 are those of the source, as is λ_c = 0, its setting in studies of budgets
    (0.3 is the default of its program). α = 1 is what its program calls moderate exploration for a
    cold start; its study without prior data has 0.05. On a table of prices of three language
    models, α = 0.05 earns 3% more with one of seven budgets, and up to 7% less with five of them.
    Bounds with α = 0.05 never pull an arm again that has earned little at first. A new arm of the
    source is pulled 20 times first. Twenty pulls of the dearest of these models cost more than the
    three smallest of the seven budgets.

    Args:
        exploration: α.
        rate: η, the speed of the prices.
        smoothing: a, the weight of the last cost in the average of recent costs.
        limit: λ_max, the largest price.
        penalty: λ_c, a constant part of the prices.
        burn_in: the number of pulls of each arm before the rule applies, at least 1.

    Example:
        >>> import jax, bts_jax
        >>> shop = bts_jax.Timed(bts_jax.Pricing(prices=[[0.4], [0.8]], demand=[[0.7], [0.3]]))
        >>> run = bts_jax.simulate(BudgetPacer(), shop, [40, 100], jax.random.key(0))
        >>> bool((run.cost <= run.budget).all())
        True
    """

    requires: ClassVar[tuple[str, ...]] = ("budget", "time_cost")
    several_resources: ClassVar[bool] = True

    exploration: ArrayLike = 1.0
    rate: ArrayLike = 0.05
    smoothing: ArrayLike = 0.05
    limit: ArrayLike = 5.0
    penalty: ArrayLike = 0.0
    burn_in: ArrayLike = 1.0

    def _check(self) -> None:
        checks.hyperparameter(self, "exploration", 0, 1e6)
        checks.hyperparameter(self, "rate", 0, 1e6)
        checks.hyperparameter(self, "smoothing", 0, 1)
        checks.hyperparameter(self, "limit", 0, 1e6)
        checks.hyperparameter(self, "penalty", 0, 1e6)
        checks.hyperparameter(self, "burn_in", 1, 1e6)

    def init(self, problem: Problem) -> BudgetPacerState:
        budget = resources.budgets(problem)
        target = budget[:-1] / resources.rounds(problem)
        arms = ArmStatistics.zeros(problem.num_arms, resources=(len(budget),))
        return BudgetPacerState(arms, jnp.ones_like(target), jnp.zeros_like(target), target)

    def __call__(
        self, state: BudgetPacerState, key: jax.Array
    ) -> tuple[jax.Array, BudgetPacerState]:
        pulls = state.arms.pulls
        burning = pulls.astype(jnp.float32) < self.burn_in
        return choose(jnp.where(burning, jnp.inf, self.scores(state)), pulls), state

    def scores(self, state: BudgetPacerState) -> jax.Array:
        """The score of each arm; the lowest number for arms above a ceiling. [K]"""
        pulls = state.arms.pulls.astype(jnp.float32)
        bound = state.arms.totals[0] / (pulls + 1) + self.exploration / jnp.sqrt(pulls + 1)
        cost = state.arms.cost_mean[:, :-1]
        largest = cost.max(0)
        share = jnp.where(largest > 0, cost / jnp.where(largest > 0, largest, 1), 1)  # [K, d − 1]
        logs = jnp.log10(jnp.maximum(share, jnp.float32(10**-DECADES)))
        scores = bound - ((self.penalty + state.prices) * (1 + logs / DECADES)).sum(-1)
        allowed = (share * (1 + state.prices) <= 1).all(-1)
        allowed = allowed | ~allowed.any()
        return jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)

    def update(
        self,
        state: BudgetPacerState,
        arm: jax.Array,
        reward: jax.Array,
        cost: jax.Array,
        key: jax.Array,
    ) -> BudgetPacerState:
        weight = jnp.asarray(self.smoothing, jnp.float32)
        spending = (1 - weight) * state.spending + weight * (cost[:-1] / state.target)
        prices = jnp.clip(state.prices + self.rate * (spending - 1), 0, self.limit)
        arms = state.arms.record(arm, reward, cost)
        return BudgetPacerState(arms, spending, prices, state.target)
