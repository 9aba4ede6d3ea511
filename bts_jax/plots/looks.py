"""The colour, marker and line of each policy."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bts_jax.text import printable

LONGEST = 32  # characters of a name in a figure: twice as many would leave no room for the panel

# No two policies of the registry have the same colour, nor the same marker and line: they can be
# told apart in print without colour, too. The paper's five policies have colours of Okabe and Ito,
# which the colour-blind can tell apart. The other colours are far from these and from each other
# (at least 0.1 in OKLab). Related policies differ most: they are compared most often.
KNOWN = {
    "bts": ("#0072B2", "o", "-"),
    "epsilon-first": ("#E69F00", "s", "-"),
    "pd-bwk": ("#009E73", "^", "-"),
    "ucb-bv1": ("#CC79A7", "D", "-"),
    "kube": ("#D55E00", "v", "-"),
    "ucb-bv2": ("#7A0045", "<", "-"),
    "fractional-kube": ("#8A4B14", ">", "-"),
    "budget-ucb": ("#6C80FF", "P", "-"),
    "i-ucb": ("#56B4E9", "X", "-"),
    "c-ucb": ("#10108C", "p", "-"),
    "m-ucb": ("#0F6B66", "h", "-"),
    "b-greedy": ("#8F8200", "d", "-"),
    "omega-ucb": ("#6A1FB0", "*", "-"),
    "omega-star-ucb": ("#D800B1", "o", "-."),
    "ucb-sc-plus": ("#004D00", "s", "-."),
    "kl-ucb-sc": ("#33415C", "^", "-."),
    "ucb-b2": ("#FF8F8F", "D", "-."),
    "gaussian-bts": ("#C8002D", "v", "-."),
    "matched-bts": ("#905080", "d", "-."),
    "joint-bts": ("#6CB100", "P", "-."),
    "tempered-bts": ("#C79BFF", "X", "-."),
    "soft-elimination": ("#4A0A00", "*", "-."),
    "oracle": ("#000000", "*", ":"),
    "uniform": ("#8A8A8A", "X", ":"),
    "greedy-kube": ("#40E0B0", "o", ":"),
    "patient-omega-ucb": ("#081838", "s", ":"),
    "irs-fh": ("#5D02FF", "<", "-."),
    "ucb-b1": ("#C108FE", ">", "-."),
    "ucb-b2c": ("#FF0EFC", "h", "-."),
}
# Policies for several resources are rarely in one figure with these. They have long dashes and
# colours of the paper's policies: KnapsackBTS has the colour of BTS, and PrimalDualBwK has that of
# its variant, PDBwK.
_DASHES = (0, (7, 1.5))
KNAPSACKS = {
    "knapsack-bts": ("#0072B2", "o", _DASHES),
    "primal-dual-bwk": ("#009E73", "^", _DASHES),
    "ucb-bwk": ("#CC79A7", "D", _DASHES),
    "ts-fixed": ("#E69F00", "s", _DASHES),
    "ts-update": ("#D55E00", "v", _DASHES),
    "lagrange-bwk": ("#56B4E9", "P", _DASHES),
    "lincon-ts": ("#7A0045", "X", _DASHES),
    "budget-pacer": ("#8F8200", "h", _DASHES),
}
# Of policies not in the registry.
_OTHERS = "#0045C4 #F54E6C #4CC99A #45004E #A7A776 #934ECE #008000 #CE62E2 #934E80".split()
_MARKERS = "o s ^ D v P X < >".split()
_ARMS = list(
    dict.fromkeys(
        [
            "#0072B2",
            "#D55E00",
            "#009E73",
            "#E69F00",
            "#000000",
            *(color for color, _, _ in KNOWN.values()),
        ]
    )
)


def styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each policy, as matplotlib's arguments.

    A policy of the registry has the same look in every figure; its name may be in capitals. No two
    of them have the same colour, nor the same marker and line. The lines of the baselines `oracle`
    and `uniform` are dotted. Policies for several resources have long dashes, and colours that
    others have, too.

    Other policies have dashed lines, and colours that no policy of the registry has. Their colour
    and marker depend on the name. If two policies of one figure would have the same colour, the one
    whose name sorts later takes the next free colour. To choose other looks, give `styles` to the
    functions that draw.

    Example:
        >>> styles(["bts", "mine"])["bts"]
        {'color': '#0072B2', 'marker': 'o', 'linestyle': '-'}
    """
    result, taken = {}, set()
    for name in sorted(policies):
        if found := KNOWN.get(name.lower()) or KNAPSACKS.get(name.lower()):
            color, marker, line = found
        else:
            start, count = zlib.crc32(name.encode()), len(_OTHERS)
            places = [(start + i) % count for i in range(count)] + [
                (start + i) % count**2 for i in range(count**2)
            ]
            place = next((place for place in places if place not in taken), places[0])
            taken.add(place)
            color, marker, line = (
                _OTHERS[place % count],
                _MARKERS[(place + place // count) % count],
                "--",
            )
        result[name] = {"color": color, "marker": marker, "linestyle": line}
    return {name: result[name] for name in policies}


def chosen(
    policies: Iterable[str],
    changes: Mapping[str, Mapping[str, Any]] | None,
    labels: Mapping[str, str] | None,
) -> dict[str, dict[str, Any]]:
    """The look of each policy with its legend text as `label`: that of `styles`, with the user's
    changes.
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    labels = _mapping("labels", labels, "{'bts': 'BTS (ours)'}")
    changes = _mapping("styles", changes, "{'bts': {'color': 'black', 'linewidth': 2}}")
    look = styles([str(name) for name in policies])
    for name, style in look.items():
        mine = changes.get(name, {})
        try:  # whatever matplotlib accepts for a line; `c` and `lw` are its short names
            style |= {"label": legible(name)} | normalize_kwargs(dict(mine), Line2D)
            Line2D([], [], **style)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"styles[{name!r}] = {mine!r} are not properties of a line "
                f"({error}): give those of "
                "matplotlib's Line2D, as in {'color': 'black', 'linewidth': 2}"
            ) from error
        if name in labels:
            style["label"] = legible(str(labels[name]), 1000)
    return look


def legible(name: str, most: int = LONGEST) -> str:
    """A name as it is drawn: the middle is cut out if it is longer than `most` characters, and
    control characters are escaped.

    A formula between dollar signs is drawn as one. If matplotlib cannot read it, the dollar signs
    are drawn instead.
    """
    from matplotlib.mathtext import MathTextParser

    text = printable(name, keep="\n")
    # Names often differ at the end.
    text = text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 + 1 - most :]}"
    if "$" in text:
        try:
            MathTextParser("path").parse(text)
        except (ValueError, RecursionError):
            return text.replace("\\$", "$").replace("$", r"\$")
    return text


def arms(count: int) -> list[Any]:
    """A colour for each arm of one run."""
    if count <= len(_ARMS):
        return _ARMS[:count]
    from matplotlib import colormaps

    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def _mapping(name: str, value: Any, example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ValueError(
            f"{name} = {value!r} is not a mapping from the names of policies: give one such as "
            f"{example}"
        )
    return value or {}
