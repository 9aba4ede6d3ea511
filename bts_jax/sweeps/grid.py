"""The checked arguments of a sweep: named policies and bandits, budgets and seeds."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import numpy as np

from bts_jax import arguments, checks
from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.bandits.arms import named_arms
from bts_jax.batch import best_cost
from bts_jax.contract import Bandit, Means, Policy, num_resources, scales, side_info
from bts_jax.engine.fixed_point import LARGEST, UNIT
from bts_jax.limits import mean_share
from bts_jax.names import named
from bts_jax.policies import ALL_POLICIES
from bts_jax.sweeps.results import Chunk, now
from bts_jax.sweeps.specification import (
    check_coords,
    entry_of,
    increasing,
    is_ours,
    listed,
    words_of,
)
from bts_jax.sweeps.store import FORMAT
from bts_jax.text import counted, shown

RUN_KEY = "fold_in(fold_in(jax.random.key(seed), crc32(bandit name)), seed index)"


@contextmanager
def _about(where: str) -> Iterator[None]:
    """Puts `where` before the message of a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


class Grid:
    """The grid of a sweep: policies, bandits, budgets and seeds, checked."""

    def __init__(
        self,
        policies: Any,
        bandits: Any,
        budgets: Any,
        num_seeds: Any,
        seed: Any,
        relative_to_min_cost: Any = False,
        device: Any = None,
        bandit_coords: Any = None,
        max_rounds: Any = None,
        rounds: Any = None,
    ):
        # One of the devices that play.
        self.device = jax.local_devices()[0] if device is None else device
        self.policies: dict[str, Policy] = named("policies", policies, ALL_POLICIES)
        self.bandits: dict[str, Bandit] = named("bandits", bandits, {})
        self.num_seeds, self.seed = (
            checks.whole("num_seeds", num_seeds, 1),
            checks.whole("seed", seed, -(2**31)),
        )
        self._set_ends(budgets, max_rounds, rounds, relative_to_min_cost)
        self.key = jax.random.key(self.seed, impl="threefry2x32")
        if not isinstance(relative_to_min_cost, bool):
            raise ValueError(
                f"relative_to_min_cost = {relative_to_min_cost!r} is not allowed: give True or "
                "False"
            )
        self.relative_to_min_cost = relative_to_min_cost
        self.coords = _coords(bandit_coords, list(self.bandits))
        self._policies, self._bandits = list(self.policies.values()), list(self.bandits.values())
        costs, self.means, checked = [1.0] * len(self._bandits), [], set()
        alike: dict[Any, Bandit] = {}  # one of each kind of bandit
        self.names: list[tuple[str, ...]] = []  # of the arms
        # Of rewards and costs; a list if costs are vectors.
        self.scales: list[tuple[float, Any]] = []
        self.in_units: list[bool] = []  # whether the bandit has scales
        ends = np.full(len(self.budgets), np.inf) if self.in_rounds else self.budgets
        of_built_in = _means_by_kind(self._bandits)
        for place, (name, bandit) in enumerate(self.bandits.items()):
            where = f"bandits[{name!r}]"
            kind, means = of_built_in.get(place, (None, None))
            _check_single(
                "bandits", name, bandit, np.ndim(getattr(means or bandit, "reward_mean", ())) > 1
            )
            if kind is None or kind not in checked:  # built-in ones were checked, except for shapes
                with _about(where):
                    several = num_resources(bandit) is not None
                    arguments.check(
                        ALL_POLICIES["uniform"](),
                        bandit,
                        ends[-1],
                        None if several else ends,
                        self.longest,
                    )
                checked.add(kind)
            means = means or Means(np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean))
            alike.setdefault(kind_of(bandit), bandit)
            if means.cost_mean.ndim > 1:
                if self.in_rounds:
                    raise ValueError(
                        f"{where} has several resources, and runs that end after a number of "
                        "rounds have no budget, so no regret: add time as a resource, with "
                        "Timed(bandit), and give budgets"
                    )
                with _about(where):
                    arguments.check_values(bandit, ends[-1], None, self.longest)
            self.means.append(means)
            self.names.append(
                named_arms(getattr(bandit, "arms", None) or (), means.reward_mean.shape[-1])
            )
            found = scales(bandit)
            self.in_units.append(found is not None)
            found = found or (1.0, 1.0)
            self.scales.append((float(found[0]), np.asarray(found[1], np.float64).tolist()))
            if relative_to_min_cost and means.cost_mean.ndim > 1:
                raise ValueError(
                    f"{where} has {counted(means.cost_mean.shape[1], 'resource')}, and budgets are "
                    "relative to the smallest expected cost, which is defined for one cost: leave "
                    "relative_to_min_cost out"
                )
            if relative_to_min_cost:
                costs[place] = float(np.min(means.cost_mean))
                if costs[place] <= 0:
                    raise ValueError(
                        f"{where} has an arm that costs nothing, and budgets are relative to the "
                        "smallest expected cost: leave this bandit out"
                    )
                amounts = self.budgets * costs[place]
                fine = amounts[0] * UNIT >= 0.5 and amounts[-1] <= LARGEST
                if scales(bandit) or not fine:  # usually not: a check takes long
                    with _about(where):
                        arguments.check_values(
                            bandit if scales(bandit) else means, amounts[-1], amounts, None
                        )
        self._costs, self.amounts = costs, self._amounts(costs)
        for name, policy in self.policies.items():
            _check_single(
                "policies",
                name,
                policy,
                hasattr(policy, "_check") and any(map(np.ndim, jax.tree.leaves(policy))),
            )
            if self.in_rounds and "budget" in side_info(policy):
                raise ValueError(
                    f"policies[{name!r}] requires the budget, and runs that end after a number of "
                    "rounds have none: leave the policy out, or give budgets and max_rounds"
                )
            amounts = None if self.means[0].cost_mean.ndim > 1 else self.amounts[0]
            with _about(f"policies[{name!r}]"):
                arguments.check(
                    policy, self._bandits[0], self.amounts[0, -1], amounts, self.longest
                )
                for bandit in (
                    alike.values()
                    if "time_cost" in side_info(policy)
                    else filter(num_resources, alike.values())
                ):
                    arguments.check_resources(policy, bandit)
        self.words = words_of(self.bandits)
        self._count_work()
        self._sort_by_kind()

    def within(self, described: dict[str, Any]) -> "Grid":
        """The same sweep in the larger grid of a store. Policies and bandits that the sweep does
        not ask for are `None`.
        """
        grid = copy.copy(self)
        grid.specification = described
        places = {name: place for place, name in enumerate(self.bandits)}
        grid.policies = {name: self.policies.get(name) for name in described["policies"]}  # type: ignore
        grid.bandits = {name: self.bandits.get(name) for name in described["bandits"]}  # type: ignore
        grid._policies, grid._bandits = list(grid.policies.values()), list(grid.bandits.values())
        grid.num_seeds, grid.budgets = described["seeds"], _exact(increasing(described["budgets"]))
        grid.longest = int(grid.budgets[-1]) if grid.in_rounds else grid.longest
        grid.means = [
            self.means[places[name]]
            if name in places
            else Means(
                *(np.array(entry[mean], np.float32) for mean in ("reward_mean", "cost_mean"))
            )
            for name, entry in described["bandits"].items()
        ]
        costs = [self._costs[places[name]] if name in places else 1.0 for name in grid.bandits]
        grid.amounts = grid._amounts(costs)
        grid.words = words_of(grid.bandits)
        grid._count_work()
        grid._sort_by_kind()
        return grid

    def _amounts(self, costs: list[float]) -> np.ndarray:
        """The budgets of each bandit: infinite where runs end after a number of rounds. [bandit,
        budget]
        """
        ends = np.full(len(self.budgets), np.inf) if self.in_rounds else self.budgets
        return np.array([ends * cost if self.relative_to_min_cost else ends for cost in costs])

    def _set_ends(
        self, budgets: Any, max_rounds: Any, rounds: Any, relative_to_min_cost: Any
    ) -> None:
        """Sets when runs end and are recorded, at budgets or after numbers of rounds, and the
        largest number of rounds.
        """
        self.in_rounds = rounds is not None
        self.longest = None if max_rounds is None else checks.whole("max_rounds", max_rounds, 1)
        if self.in_rounds:
            for name, other in (
                ("budgets", budgets),
                ("max_rounds", max_rounds),
                ("relative_to_min_cost", relative_to_min_cost or None),
            ):
                if other is not None:
                    raise ValueError(
                        f"rounds and {name} are both given: rounds say when runs end; give one of "
                        "them"
                    )
        elif budgets is None:
            raise ValueError(
                "budgets = None: give budgets, or give as rounds the numbers of rounds after which "
                "to record runs"
            )
        amounts = increasing(rounds, "rounds") if self.in_rounds else increasing(budgets)
        if self.in_rounds and not (amounts == np.floor(amounts)).all():
            raise ValueError(
                f"rounds = {shown(rounds)} are not whole: give numbers of rounds, in increasing "
                "order"
            )
        self.budgets = _exact(amounts)  # or numbers of rounds
        self.longest = int(self.budgets[-1]) if self.in_rounds else self.longest

    def _count_work(self) -> None:
        """Estimates the pulls of a seed on each bandit, as if it pulled the best arm only, and its
        work: pulls times arms.
        """
        best_costs = np.array([float(best_cost(means)) for means in self.means])
        arms = np.array([len(means.reward_mean) for means in self.means])
        self.most_arms = int(arms.max())
        # By whether the policy requires the budget: if so it plays once with every budget, and
        # otherwise once with the largest.
        budgets = {
            True: self.amounts.sum(1, dtype=np.float64),
            False: self.amounts[:, -1].astype(np.float64),
        }
        self._pulls = {required: budget / best_costs for required, budget in budgets.items()}
        if self.longest is not None:
            most = {True: self.longest * len(self.budgets), False: self.longest}
            self._pulls = {
                required: np.minimum(pulls, most[required])
                for required, pulls in self._pulls.items()
            }
        self._work = {
            required: np.round(pulls * arms).astype(np.int64)
            for required, pulls in self._pulls.items()
        }

    def _sort_by_kind(self) -> None:
        """Finds which bandits may share a call, with their arrays stacked."""
        numbers: dict[Any, int] = {}
        members: dict[int, list[int]] = {}
        self.kinds: list[tuple[int, int | None]] = []  # bandits with equal entries may share a call
        self._rows = np.zeros(len(self._bandits), np.int64)
        for place, bandit in enumerate(self._bandits):
            kind = numbers.setdefault(kind_of(bandit), len(numbers))
            # A user-defined bandit need not support a batch along the first axis: it is played
            # alone.
            self.kinds.append((kind, None if is_ours(bandit, BANDITS) else place))
            self._rows[place] = len(members.setdefault(kind, []))
            members[kind].append(place)
        self._members, self._stacks = members, {}

    def mean_shares(self) -> dict[str, float]:
        """The mean cost of each bandit as a share of its largest cost; see `limits.mean_share`."""
        units = [
            scale[1] if has else None for scale, has in zip(self.scales, self.in_units, strict=True)
        ]
        parts = zip(self.bandits.items(), self.means, units, strict=True)
        return {
            name: mean_share(bandit, means.cost_mean, unit) for (name, bandit), means, unit in parts
        }

    def requires_budget(self, chunk: Chunk) -> bool:
        return "budget" in side_info(self.policy(chunk))

    def policy(self, chunk: Chunk) -> Policy:
        return self._policies[chunk.policy]

    def bandit(self, place: int) -> Bandit:
        return self._bandits[place]

    def batch(self, places: Sequence[int] | np.ndarray) -> Bandit:
        """A batch of bandits of one kind."""
        kind, rows = self.kinds[places[0]][0], self._rows[places]
        if kind not in self._stacks:
            self._stacks[kind] = _stacked([self._bandits[place] for place in self._members[kind]])
        return jax.tree.map(lambda leaf: leaf[rows], self._stacks[kind])

    def expected_pulls(self, chunk: Chunk, bandits: range) -> float:
        """Roughly how many pulls a seed of that chunk makes on these bandits together."""
        return float(self._pulls[self.requires_budget(chunk)][bandits.start : bandits.stop].sum())

    def work(self, chunk: Chunk, bandits: range) -> int:
        """Roughly the work of a seed of that chunk on these bandits together: pulls times arms."""
        return int(self._work[self.requires_budget(chunk)][bandits.start : bandits.stop].sum())

    @cached_property
    def specification(self) -> dict[str, Any]:
        """What `attributes` describes as JSON."""
        return {
            "policies": {
                name: entry_of(policy, ALL_POLICIES, requires=list(side_info(policy)))
                for name, policy in self.policies.items()
            },
            "bandits": {
                name: self._bandit_entry(place, bandit)
                for place, (name, bandit) in enumerate(self.bandits.items())
            },
            "budgets": [float(budget) for budget in self.budgets],
            "seeds": self.num_seeds,
            "seed": self.seed,
            **({"relative": True} if self.relative_to_min_cost else {}),
            **(
                {"rounds": True}
                if self.in_rounds
                else {}
                if self.longest is None
                else {"max_rounds": self.longest}
            ),
            **({"coords": self.coords} if self.coords else {}),
            "bts_jax": __version__,
            "jax": jax.__version__,
            "platform": self.device.platform,  # CPU and GPU agree in distribution, not in bits
        }

    def attributes(self) -> dict[str, Any]:
        """The attributes of the Dataset."""
        return {
            "bts_jax": __version__,
            "jax": jax.__version__,
            "device": self.device.device_kind,
            "seed": self.seed,
            "run_key": RUN_KEY,
            "created": now(),
            "store_format": FORMAT,
            "specification": json.dumps(self.specification, ensure_ascii=False),
        }

    def _bandit_entry(self, place: int, bandit: Bandit) -> dict[str, Any]:
        """A bandit as JSON, with its units and the names of its arms where it has some."""
        means, units = (
            self.means[place],
            zip(("reward_scale", "cost_scale"), self.scales[place], strict=True),
        )
        return entry_of(
            bandit,
            BANDITS,
            reward_mean=listed(means.reward_mean),
            cost_mean=listed(means.cost_mean),
            **{name: scale for name, scale in units if np.any(np.asarray(scale) != 1)},
            **({"arms": list(self.names[place])} if self.names[place] else {}),
        )


