"""Policies as a user writes them, in plain `jax.numpy`: for `bts-jax bench` and the tests.

On Bernoulli arms their runs have the same distribution as those of `KUBE` and `BTS`.
"""

import chex
import jax
import jax.numpy as jnp

import bts_jax.random


@chex.dataclass(frozen=True)
class PlainKUBE:
    """KUBE: an upper confidence bound on the mean reward, over the mean cost."""

    scale: float = 2.0

    def init(self, problem):
        zeros = jnp.zeros(problem.num_arms)
        return {"t": jnp.ones(()), "pulls": zeros, "reward": zeros, "cost": zeros}

    def __call__(self, state, key):
        pulls = jnp.maximum(state["pulls"], 1)
        width = jnp.sqrt(self.scale * jnp.log(state["t"]) / pulls)
        index = (state["reward"] / pulls + width) / (state["cost"] / pulls)
        return jnp.argmax(jnp.where(state["pulls"] == 0, jnp.inf, index)), state

    def update(self, state, arm, reward, cost, key):
        return {
            "t": state["t"] + 1,
            "pulls": state["pulls"].at[arm].add(1),
            "reward": state["reward"].at[arm].add(reward),
            "cost": state["cost"].at[arm].add(cost),
        }


@chex.dataclass(frozen=True)
class PlainThompson:
    """Budgeted Thompson sampling with uniform priors and draws from `bts_jax.random.beta`."""

    def init(self, problem):
        zeros = jnp.zeros(problem.num_arms)
        return {"pulls": zeros, "reward": zeros, "cost": zeros}

    def draw(self, key, a, b):
        return bts_jax.random.beta(key, a, b)

    def __call__(self, state, key):
        key_reward, key_cost = jax.random.split(key)
        reward = self.draw(key_reward, state["reward"] + 1, state["pulls"] - state["reward"] + 1)
        cost = self.draw(key_cost, state["cost"] + 1, state["pulls"] - state["cost"] + 1)
        return jnp.argmax(reward / cost), state

    def update(self, state, arm, reward, cost, key):
        key_reward, key_cost = jax.random.split(key)
        return {
            "pulls": state["pulls"].at[arm].add(1),
            "reward": state["reward"].at[arm].add(jax.random.bernoulli(key_reward, reward)),
            "cost": state["cost"].at[arm].add(jax.random.bernoulli(key_cost, cost)),
        }


@chex.dataclass(frozen=True)
class PlainThompsonJax(PlainThompson):
    """The same with `jax.random.beta`."""

    def draw(self, key, a, b):
        return jax.random.beta(key, a, b)
