"""Figures: what is on the axes, not how it looks."""

import io
import itertools
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from common import made_up
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

import bts_jax as bj
from bts_jax import plots, theory
from bts_jax.contract import Means
from bts_jax.intervals import interval
from bts_jax.plots import scales
from bts_jax.plots.comparisons import reaches
from bts_jax.statistics import measured

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
    return " ".join(
        text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))
    ).replace("\n", " ")


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(
    ("panel", "titles"),
    [
        ("bandit", ["instance 0", "instance 1"]),
        ("family", ["Bernoulli, 4 arms"]),
        ("all", ["all 2 instances"]),
    ],
)
def test_every_figure_has_its_panels_and_can_be_saved(name, panel, titles):
    figure = FIGURES[name](data(), panel=panel)
    assert isinstance(figure, Figure) and [axes.get_title() for axes in figure.axes] == titles
    assert figure.get_figwidth() == (3.4 if len(titles) == 1 else 7)
    assert ("8 runs" in words(figure)) and (("2 instances" in words(figure)) == (len(titles) == 1))
    figure.savefig(io.BytesIO(), format="pdf")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIGURES, "dominance"])
def test_one_run_one_instance_one_budget_and_numbers_that_are_missing(name):
    """Nothing warns: warnings are errors in the tests."""
    make = FIGURES.get(name, plots.dominance)
    figure = make(data(bandits=1, seeds=1).isel(budget=[0]))
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    broken = data()
    broken.regret[1] = np.nan
    make(broken).savefig(io.BytesIO(), dpi=50)
    negative = data()
    negative["regret"] = -negative.regret
    for scale in (
        ("linear", "log-log")
        if name in ("regret", "difference")
        else ("log",)
        if name in ("box", "violin")
        else ()
    ):
        make(negative, scale=scale).savefig(io.BytesIO(), dpi=50)


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
    assert "90% interval (widened as if one more run were lost), over 8 runs" in words(figure)
    # Student's, where it is not known what a lost run costs.
    _, low, high = interval(sample.regret.values[2, 1], level=0.9)
    assert_band(
        plots.regret(sample.drop_vars("reward"), level=0.9).axes[1].collections[2], low, high
    )


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


@pytest.mark.parametrize(
    ("scale", "x", "y"),
    [
        ("linear", "linear", "linear"),
        ("log-x", "log", "linear"),
        ("log-y", "linear", "log"),
        ("log-log", "log", "log"),
    ],
)
def test_scales(scale, x, y):
    axes = plots.regret(data(), scale=scale).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == (x, y)


def test_axes_have_units():
    figure = plots.regret(data(), metric="pseudo_regret")
    assert (
        figure.get_supxlabel() == "budget (units of cost)"
        and figure.get_supylabel() == "pseudo-regret (units of reward)"
    )


@pytest.mark.slow
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
    # From the curve of BTS in the middle of the budgets, on a logarithmic scale: at 200, or at 2 of
    # the first two.
    for budgets, end in (([2, 200, 400], 400), ([2, 200], 200)):
        part = plots.regret(sample.sel(budget=budgets), theory="slope").axes[1]
        slope = lines(part)["slope of the lower bound"]
        start = 200 if end == 400 else 2
        mean = sample.regret.sel(policy="BTS", budget=start).mean("seed").values[1]
        np.testing.assert_allclose(slope.get_xdata()[[0, -1]], [start, end])
        expected = [mean, mean + theory.lower_bound_slope(bernoulli) * np.log(end / start)]
        np.testing.assert_allclose(slope.get_ydata()[[0, -1]], expected, rtol=1e-5)
    assert "not a bound" in words(part.figure) and "bound on BTS" not in words(part.figure)
    assert (
        part.get_yscale() == "log"
        and plots.regret(sample, theory="slope", scale="log-x").axes[0].get_yscale() == "linear"
    )
    for odd in (
        sample.isel(budget=[0]),
        sample.isel(policy=[0]),
        sample.isel(seed=[0]),
        sample.assign(regret=-sample.regret),
    ):
        plots.regret(odd, theory=True).savefig(io.BytesIO(), dpi=50)


