"""Learning a policy's hyperparameters: gradients of what it earns under a budget, and `fit`.

A run is a matter of discrete decisions and has no derivative; its expectation has. Three ways to estimate that:

- `smoothed_gradient` draws the hyperparameters themselves at random, near where they are, and asks which way it paid. It takes
  any policy in the contract and plays real runs.
- `score_gradient` asks which decisions paid, and how the hyperparameters change their probabilities (the score function, or
  REINFORCE). Runs on the same instance are each other's baseline (Boutilier et al., NeurIPS 2020): what a run earns after a
  decision is compared with what the others earned once they had spent as much. Not with what they earned after as many
  rounds: under a budget runs differ in length, and one that has spent more by the same round has less ahead of it.
- `pathwise_gradient` differentiates through the runs of a relaxed game, in which every arm is pulled in part.

The last two need one method more of a policy, `logits(state, key)`: K numbers by which it chooses, differentiable in the
hyperparameters. It pulls the arm with the largest; or, if its class has `softmax = True`, arm i with probability
softmax(logits)_i. What it draws with `key` must have derivatives too, as draws of `random.gamma` and `jax.random.normal` have.
`BTS`, `TemperedBTS` and `SoftElimination` have it.

A class may also have `learnable`, a dictionary of its hyperparameters' names and the range (low, high) to learn each in.
`TemperedBTS` also has `learnable_schedule`, with the hyperparameters of its schedule, to be passed as `ranges`.

The objective is "pseudo_regret", by default, or "reward". On Bernoulli arms their derivatives are the same but for the
sign, and the former is far less noisy.
"""

from bts_jax.learn.estimates import Estimate
from bts_jax.learn.fitting import METHODS, Fit, fit
from bts_jax.learn.pathwise import pathwise_gradient
from bts_jax.learn.score import score_gradient
from bts_jax.learn.smoothed import smoothed_gradient

__all__ = ["METHODS", "Estimate", "Fit", "fit", "pathwise_gradient", "score_gradient", "smoothed_gradient"]
