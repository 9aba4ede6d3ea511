"""Learning the hyperparameters of a policy: gradients of its expected reward or regret under a
budget, and `fit`.

A run consists of discrete decisions and has no derivative, but its expectation has one. There are
three estimators of this derivative:

- `smoothed_gradient` draws the hyperparameters at random near their current values and estimates
  which direction improves the objective. It works with every policy in the contract and simulates
  real runs.
- `score_gradient` estimates which decisions paid off, and how the hyperparameters change their
  probabilities (the score function, or REINFORCE). Runs on the same instance serve as baselines for
  each other (Boutilier et al., NeurIPS 2020). The reward of a run after a decision is compared with
  the reward of the other runs after they had spent the same amount. It is not compared with their
  reward after the same number of rounds: under a budget, runs differ in length, and a run that has
  spent more by the same round has less left to spend.
- `pathwise_gradient` differentiates through the runs of a relaxed game, in which every arm is
  pulled in part.

The last two need a further method of the policy, `logits(state, key)`. It returns K numbers that
determine the choice and are differentiable in the hyperparameters. The policy pulls the arm with
the largest logit. If its class has `softmax = True`, it pulls arm i with probability
softmax(logits)_i. Draws with `key` must have derivatives, too, as those of `random.gamma` and
`jax.random.normal` have. `BTS`, `TemperedBTS` and `SoftElimination` have this method.

A class may also have `learnable`, a dictionary from names of hyperparameters to the ranges (low,
high) in which they are learnt. `TemperedBTS` also has `learnable_schedule`, which includes the
hyperparameters of its schedule. Pass it as `ranges`.

The objective is "pseudo_regret", by default, or "reward". On Bernoulli arms their derivatives are
the same except for the sign, and "pseudo_regret" is far less noisy.
"""

from bts_jax.learn.estimates import Estimate
from bts_jax.learn.fitting import METHODS, Fit, fit
from bts_jax.learn.pathwise import pathwise_gradient
from bts_jax.learn.score import score_gradient
from bts_jax.learn.smoothed import smoothed_gradient

__all__ = [
    "METHODS",
    "Estimate",
    "Fit",
    "fit",
    "pathwise_gradient",
    "score_gradient",
    "smoothed_gradient",
]
