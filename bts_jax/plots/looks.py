"""The colour, marker and line of each policy."""

import zlib
from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours, told apart by the colour-blind, relatives in one colour; and Tol's "muted" ones for policies that are
# not in the registry.
KNOWN = {
    "bts": ("#0072B2", "o"), "epsilon-first": ("#E69F00", "s"), "pd-bwk": ("#009E73", "^"), "ucb-bv1": ("#CC79A7", "D"),
    "kube": ("#D55E00", "v"), "ucb-bv2": ("#CC79A7", "d"), "fractional-kube": ("#D55E00", "^"), "budget-ucb": ("#CC79A7", "s"),
    "i-ucb": ("#56B4E9", "s"), "c-ucb": ("#56B4E9", "v"), "m-ucb": ("#56B4E9", "X"), "b-greedy": ("#E69F00", "p"),
    "omega-ucb": ("#009E73", "s"), "omega-star-ucb": ("#009E73", "*"), "ucb-sc-plus": ("#000000", "D"),
    "kl-ucb-sc": ("#000000", "o"), "ucb-b2": ("#CC79A7", "P"), "gaussian-bts": ("#0072B2", "s"), "joint-bts": ("#0072B2", "X"),
    "oracle": ("#000000", "*"), "uniform": ("#7F7F7F", "X"),
    "tempered-bts": ("#0072B2", "P"), "soft-elimination": ("#661100", "h"),
}
_OTHERS = "#332288 #CC6677 #44AA99 #882255 #999933 #88CCEE #AA4499 #117733 #AA8800".split()
_MARKERS = "P p h < > d 8 H 1".split()


def styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each policy, as matplotlib's arguments.

    Those of the registry are fixed, in capitals or not, and drawn with a full line. Others are drawn dashed in a colour and
    marker that follow from the name; only where two of one figure would look the same does one of them take the next that is
    free.

    Example:
        >>> styles(["bts", "mine"])["bts"]
        {'color': '#0072B2', 'marker': 'o', 'linestyle': '-'}
    """
    result, taken = {}, set()
    for name in sorted(policies):
        if name.lower() in KNOWN:
            color, marker, line = *KNOWN[name.lower()], "-"
        else:
            start, count = zlib.crc32(name.encode()), len(_OTHERS)
            places = [(start + i) % count for i in range(count)] + [(start + i) % count**2 for i in range(count**2)]
            place = next((place for place in places if place not in taken), places[0])
            taken.add(place)
            color, marker, line = _OTHERS[place % count], _MARKERS[(place + place // count) % count], "--"
        result[name] = {"color": color, "marker": marker, "linestyle": line}
    return {name: result[name] for name in policies}
