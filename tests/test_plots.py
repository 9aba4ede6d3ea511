"""Figures: what is on the axes, not how it looks."""

import io

import numpy as np
import pytest
from common import made_up
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import bts_jax as bj
from bts_jax import plots, theory
from bts_jax.contract import Means
from bts_jax.intervals import interval
from bts_jax.metrics import measured
from bts_jax.plots.comparisons import reaches

BUDGETS = [100, 200, 400]


def data(policies=3, bandits=2, seeds=8, names=None):
    rng = np.random.default_rng(1)
    mean = 10 * (1 + np.arange(policies))[:, None, None, None] * np.log(BUDGETS)[:, None]
    return made_up(mean + rng.normal(0, 3, (policies, bandits, 3, seeds)), BUDGETS, names)


FIGURES = {
    "regret": plots.regret,
    "box": plots.final_regret,
    "violin": lambda data, **options: plots.final_regret(data, kind="violin", **options),
    "histogram": lambda data, **options: plots.final_regret(data, kind="histogram", **options),
    "pulls": plots.pulls,
    "difference": lambda data, **options: plots.difference(data, "bts", **options),
    "budget to reach": lambda data, **options: plots.budget_to_reach(data, 70.0, **options),
}


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def words(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))).replace("\n", " ")


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(("panel", "titles"), [
    ("bandit", ["instance 0", "instance 1"]), ("family", ["Bernoulli, 4 arms"]), ("all", ["all 2 instances"]),
])
def test_every_figure_has_its_panels_and_can_be_saved(name, panel, titles):
    figure = FIGURES[name](data(), panel=panel)
    assert isinstance(figure, Figure) and [axes.get_title() for axes in figure.axes] == titles
    assert figure.get_figwidth() == (3.4 if len(titles) == 1 else 7)
    assert ("8 runs" in words(figure)) and (("2 instances" in words(figure)) == (len(titles) == 1))
    figure.savefig(io.BytesIO(), format="pdf")


@pytest.mark.parametrize("name", [*FIGURES, "dominance"])
def test_one_run_one_instance_one_budget_and_numbers_that_are_missing(name):
    """Nothing warns: warnings are errors in the tests."""
    make = FIGURES.get(name, plots.dominance)
    figure = make(data(bandits=1, seeds=1).isel(budget=[0]))
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    broken = data()
    broken.regret[1] = np.nan
    make(broken).savefig(io.BytesIO())
    negative = data()
    negative["regret"] = -negative.regret
    for scale in ("linear", "log-log") if name in ("regret", "difference") else ("log",) if name in ("box", "violin") else ():
        make(negative, scale=scale).savefig(io.BytesIO())


def test_figures_leave_pyplot_alone():
    import matplotlib.pyplot as pyplot

    plots.regret(data())
    assert pyplot.get_fignums() == []


def test_regret_draws_the_mean_and_the_band():
    sample = data()
    figure = plots.regret(sample, band="interval", level=0.9)
    drawn = lines(figure.axes[1])
    assert list(drawn) == ["bts", "epsilon-first", "pd-bwk"]
    np.testing.assert_allclose(drawn["pd-bwk"].get_xdata(), BUDGETS)
    np.testing.assert_allclose(drawn["pd-bwk"].get_ydata(), sample.regret[2, 1].mean("seed"))
    lost = measured(sample).lost_run.values[1]
    _, low, high = interval(sample.regret.values[2, 1], level=0.9, unseen=lost)
    assert_band(figure.axes[1].collections[2], low, high)
    assert "90% interval (which allows for one lost run more), over 8 runs" in words(figure)
    _, low, high = interval(sample.regret.values[2, 1], level=0.9)  # Student's, where it is not known what a lost run costs
    assert_band(plots.regret(sample.drop_vars("reward"), level=0.9).axes[1].collections[2], low, high)


@pytest.mark.parametrize("band", ["deviation", "quantiles"])
def test_other_bands(band):
    sample = data()
    values = sample.regret.values[0, 0]
    low, high = np.quantile(values, [0.1, 0.9], axis=1)
    if band == "deviation":
        low, high = (values.mean(1) + sign * values.std(1, ddof=1) for sign in (-1, 1))
    assert_band(plots.regret(sample, band=band, level=0.8).axes[0].collections[0], low, high)


def assert_band(collection, low, high):
    points = collection.get_paths()[0].vertices
    for budget, bottom, top in zip(BUDGETS, low, high, strict=True):
        np.testing.assert_allclose(np.unique(points[points[:, 0] == budget, 1]), [bottom, top])


def test_averages_are_over_instances():
    sample = data().drop_vars("reward")
    figure = plots.regret(sample, panel="all")
    _, low, high = interval(sample.regret.values[0].mean(-1).T)
    assert_band(figure.axes[0].collections[0], low, high)