@pytest.mark.parametrize(("policies", "bandits"), [(5, 1), (22, 1), (22, 3)])
def test_theory_leaves_the_panels_their_size(policies, bandits):
    """At the default width, legend and note are within the figure, and do not take the panels'
    room.
    """
    figure = plots.regret(data(policies, bandits), theory=True)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_window_extent().height / figure.dpi > 1.5 and axes.get_yscale() == "log"
    (legend,) = (figure.subfigs or [figure])[0].legends
    found, whole = legend.get_window_extent(), figure.bbox
    assert (
        whole.x0 <= found.x0
        and found.x1 <= whole.x1
        and whole.y0 <= found.y0
        and found.y1 <= whole.y1
    )
    assert "not a bound at any B" in words(figure)


@pytest.mark.parametrize(("count", "width"), [(2, None), (5, None), (8, None), (4, 10), (7, 10)])
def test_no_part_of_a_figure_is_blank(count, width):
    """If the last row is not full, legend or note is on the right of its last panel."""
    sample = data(bandits=count, seeds=3)
    for figure in (plots.regret(sample, width=width), plots.final_regret(sample, width=width)):
        figure.draw_without_rendering()
        panels = [axes.get_window_extent() for axes in figure.axes]
        where = (figure.subfigs or [figure])[0]
        notes = {one: one for one in where.texts} | {one: one.get_title() for one in where.legends}
        text = next(one for one, note in notes.items() if "3 runs" in note.get_text())
        found, last = text.get_window_extent(), panels[-1]
        assert len(panels) == count and found.x1 < figure.bbox.x1
        if max(panel.x1 for panel in panels) > last.x1 + 50:
            assert found.x0 > last.x1 and last.y0 < found.y0 and found.y1 < last.y1
        else:
            assert found.y0 > max(panel.y1 for panel in panels)


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ([100, 300, 1000, 3000], "log"),
        ([100, 200, 500, 1000], "log"),
        ([30, 100, 300], "log"),
        ([50000, 10, 700], "log"),
        ([100, 200, 300, 400], "linear"),
        ([100, 1000, 2000, 3000], "linear"),
        ([10, 1000], "linear"),
        ([10], "linear"),
        ([1000, 1010, 1021], "linear"),
    ],
)
def test_budgets_that_grow_geometrically_have_a_logarithmic_axis(budgets, expected):
    regret = np.ones((1, 1, len(budgets), 4)) * np.arange(1, 5)
    sample = made_up(regret, budgets)
    axes = plots.regret(sample).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == (expected, "linear")
    assert plots.regret(sample, scale="linear").axes[0].get_xscale() == "linear", (
        "what is asked for"
    )
    assert plots.regret(sample, scale="log-x").axes[0].get_xscale() == "log"


def test_final_regret_is_that_of_one_budget():
    sample = data()
    for budget in (None, 200):
        axes = plots.final_regret(sample, budget=budget).axes[0]
        markers = [
            line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("o", "s", "^")
        ]
        np.testing.assert_allclose(
            markers, sample.regret.sel(budget=budget or 400)[:, 0].mean("seed")
        )
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "bts",
            "epsilon-first",
            "pd-bwk",
        ]


def test_histograms_count_every_run():
    axes = plots.final_regret(data(), kind="histogram").axes[0]
    assert len(axes.patches) == 2 * 3, "filled and outlined, for three policies"
    for patch in axes.patches[::2]:
        # From the first edge along the 30 bins, two corners each, and back along the bottom.
        outline = patch.get_xy()
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
    np.testing.assert_allclose(
        drawn["bts"].get_ydata(), (sample.regret[0, 0] - sample.regret[1, 0]).mean("seed")
    )


def test_dominance_counts_instances():
    regret = np.ones((3, 4, 1, 2))
    regret[1] = 2
    regret[2, :3] = 3
    regret[2, 3] = 1
    axes = plots.dominance(made_up(regret, [100])).axes[0]
    # By column and row.
    shown = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert shown == {
        (1, 0): "100%",
        (2, 0): "88%",
        (0, 1): "0%",
        (2, 1): "75%",
        (0, 2): "12%",
        (1, 2): "25%",
    }


@pytest.mark.parametrize(
    ("curve", "reached"),
    [
        ([10, 20, 40], 150),
        ([20, 30, 40], 75),
        ([1, 2, 3], np.inf),
        ([5, 25, 10], 150),
        ([np.nan, 1, 2], np.nan),
    ],
)
def test_budget_to_reach(curve, reached):
    np.testing.assert_equal(
        reaches(np.array(BUDGETS, float), np.array(curve, float), 15.0), reached
    )


