"""Figures of a Dataset as `sweep` returns it. Only `run` draws something else, a trace.

Every function returns a `matplotlib.figure.Figure`, as wide as a column of a two-column paper or as
the page, with text of 7 or 8 points: `plots.regret(dataset).savefig("regret.pdf")`. A notebook
displays it automatically. A PNG is at least 1,200 pixels wide.

A policy has the same colour and marker in all figures (see `styles`). `labels` gives policies other
names in a figure, `styles` gives them other looks, and `axes` are your own axes to draw in (see
`regret`). `panel` chooses what a panel shows:

    "bandit"    one panel per instance; the sample is the runs on it
    "family"    one panel per family and number of arms; the sample is the instances, each with its
                mean over the seeds
    "all"       one panel; the sample is the instances, likewise

If a family has a single instance, the sample is its runs. Each figure names its sample.

Example:
    >>> from bts_jax import Bernoulli, plots, sweep
    >>> bandits = {"two": Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}
    >>> results = sweep(["kube", "uniform"], bandits, budgets=[10, 20], num_seeds=5)
    >>> figure = plots.regret(results, scale="log-log")  # figure.savefig("regret.pdf")
    >>> figure = plots.final_regret(results, kind="box", budget=20)
    >>> figure = plots.difference(results, "uniform")
    >>> styles = {"uniform": {"color": "black"}}
    >>> figure = plots.regret(results, labels={"kube": "KUBE"}, styles=styles)
    >>> bool(figure.get_figwidth() == plots.COLUMN)
    True
"""

from bts_jax.plots.comparisons import budget_to_reach, difference, dominance, relative
from bts_jax.plots.curves import pulls, regret
from bts_jax.plots.distributions import final_regret
from bts_jax.plots.heatmaps import heatmap
from bts_jax.plots.looks import styles
from bts_jax.plots.panels import COLUMN, PAGE, curve, frame
from bts_jax.plots.runs import run
from bts_jax.plots.samples import MOST_PANELS
from bts_jax.plots.saving import image_format, save, write
from bts_jax.plots.scales import decades

__all__ = [
    "COLUMN",
    "MOST_PANELS",
    "PAGE",
    "budget_to_reach",
    "curve",
    "decades",
    "difference",
    "dominance",
    "final_regret",
    "frame",
    "heatmap",
    "image_format",
    "pulls",
    "regret",
    "relative",
    "run",
    "save",
    "styles",
    "write",
]