def _means_by_kind(bandits: Sequence[Bandit]) -> dict[int, tuple[Any, Means]]:
    """The kinds and the means of the built-in bandits, by index. Those of one kind are computed
    together: there may be many.
    """
    kinds: dict[Any, list[int]] = {}
    for place, bandit in enumerate(bandits):
        if is_ours(bandit, BANDITS):
            kinds.setdefault(kind_of(bandit), []).append(place)
    found = {}
    for kind, places in kinds.items():
        batch = _stacked([bandits[place] for place in places])
        rows = zip(np.asarray(batch.reward_mean), np.asarray(batch.cost_mean), strict=True)
        found.update({place: (kind, Means(*row)) for place, row in zip(places, rows, strict=True)})
    return found


def _stacked(bandits: Sequence[Bandit]) -> Bandit:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *bandits)


def kind_of(thing: Any) -> Any:
    leaves, structure = jax.tree.flatten(thing)
    return structure, tuple(np.shape(leaf) for leaf in leaves)


def _exact(budgets: np.ndarray) -> np.ndarray:
    """Whole numbers as integers: they need not be rounded to float32."""
    return budgets.astype(np.int32) if (budgets == np.floor(budgets)).all() else budgets


def _check_single(argument: str, name: str, value: Any, batch: bool) -> None:
    """Raises if `value` is a batch of policies or bandits."""
    if batch:
        leaves = [
            (jax.tree_util.keystr(path)[1:], np.shape(leaf))
            for path, leaf in jax.tree.leaves_with_path(value)
        ]
        shapes = ", ".join(f"{field} of shape {shape}" for field, shape in leaves if shape)
        raise ValueError(
            f"{argument}[{name!r}] has {shapes}, which is a batch of {argument}: give each setting "
            f"its own name, as one entry of the dict {argument} or, in a grid file, as one table "
            f"[{argument}.NAME]"
        )


def _coords(value: Any, bandits: list[str]) -> dict[str, list]:
    """Coordinates of the bandits, by name: lists of numbers or texts, one for each bandit."""
    example = 'bandit_coords={"gap": [0.1, 0.2]}, if there are two bandits'
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(
            f"bandit_coords = {shown(value)} has no names: give a dict such as {example}"
        )
    coords = {name: np.asarray(values).tolist() for name, values in value.items()}
    try:
        check_coords(coords, len(bandits))
    except ValueError as error:
        raise ValueError(
            f"bandit_{error}: give one number or text for each of the "
            f"{counted(len(bandits), 'bandit')}, as in {example}"
        ) from None
    for name, values in coords.items():
        for text in (name, *values):
            if isinstance(text, str) and text:
                checks.name("bandit_coords", text)
    return coords