def test_a_policy_looks_the_same_everywhere():
    names = [*bj.POLICIES, "my own", "another"]
    whole = plots.styles(names)
    assert len({(style["color"], style["marker"]) for style in whole.values()}) == len(names)
    for name in names:
        assert plots.styles([name])[name] == whole[name]
    alone = data(policies=1, names=["kube"])
    assert (
        to_hex(lines(plots.regret(alone).axes[0])["kube"].get_color()).upper()
        == whole["kube"]["color"]
    )


def test_many_policies_of_ones_own_look_different():
    names = [f"kube {i}" for i in range(40)]
    assert len({(style["color"], style["marker"]) for style in plots.styles(names).values()}) == 40


def test_truncated_runs_are_told():
    sample = data()
    sample.truncated[0, 0, 2, :3] = True
    assert "3 runs hit the limit of rounds" in words(plots.regret(sample))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda data: plots.regret(data, scale="log"),
            "scale = 'log' is not known: give 'linear', 'log-x', 'log-y' or 'log-log'",
        ),
        (lambda data: plots.regret(data, band="error"), "band = 'error'"),
        (lambda data: plots.regret(data, panel="arm"), "panel = 'arm'"),
        (lambda data: plots.regret(data, metric="reward"), "metric = 'reward'"),
        (lambda data: plots.regret(data, level=2), "level = 2"),
        (lambda data: plots.regret(data, width=0), "width = 0"),
        (
            lambda data: plots.regret(
                data.isel(bandit=[0] * 9).assign_coords(bandit=list(map(str, range(9))))
            ),
            "9 panels",
        ),
        (lambda data: plots.regret(data.isel(seed=0)), "no regret over"),
        (
            lambda data: plots.regret(data.drop_vars("family"), panel="family"),
            "family and num_arms",
        ),
        (
            lambda data: plots.regret(data, theory="floor"),
            "theory = 'floor' is not known: give 'bound', 'leading' or 'slope'",
        ),
        (
            lambda data: plots.regret(data, theory=True, panel="all"),
            "theory = True is about a single instance",
        ),
        (
            lambda data: plots.regret(data.drop_vars("cost_mean"), theory="slope"),
            "theory needs the coordinates",
        ),
        (lambda data: plots.final_regret(data, kind="pie"), "kind = 'pie'"),
        (
            lambda data: plots.final_regret(data, budget=300),
            "budget = 300 is not in the dataset: give one of 100, 200, 400",
        ),
        (lambda data: plots.difference(data, "kube"), "reference = 'kube'"),
        (lambda data: plots.pulls(data.drop_vars("pulls")), "no pulls"),
        (lambda data: plots.budget_to_reach(data, -1), "amount = -1"),
        (lambda data: plots.dominance(data, budget=1), "budget = 1"),
    ],
)
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
    for figure in (
        plots.regret(dataset, scale="log-log"),
        plots.regret(dataset, panel="all"),
        plots.pulls(dataset),
        plots.difference(dataset, "a", scale="log-log"),
        plots.dominance(dataset),
    ):
        figure.canvas.draw()
        texts = " ".join(text.get_text() for text in figure.findobj() if hasattr(text, "get_text"))
        assert "without a finite regret" in " ".join(texts.split())


def test_multiples_are_not_taken_for_units_of_cost():
    multiples = data(bandits=1).assign_attrs(specification='{"relative": true}')
    assert "multiples of the smallest expected cost" in words(plots.regret(multiples))
    with pytest.raises(ValueError, match="in units of cost"):
        plots.regret(multiples, theory=True)