@pytest.mark.parametrize(("scale", "x", "y"), [
    ("linear", "linear", "linear"), ("log-x", "log", "linear"), ("log-y", "linear", "log"), ("log-log", "log", "log"),
])
def test_scales(scale, x, y):
    axes = plots.regret(data(), scale=scale).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == (x, y)


def test_axes_have_units():
    figure = plots.regret(data(), metric="pseudo_regret")
    assert figure.get_supxlabel() == "budget (units of cost)" and figure.get_supylabel() == "pseudo-regret (units of reward)"


def test_theory_is_drawn_beside_the_simulation():
    means = [0.9, 0.2, 0.1, 0.05], [0.5, 0.9, 1, 0.9]
    sample = data(names=["kube", "BTS", "uniform"])
    sample = sample.assign_coords(family=("bandit", ["Bernoulli", "Mine"]), budget=[2, 200, 400])
    for name, mean in zip(("reward_mean", "cost_mean"), means, strict=True):
        sample[name].values[:] = mean
    figure = plots.regret(sample, theory=["bound", "leading", "slope"])
    bernoulli = bj.Bernoulli(reward=means[0], cost=means[1])
    for axes, bandit in zip(figure.axes, (bernoulli, Means(*np.array(means))), strict=True):
        drawn = lines(axes)
        for name, field in (("bound on BTS", "regret"), ("its leading term", "leading")):
            assert drawn[name].get_xdata().tolist() == [200, 400]  # the proof wants budgets above e
            expected = [getattr(theory.bts_bound(bandit, budget), field) for budget in (200, 400)]
            np.testing.assert_allclose(drawn[name].get_ydata(), expected, rtol=1e-6)
    # From the curve of BTS in the middle of the budgets, on a logarithmic scale: at 200, or at 2 of the first two.
    for budgets, end in (([2, 200, 400], 400), ([2, 200], 200)):
        part = plots.regret(sample.sel(budget=budgets), theory="slope").axes[1]
        slope = lines(part)["lower bound's slope, no floor"]
        start = 200 if end == 400 else 2
        mean = sample.regret.sel(policy="BTS", budget=start).mean("seed").values[1]
        np.testing.assert_allclose(slope.get_xdata()[[0, -1]], [start, end])
        expected = [mean, mean + theory.lower_bound_slope(bernoulli) * np.log(end / start)]
        np.testing.assert_allclose(slope.get_ydata()[[0, -1]], expected, rtol=1e-5)
    assert "no floor" in words(part.figure) and "bound on BTS" not in words(part.figure)
    assert part.get_yscale() == "log" and plots.regret(sample, theory="slope", scale="log-x").axes[0].get_yscale() == "linear"
    for odd in (sample.isel(budget=[0]), sample.isel(policy=[0]), sample.isel(seed=[0]), sample.assign(regret=-sample.regret)):
        plots.regret(odd, theory=True).savefig(io.BytesIO())


def test_final_regret_is_that_of_one_budget():
    sample = data()
    for budget in (None, 200):
        axes = plots.final_regret(sample, budget=budget).axes[0]
        markers = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("o", "s", "^")]
        np.testing.assert_allclose(markers, sample.regret.sel(budget=budget or 400)[:, 0].mean("seed"))
        assert [label.get_text() for label in axes.get_yticklabels()] == ["bts", "epsilon-first", "pd-bwk"]


def test_histograms_count_every_run():
    axes = plots.final_regret(data(), kind="histogram").axes[0]
    assert len(axes.patches) == 2 * 3, "filled and outlined, for three policies"
    for patch in axes.patches[::2]:
        outline = patch.get_xy()  # from the first edge along the 30 bins, two corners each, and back along the bottom
        assert outline[1:61:2, 1].sum() == 8


def test_pulls_are_sorted_by_ratio():
    sample = data()
    order = np.argsort(-(sample.reward_mean / sample.cost_mean).values[1])
    drawn = lines(plots.pulls(sample, budget=200).axes[1])["bts"]
    np.testing.assert_allclose(drawn.get_ydata(), sample.pulls.values[0, 1, 1].mean(0)[order])


def test_arms_that_a_bandit_does_not_have_are_not_drawn():
    sample = data()
    sample = sample.assign_coords(num_arms=("bandit", [4, 3]))
    for name in ("reward_mean", "cost_mean"):
        sample[name].values[1, 3] = np.nan
    figure = plots.pulls(sample)
    assert [len(lines(axes)["bts"].get_xdata()) for axes in figure.axes] == [4, 3]


def test_difference_is_paired():
    sample = data()
    drawn = lines(plots.difference(sample, "epsilon-first").axes[0])
    assert list(drawn) == ["bts", "pd-bwk"]
    np.testing.assert_allclose(drawn["bts"].get_ydata(), (sample.regret[0, 0] - sample.regret[1, 0]).mean("seed"))


