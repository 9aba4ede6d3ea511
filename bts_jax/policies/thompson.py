"""What Thompson policies share: draws that are exact though proposals may be rejected, without an inner loop."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bts_jax import random

NONE = jnp.inf  # in place of a draw: there is none. No draw is infinite, so the largest tells whether all arms have one


class Draws(NamedTuple):
    """Draws from the arms' posteriors that were accepted and have decided nothing yet.

    Proposals that were not accepted are drawn again in another call, and those that were are kept meanwhile. This costs some
    calls that answer "not decided yet", and changes no probability. In such a call the other arms are drawn once more than
    they need: what is accepted there is kept as well, for a round in which the arm's proposal is not. It is a draw from the
    arm's posterior that has decided nothing yet, and is dropped when the arm is pulled. So no update may come between a call
    that decides nothing and the next; the engine sees to that.
    """

    drawn: jax.Array  # [K] this round's, of earlier calls
    spare: jax.Array  # [K] not needed when they were drawn

    @classmethod
    def none(cls, num_arms: int) -> "Draws":
        nothing = jnp.full(num_arms, NONE, jnp.float32)
        return cls(drawn=nothing, spare=nothing)

    def decide(self, accepted: jax.Array, ratio: jax.Array) -> tuple[jax.Array, "Draws"]:
        """The arm with the largest draw, or −1; and what is kept. The arms' proposals are `ratio`, where `accepted`."""
        proposed = random.settled(jnp.where(accepted, ratio, NONE))
        has, new = self.drawn < NONE, proposed < NONE
        ratio = random.settled(jnp.where(has, self.drawn, jnp.where(new, proposed, self.spare)))
        spare = jnp.where(has == new, jnp.where(new, proposed, NONE), self.spare)
        arm = lax.argmax(ratio, 0, jnp.int32)
        decided = ratio.max() < NONE  # which comes with the arm, in one pass: see `lanes`
        return jnp.where(decided, arm, -1), Draws(drawn=jnp.where(decided, NONE, ratio), spare=spare)

    def forget(self, place: jax.Array) -> "Draws":
        """Without the spare draw of an arm that has learnt."""
        return self._replace(spare=self.spare.at[place].set(NONE))


def accepts(words: random.Words, others: random.Words, log_accept: jax.Array) -> jax.Array:
    """One trial of proposals made from these words, with the 22 bits that normal draws left of them."""
    left = (random.spare_bits(words) << 11) | random.spare_bits(others)
    return random.log((left.astype(jnp.float32) + 0.5) * jnp.float32(2**-22)) < log_accept