def oklab(color):
    """Björn Ottosson's colour space, in which distances are about what one sees."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cone = np.cbrt(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]] @ linear
    )
    return (
        np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
        @ cone
    )


def test_policies_of_the_registry_can_be_told_apart_in_colour_and_in_grey():
    looks = plots.styles(list(bj.POLICIES))
    for (one, a), (two, b) in itertools.combinations(looks.items(), 2):
        assert np.linalg.norm(oklab(a["color"]) - oklab(b["color"])) > 0.1, (one, two)
        assert (a["marker"], a["linestyle"]) != (b["marker"], b["linestyle"]), (one, two)
    # None of which is in the registry.
    for look in plots.styles([f"p{i}" for i in range(81)]).values():
        assert (
            look["color"] not in {known["color"] for known in looks.values()}
            and look["linestyle"] == "--"
        )


def test_the_look_of_a_policy_does_not_depend_on_the_others():
    names = [*bj.POLICIES, "mine"]
    whole = plots.styles(names)
    assert plots.styles(names[::-1]) == whole and list(plots.styles(names[::-1])) == names[::-1]
    assert plots.styles(["mine", "kube"]) == {name: whole[name] for name in ("mine", "kube")}


@pytest.mark.parametrize("name", [*FIGURES, "relative", "dominance"])
def test_every_figure_is_drawn_in_axes_of_the_users(name):
    make = {
        "relative": lambda data, **options: plots.relative(data, "bts", **options),
        "dominance": plots.dominance,
    }
    make, options = FIGURES | make, {} if name == "dominance" else {"panel": "all"}
    figure = Figure(figsize=(6, 3))
    left, right = figure.subplots(1, 2)
    left.tick_params(labelsize=13)
    sample = data()
    sample.truncated[0, 0, 2, :3] = True
    assert (
        make[name](sample, axes=left, labels={"pd-bwk": "PD BwK", "not here": "x"}, **options)
        is figure
    )
    assert left.has_data() and not right.has_data() and tuple(figure.get_size_inches()) == (6, 3)
    assert (
        "3 runs hit the limit of rounds" in left.get_title()
        and "PD BwK" in words(figure)
        and "pd-bwk" not in words(figure)
    )
    assert (
        left.get_xlabel()
        and not figure.get_supxlabel()
        and left.xaxis.get_ticklabels()[0].get_fontsize() in (7, 13)
    )
    with pytest.raises(ValueError, match="width = 3 is that of a new figure"):
        make[name](sample, axes=left, width=3, **options)
    with pytest.raises(ValueError, match="axes has 2, and there is 1 panel"):
        make[name](sample, axes=(left, right), **options)
    with pytest.raises(ValueError, match="axes = 'left' are not axes"):
        make[name](sample, axes="left", **options)
    figure.canvas.draw()


def test_several_panels_are_drawn_in_several_axes():
    figure = Figure()
    grid = figure.subplots(2, 1)
    sample = data()
    plots.regret(sample, axes=grid)
    for row, axes in enumerate(grid):
        np.testing.assert_allclose(
            lines(axes)["bts"].get_ydata(), sample.regret[0, row].mean("seed")
        )
    assert grid[0].get_legend() and not grid[1].get_legend()
    with pytest.raises(ValueError, match="axes has 1, and there are 2 panels"):
        plots.regret(sample, axes=grid[0])


def test_styles_and_labels_are_the_users():
    changes = {"bts": {"c": "red", "lw": 3}, "kube": {"marker": "P"}}
    figure = plots.regret(data(), styles=changes, labels={"bts": "BTS (ours)"})
    line = lines(figure.axes[0])["BTS (ours)"]
    assert (line.get_color(), line.get_linewidth(), line.get_marker()) == ("red", 3, "o"), (
        "the rest is as it was"
    )
    assert to_hex(figure.axes[0].collections[0].get_facecolor()[0]) == "#ff0000", "the band, too"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "BTS (ours)",
        "epsilon-first",
        "pd-bwk",
    ]
    assert legend.legend_handles[0].get_color() == "red"
    assert "BTS (ours) is better" in words(
        plots.difference(data(), "bts", labels={"bts": "BTS (ours)"})
    )
    for arguments, named in (
        ({"styles": {"bts": {"colour": "red"}}}, r"styles\['bts'\]"),
        ({"styles": "red"}, "styles = 'red'"),
        ({"styles": {"bts": "red"}}, r"styles\['bts'\]"),
        ({"labels": ["a", "b"]}, "labels = "),
    ):
        with pytest.raises(ValueError, match=named):
            plots.regret(data(), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 2.0, 7.0])
def test_pngs_are_wide_enough(width, tmp_path):
    from matplotlib.image import imread

    figure = plots.regret(data(bandits=1), width=width)
    plots.save(figure, tmp_path / "saved")
    figure.savefig(tmp_path / "own.png")
    content, size = figure._repr_mimebundle_()
    (tmp_path / "shown.png").write_bytes(content["image/png"])
    assert (
        content["image/png"] == figure._repr_png_()
        and size["image/png"]["width"] == 150 * figure.get_figwidth()
    )
    for name in ("saved", "own", "shown"):
        assert imread(tmp_path / f"{name}.png").shape[1] >= 1200
    other = Figure(figsize=(3, 2))  # not one of ours
    plots.write(other, tmp_path / "other.png")
    assert imread(tmp_path / "other.png").shape[1] >= 1200


def test_deviations_on_a_logarithmic_axis_leave_the_panel_readable():
    """The standard deviation of these two values is 1.13 times their mean: the mean minus it is
    negative.
    """
    regret = np.array([1.0, 9.0]) * np.array([1, 2, 4])[:, None]
    sample = made_up(regret[None, None], BUDGETS, ["bts"])
    figure = plots.regret(sample, band="deviation", scale="log-log")
    mean = np.array([5, 10, 20])
    assert_band(figure.axes[0].collections[0], mean / 2, mean + regret.std(1, ddof=1))
    assert "mean ± one standard deviation (not below half the mean)" in words(figure)
    figure = plots.regret(sample, band="deviation")
    assert_band(
        figure.axes[0].collections[0], mean - regret.std(1, ddof=1), mean + regret.std(1, ddof=1)
    )
    assert "half" not in words(figure)
    with_little = plots.regret(data(), band="deviation", scale="log-log")  # where nothing is cut
    values = data().regret.values[0, 0]
    assert_band(
        with_little.axes[0].collections[0],
        *(values.mean(1) + sign * values.std(1, ddof=1) for sign in (-1, 1)),
    )


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.4, 6, ["0.5", "1", "2", "5"]),
        (0.04, 30, ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20"]),
        (0.6, 1.7, ["0.6", "0.8", "1", "1.5"]),
        (0.93, 1.08, ["0.95", "1", "1.05"]),
        (0.001, 2000, ["0.001", "0.01", "0.1", "1", "10", "100", "1,000"]),
        (1e-9, 1e9, ["1e-09", "0.000001", "0.001", "1", "1,000", "1,000,000", "1,000,000,000"]),
    ],
)
def test_ticks_of_ratios_are_readable(low, high, ticks):
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(low, high)
    scales.ratios(axes, "x")
    figure.canvas.draw()
    assert [text.get_text() for text in axes.get_xticklabels()] == ticks
    assert not any(text.get_text() for text in axes.get_xticklabels(minor=True))


def test_numbers_below_one_have_no_prefix():
    small = data()
    axes = plots.regret(small.assign(regret=small.regret / 1000), scale="log-log").axes[0]
    axes.figure.canvas.draw()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert "0.05" in labels and not any("m" in label for label in labels)
    axes = plots.relative(small, "bts", panel="all").axes[0]
    axes.figure.canvas.draw()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "1.5", "2", "3"]


class Estimate(NamedTuple):
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def a_trace(recorded=(), batch=()):
    """Four rounds of six were played, with a budget of 5 and three arms."""
    arm = np.array([0, 2, 2, 0, -1, -1])
    reward, cost = np.array([1, 0, 1, 1, 0, 0.0]), np.array([1, 1, 0.5, 2, 0, 0])
    fields = {
        "arm": arm,
        "reward": reward,
        "cost": cost,
        "remaining": 5 - np.cumsum(cost),
        "played": arm >= 0,
        "length": np.array(4),
        "truncated": np.array(False),
    }
    return SimpleNamespace(
        **{name: np.broadcast_to(x, (*batch, *x.shape)) for name, x in fields.items()},
        recorded=recorded,
    )


def test_a_run_is_drawn_over_its_rounds():
    figure = plots.run(a_trace())
    top, middle = figure.axes
    assert [line.get_xdata().tolist() for line in top.lines] == [[1, 4], [], [2, 3]]
    assert [set(line.get_ydata()) for line in top.lines] == [{0}, set(), {2}]
    drawn = lines(middle)
    assert drawn["budget left"].get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert drawn["budget left"].get_ydata().tolist() == [5, 4, 3, 2.5, 0.5]
    assert drawn["reward so far"].get_ydata().tolist() == [0, 1, 1, 2, 3]
    assert top.get_xlim() == middle.get_xlim() and middle.get_xlabel() == "round"
    assert "4 rounds with a budget of 5: cost 4.5, reward 3" in words(
        figure
    ) and "ends before" not in words(figure)
    truncated = a_trace()
    truncated.truncated = np.array(True)
    assert "the trace ends before the run does" in words(plots.run(truncated))
    figure.savefig(io.BytesIO(), format="pdf")


LOW, MIDDLE, HIGH = (np.arange(18.0).reshape(6, 3) + shift for shift in (-1, 0, 2))


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ((LOW, MIDDLE, HIGH), "value per arm"),
        ({"high": HIGH, "mean": MIDDLE, "low": LOW}, "mean"),
        (Estimate(MIDDLE, LOW, HIGH), "estimate"),
        (MIDDLE, "value per arm"),
        ({"expected_ratio": MIDDLE}, "expected ratio"),
    ],
)
def test_what_was_recorded_is_drawn_for_each_arm(recorded, name):
    for figure in (plots.run(a_trace(recorded)), plots.run(a_trace(), bands=recorded)):
        axes = figure.axes[2]
        assert axes.get_ylabel() == name and list(lines(axes)) == ["arm 0", "arm 1", "arm 2"]
        # Of the rounds that were played.
        np.testing.assert_array_equal(lines(axes)["arm 1"].get_ydata(), MIDDLE[:4, 1])
        assert len(axes.collections) == (0 if recorded is MIDDLE or len(recorded) == 1 else 3)
        if axes.collections:
            points = axes.collections[1].get_paths()[0].vertices
            assert set(points[points[:, 0] == 3, 1]) == {MIDDLE[2, 1] - 1, MIDDLE[2, 1] + 2}
    assert len(plots.run(a_trace(recorded), bands=False).axes) == 2


def test_the_panel_of_what_was_recorded_has_its_name():
    bandit = bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])

    def mean_reward(state):
        return state.reward_mean / 2

    for record, name in (
        (mean_reward, "mean reward"),
        (lambda state: state.reward_mean / 2, "value per arm"),
        (lambda state: state.pulls, "pulls"),
        (lambda state: {"draw": state.pulls}, "draw"),
    ):
        trace = bj.trace(bj.KUBE(), bandit, 5, jax.random.key(0), rounds=20, record=record)
        assert plots.run(trace).axes[2].get_ylabel() == name
        assert len(jax.tree.leaves(trace.recorded_name)) == 0, "it is no obstacle to jit and vmap"


def test_arms_have_names_and_colours():
    figure = plots.run(a_trace(MIDDLE), labels=["red", "green", "blue"])
    ticks = figure.axes[0].get_yticklabels()
    assert [text.get_text() for text in ticks] == ["red", "green", "blue"]
    for text in ticks:
        assert lines(figure.axes[2])[text.get_text()].get_color() == text.get_color()
    ticks = plots.run(a_trace(), labels={2: "blue"}).axes[0].get_yticklabels()
    assert [text.get_text() for text in ticks] == ["0", "1", "blue"]
    many = a_trace()
    many.arm = np.array([0, 59, 30, 2, -1, -1])
    plots.run(many).savefig(io.BytesIO(), dpi=50)
    mine = Figure()
    grid = mine.subplots(3)
    assert plots.run(a_trace(MIDDLE), axes=grid) is mine and all(axes.has_data() for axes in grid)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda: plots.run(a_trace(batch=(7,))),
            r"batch of shape \(7,\): select one run, as in "
            r"jax.tree.map\(lambda x: x\[0\]",
        ),
        (
            lambda: plots.run(a_trace(), bands=MIDDLE[:5]),
            r"bands = array of shape \(5, 3\) .* give one array over \(6 rounds, arms\)",
        ),
        (
            lambda: plots.run(a_trace(), bands={"low": LOW, "a": MIDDLE}),
            "bands = dict cannot be drawn",
        ),
        (
            lambda: plots.run(a_trace(), labels=["one"]),
            r"labels = \['one'\] has 1 name, and there "
            r"are 3 arms",
        ),
        (
            lambda: plots.run(a_trace(), axes=Figure().subplots()),
            "axes has 1, and there are 2 panels",
        ),
        (lambda: plots.run(a_trace(), width=-1), "width = -1"),
    ],
)
def test_bad_input_to_run(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_a_run_that_recorded_something_else_has_two_panels():
    for recorded in (
        (),
        None,
        MIDDLE[:, 0],
        {"a": MIDDLE, "b": MIDDLE},
        {"a": MIDDLE[:, 0]},
        (MIDDLE, MIDDLE),
        SimpleNamespace(a=1),
        (LOW, MIDDLE, HIGH[:, :1]),
    ):
        assert len(plots.run(a_trace(recorded)).axes) == 2


def hyperparameters():
    """Three values of alpha by two of scale, in no order, and a policy that has no alpha."""
    alpha, scale = [2, 1, 3, 1, 2, 3, np.nan], [10, 10, 20, 20, 20, 10, 20.0]
    base = [4, 6, 1, 5, 2, 3, 0]
    regret = (
        np.array(base, float)[:, None, None, None]
        + np.array([-1, 1])[:, None, None]
        + np.array([0.0, 100])[:, None]
    )
    sample = made_up(np.broadcast_to(regret, (7, 2, 2, 3)), [10, 20], [f"p{i}" for i in range(7)])
    return sample.assign_coords(alpha=("policy", alpha), scale=("policy", scale))


def test_a_heat_map_has_the_means_where_they_belong():
    figure = plots.heatmap(hyperparameters(), "alpha", "scale")
    axes = figure.axes[0]
    (image,) = axes.images
    # By scale and alpha.
    np.testing.assert_array_equal(image.get_array(), np.array([[6, 4, 3], [5, 2, 1]]) + 100)
    assert image.origin == "lower" and (axes.get_xlabel(), axes.get_ylabel()) == ("alpha", "scale")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "3"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["10", "20"]
    assert {text.get_position(): text.get_text() for text in axes.texts}[(2, 0)] == "103"
    (best,) = axes.patches
    assert best.get_xy() == (1.5, 0.5), "around the column 3 and the row 20"
    assert "2 instances of 3 runs each at budget 20" in words(
        figure
    ) and "alpha = 3, scale = 20" in words(figure)
    assert "mean regret (units of reward)" in words(figure)
    other = plots.heatmap(
        hyperparameters(), "scale", "alpha", budget=10, metric="pseudo_regret", annotate=False
    ).axes[0]
    assert not other.texts
    np.testing.assert_array_equal(
        other.images[0].get_array(), np.array([[6, 4, 3], [5, 2, 1]]).T + 1
    )
    figure.savefig(io.BytesIO(), dpi=50)


def test_cells_without_a_mean_are_blank():
    sample = hyperparameters().isel(policy=[0, 1, 2, 3, 4])  # none with alpha 3 and scale 10
    sample.regret[2] = np.nan  # in 6 runs at the largest budget
    figure = plots.heatmap(sample, "alpha", "scale", scale="log")
    np.testing.assert_array_equal(
        figure.axes[0].images[0].get_array().filled(0), [[106, 104, 0], [105, 102, 0]]
    )
    assert len(figure.axes[0].texts) == 4 and "6 runs without a finite regret" in words(figure)
    assert figure.axes[0].patches[0].get_xy() == (0.5, 0.5)
    mine = Figure()
    assert plots.heatmap(sample, "alpha", "scale", axes=mine.subplots()) is mine
    for written in (figure, mine):
        written.savefig(io.BytesIO(), dpi=50)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda data: plots.heatmap(data, "alhpa", "scale"),
            "x = 'alhpa' is not a hyperparameter .* give one of 'alpha', 'scale'",
        ),
        (
            lambda data: plots.heatmap(data, "alpha", "requires"),
            "y = 'requires' is not a hyperparameter",
        ),
        (
            lambda data: plots.heatmap(data.drop_vars(["alpha", "scale"]), "alpha", "scale"),
            "it has none",
        ),
        (lambda data: plots.heatmap(data, "alpha", "alpha"), "x = y = 'alpha'"),
        (lambda data: plots.heatmap(data.isel(policy=[6]), "alpha", "scale"), "no policy has both"),
        (
            lambda data: plots.heatmap(
                data.isel(policy=[0, 0]).assign_coords(policy=["a", "b"]), "alpha", "scale"
            ),
            r"2 policies have alpha = 2 and scale = 10 \('a, b'\)",
        ),
        (lambda data: plots.heatmap(data, "alpha", "scale", budget=7), "budget = 7"),
        (lambda data: plots.heatmap(data, "alpha", "scale", metric="reward"), "metric = 'reward'"),
        (lambda data: plots.heatmap(data, "alpha", "scale", scale="log-log"), "scale = 'log-log'"),
        (
            lambda data: plots.heatmap(
                data.assign(regret=-data.regret), "alpha", "scale", scale="log"
            ),
            "not positive: give scale = 'linear'",
        ),
    ],
)
def test_bad_input_to_heatmap(call, named):
    with pytest.raises(ValueError, match=named):
        call(hyperparameters())