def test_dominance_counts_instances():
    regret = np.ones((3, 4, 1, 2))
    regret[1] = 2
    regret[2, :3] = 3
    regret[2, 3] = 1
    axes = plots.dominance(made_up(regret, [100])).axes[0]
    shown = {tuple(text.get_position()): text.get_text() for text in axes.texts}  # by column and row
    assert shown == {(1, 0): "100%", (2, 0): "88%", (0, 1): "0%", (2, 1): "75%", (0, 2): "12%", (1, 2): "25%"}


@pytest.mark.parametrize(("curve", "reached"), [
    ([10, 20, 40], 150), ([20, 30, 40], 75), ([1, 2, 3], np.inf), ([5, 25, 10], 150), ([np.nan, 1, 2], np.nan),
])
def test_budget_to_reach(curve, reached):
    np.testing.assert_equal(reaches(np.array(BUDGETS, float), np.array(curve, float), 15.0), reached)


def test_a_policy_looks_the_same_everywhere():
    names = [*bj.POLICIES, "my own", "another"]
    whole = plots.styles(names)
    assert len({(style["color"], style["marker"]) for style in whole.values()}) == len(names)
    for name in names:
        assert plots.styles([name])[name] == whole[name]
    alone = data(policies=1, names=["kube"])
    assert to_hex(lines(plots.regret(alone).axes[0])["kube"].get_color()).upper() == whole["kube"]["color"]


def test_many_policies_of_ones_own_look_different():
    names = [f"kube {i}" for i in range(40)]
    assert len({(style["color"], style["marker"]) for style in plots.styles(names).values()}) == 40


def test_truncated_runs_are_told():
    sample = data()
    sample.truncated[0, 0, 2, :3] = True
    assert "3 runs hit the limit of rounds" in words(plots.regret(sample))


@pytest.mark.parametrize(("call", "named"), [
    (lambda data: plots.regret(data, scale="log"), "scale = 'log' is not known: give 'linear', 'log-x', 'log-y' or 'log-log'"),
    (lambda data: plots.regret(data, band="error"), "band = 'error'"),
    (lambda data: plots.regret(data, panel="arm"), "panel = 'arm'"),
    (lambda data: plots.regret(data, metric="reward"), "metric = 'reward'"),
    (lambda data: plots.regret(data, level=2), "level = 2"),
    (lambda data: plots.regret(data, width=0), "width = 0"),
    (lambda data: plots.regret(data.isel(bandit=[0] * 9).assign_coords(bandit=list(map(str, range(9))))), "9 panels"),
    (lambda data: plots.regret(data.isel(seed=0)), "no regret over"),
    (lambda data: plots.regret(data.drop_vars("family"), panel="family"), "family and num_arms"),
    (lambda data: plots.regret(data, theory="floor"), "theory = 'floor' is not known: give 'bound', 'leading' or 'slope'"),
    (lambda data: plots.regret(data, theory=True, panel="all"), "theory = True is about a single instance"),
    (lambda data: plots.regret(data.drop_vars("cost_mean"), theory="slope"), "theory needs the coordinates"),
    (lambda data: plots.final_regret(data, kind="pie"), "kind = 'pie'"),
    (lambda data: plots.final_regret(data, budget=300), "budget = 300 is not in the dataset: give one of 100, 200, 400"),
    (lambda data: plots.difference(data, "kube"), "reference = 'kube'"),
    (lambda data: plots.pulls(data.drop_vars("pulls")), "no pulls"),
    (lambda data: plots.budget_to_reach(data, -1), "amount = -1"),
    (lambda data: plots.dominance(data, budget=1), "budget = 1"),
])
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=named):
        call(data())


def test_any_number_of_policies_has_a_look():
    for count in (1, 9, 10, 47, 81, 200):
        looks = plots.styles([f"p{i}" for i in range(count)])
        kinds = {(look["color"], look["marker"]) for look in looks.values()}
        assert len(looks) == count and len(kinds) == min(count, 81)
    assert plots.styles(["KUBE"])["KUBE"] == plots.styles(["kube"])["kube"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_and_infinite_regret_are_told(value):
    regret = np.random.default_rng(0).uniform(1, 2, (2, 3, 4, 20))
    regret[0, 1, :, 5:] = value
    dataset = made_up(regret, [10, 20, 50, 100], ["a", "b"])
    for figure in (plots.regret(dataset, scale="log-log"), plots.regret(dataset, panel="all"), plots.pulls(dataset),
                   plots.difference(dataset, "a", scale="log-log"), plots.dominance(dataset)):
        figure.canvas.draw()
        texts = " ".join(text.get_text() for text in figure.findobj() if hasattr(text, "get_text"))
        assert "without a finite regret" in " ".join(texts.split())


def test_multiples_are_not_taken_for_units_of_cost():
    multiples = data(bandits=1).assign_attrs(specification='{"relative": true}')
    assert "multiples of the smallest expected cost" in words(plots.regret(multiples))
    with pytest.raises(ValueError, match="in units of cost"):
        plots.regret(multiples, theory=True)
