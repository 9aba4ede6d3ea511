"""The accessor `results.bts`, with the specification that a Dataset of a sweep was computed from.

The specification has all policies and bandits with all of their numbers, and may be long. The
attributes of the Dataset have it as a text with a short `repr`, so that a printed Dataset fits on a
screen.
"""

from typing import Any

import xarray as xr

from bts_jax.sweeps import specification


class Specification(str):
    """The JSON of a specification, with a short `repr`."""

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        try:
            found = specification.parse(str.__str__(self))
            return (
                f"of policies ({len(found['policies'])}) and bandits ({len(found['bandits'])}); "
                "see .bts.specification"
            )
        except (ValueError, KeyError, TypeError):
            return str.__repr__(self)


@xr.register_dataset_accessor("bts")
class Accessor:
    """The accessor `results.bts` of a Dataset that `sweep` returned.

    Example:
        >>> from bts_jax import Bernoulli, sweep
        >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
        >>> results = sweep(["uniform"], bandits, budgets=[10, 20], num_seeds=5)
        >>> results.bts.specification["bandits"]["two"]["fields"]["cost"]
        [0.5, 0.5]
    """

    def __init__(self, dataset: xr.Dataset):
        self._dataset = dataset

    @property
    def specification(self) -> dict[str, Any]:
        """The specification as a dict: the policies, bandits, budgets and seeds that were played,
        with all of their numbers.
        """
        text = self._dataset.attrs.get("specification")
        if not isinstance(text, str):
            raise ValueError(
                "this Dataset has no specification: use one that sweep or open_results returned"
            )
        return specification.parse(str.__str__(text))
