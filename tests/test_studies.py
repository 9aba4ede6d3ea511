"""The studies: tiny ones from end to end, and what is computed from runs, by hand."""

import csv

import jax
import numpy as np
import pytest
import xarray as xr

import bts_jax as bj
from bts_jax import experiments, plots
from bts_jax.cli import main
from bts_jax.experiments import STUDIES, common, correlated, laws, money, omega, tails, worst_case
from bts_jax.experiments.runner import Size
from bts_jax.intervals import ratio_interval
from bts_jax.plots import saving
from bts_jax.statistics import measured
from bts_jax.sweeps import run
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin
from bts_jax.sweeps.results import VARIABLES, axes_of

TINY = {
    "omega": Size((3,), (20, 40), (4,), 1),
    "tails": Size((3,), (20, 40, 80), (30,), 1),
    "priors": Size((3,), (5, 10), (3,), 2),
    "correlated": Size((3,), (5, 10), (3,), 2),
    "worst-case": Size((2,), (50, 100, 200), (1,), 4),
    "knapsacks": Size((3,), (20, 40), (3,), 1, ("1 product", "Bernoulli, d = 3")),
    "money": Size((3,), (20, 40), (3,), 1, ("Bernoulli", "two values")),
}
FIGURES = {
    "omega": {"ratios-bernoulli", "ratios-multinomial", "ratios-beta", "regret"},
    "priors": {"ratios", "regret"},
    "tails": {"tails"},
    "correlated": {"correlation"},
    "worst-case": {"worst-case"},
    "knapsacks": {"regret"},
    "money": {"one-budget", "t-and-b"},
}


def made_up_sweep(
    policies,
    bandits,
    budgets,
    num_seeds,
    *,
    seed,
    out,
    quiet,
    relative_to_min_cost=False,
    bandit_coords=None,
):
    """The result of `sweep`, with made-up numbers."""
    grid = Grid(
        policies,
        bandits,
        budgets,
        num_seeds,
        seed,
        relative_to_min_cost,
        bandit_coords=bandit_coords,
    )
    attributes = grid.attributes()
    results = begin(attributes, num_seeds, None)
    rng = np.random.default_rng(0)
    for chunk in results.missing:
        axes = {name: axes_of(name, results.sizes)[2:] for name in VARIABLES}
        shapes = {name: tuple(results.sizes[axis] for axis in of) for name, of in axes.items()}
        values = {name: rng.uniform(5, 50, shape) for name, shape in shapes.items()}
        results.put(chunk, {**values, "truncated": np.zeros(shapes["truncated"], bool)})
    return results.dataset()


def written(name, out):
    files = {f"{figure}.{kind}" for figure in FIGURES[name] for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} - {"runs.zarr"} == files | {
        "report.txt",
        "table.csv",
    }
    with (out / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_writes(name, tmp_path, monkeypatch):
    """With all policies, and made-up runs."""
    monkeypatch.setitem(STUDIES[name].sizes, "quick", TINY[name])
    monkeypatch.setattr(run, "sweep", made_up_sweep)
    monkeypatch.setattr(saving, "_dpi", lambda *_: 50)  # test_plots tests the width of PNGs
    dataset, report = experiments.study(name, out=tmp_path / "here")
    rows = written(name, tmp_path / "here")
    assert (tmp_path / "here" / "report.txt").read_text(encoding="utf-8") == report + "\n"
    assert name in ("knapsacks", "money") or not set(dataset.policy.values) & set(omega.LEFT_OUT)
    kinds = {row["kind"] for row in rows}
    assert len(rows) == len(kinds) * dataset.sizes["policy"] * dataset.sizes["budget"]
    first = dataset.isel(policy=0, budget=0).pseudo_regret
    mine = (dataset.kind == rows[0]["kind"].rsplit(", ", 1)[0]).values
    assert mine.any()
    assert float(rows[0]["mean regret"]) == pytest.approx(
        first.isel(bandit=mine).mean().item(), rel=1e-5
    )
    names = [
        f"{kind}-{arms}-{number}"
        for kind, arms, number in zip(
            dataset.kind.values, dataset.num_arms.values, dataset.instance.values, strict=True
        )
    ]
    assert names == dataset.bandit.values.tolist(), "the keys of the runs depend on the names"
    for part in {
        "omega": [
            "ω*-UCB has less mean regret",
            "ucb-bv1",
            "missed the best arm",
            "bootstrap samples",
        ],
        "tails": [
            "The budget above which",
            "lost runs",
            "samples of these problems show",
            "omega-star-ucb − bts",
        ],
        "priors": ["Gaussian learnt in place", "Jeffreys"],
        "correlated": ["+1.00", "Joint BTS against BTS"],
        "worst-case": ["0.5", "kl-ucb-sc"],
        "knapsacks": ["than ts-update", "SUBLINEAR", "lagrange-bwk"],
        "money": ["Gamma, Matched", "two values, T and B", "budget-pacer"],
    }[name]:
        assert part in report, part


@pytest.mark.slow
def test_a_study_from_end_to_end(tmp_path, monkeypatch, capsys):
    """With one policy; a second call has nothing to play, and another seed is refused."""
    monkeypatch.setitem(STUDIES["worst-case"].sizes, "quick", TINY["worst-case"])
    monkeypatch.setattr(worst_case, "RIVALS", ("kube",))
    out = tmp_path / "here"
    main(["study", "worst-case", "--out", str(out), "--seed", "3", "--quiet"])
    printed, err = capsys.readouterr()
    assert (
        err == ""
        and (out / "report.txt").read_text(encoding="utf-8").strip() in printed
        and "table.csv" in printed
    )
    written("worst-case", out)
    dataset = bj.open_results(out / "runs.zarr")
    assert dataset.state == "complete" and dict(dataset.sizes) == {
        "policy": 1,
        "bandit": 4,
        "budget": 3,
        "seed": 4,
        "arm": 2,
    }
    monkeypatch.setattr(plots, "save", lambda *_: None)
    again, _ = experiments.study("worst-case", out=out, seed=3, quiet=True)
    assert again.identical(dataset)
    with pytest.raises(SystemExit) as ended:
        main(["study", "worst-case", "--out", str(out), "--seed", "4", "--quiet"])
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.with_care
def test_the_settings_are_those_of_the_publications():
    size = STUDIES["omega"].sizes["full"]
    assert (
        size.arms == (10, 100)
        and size.budgets[-1] == 150_000
        and size.instances[0] >= 2000
        and size.runs == 1
    )
    settings = omega.settings(Size((10,), (1,), (2,), 1), 0)
    assert settings["policies"] == [name for name in bj.POLICIES if name not in omega.LEFT_OUT]
    assert {type(bandit) for bandit in settings["bandits"].values()} == {
        bj.Bernoulli,
        bj.Multinomial,
        bj.Beta,
    }
    more = omega.settings(Size((10,), (1,), (3,), 1), 0)["bandits"]
    np.testing.assert_array_equal(
        more["Beta-10-2"].cost_alpha, settings["bandits"]["Beta-10-2"].cost_alpha
    )
    np.testing.assert_array_equal(
        settings["bandits"]["Bernoulli-10-2"].cost,
        bj.Bernoulli.random(
            jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 1), 10
        ).cost,
    )
    joint = correlated.settings(Size((4,), (1,), (1,), 1), 0)["bandits"]
    assert len({np.asarray(bandit.cost).tobytes() for bandit in joint.values()}) == 1, (
        "the same means"
    )
    np.testing.assert_allclose(
        joint["+1.00-4-1"].correlation, joint["+1.00-4-1"].limits[1], rtol=1e-6
    )
    hard = worst_case.settings(Size((4,), (100, 900), (1,), 1), 0)["bandits"]
    np.testing.assert_allclose(hard["hard at 900-4-1"].ratio, bj.Bernoulli.hard(4, 900).ratio)


def test_a_known_exponent_is_found():
    """Regret 3 B^0.7 on the worse of two instances, with noise of 1%."""
    budgets = np.array([100.0, 300, 1000, 3000])
    noise = 1 + 0.01 * np.random.default_rng(0).normal(size=(2, 4, 50))
    values = np.stack([3 * budgets**0.7, 2 * budgets**0.3])[..., None] * noise
    runs = xr.DataArray(values, dims=("bandit", "budget", "seed"), coords={"budget": budgets})
    worst, where, (value, low, high) = worst_case.exponent(runs)
    np.testing.assert_allclose(worst, 3 * budgets**0.7, rtol=0.01)
    assert where.tolist() == [0] * 4 and low < value < high
    assert abs(value - 0.7) < 0.01 and high - low < 0.01
    assert worst_case._own_exponent(np.array([1e8, 1e10])) == pytest.approx(
        0.5 + 0.5 * np.log(10 / 8) / np.log(100)
    )


def test_the_median_ratio_and_its_interval():
    mine, base = np.append(np.arange(1.0, 12), 0), np.append(np.ones(11), 0)
    assert common.median_ratio(mine, base) == (6, 2, 10), "no ratio to 0"
    assert np.isnan(common.median_ratio(mine, 0 * base)).all()


def test_the_ratio_of_means_allows_for_a_lost_run():
    data = labelled_runs()
    mine, base = data.pseudo_regret.values[1, :, 0, 0], data.pseudo_regret.values[0, :, 0, 0]
    lost = measured(data, "pseudo_regret").lost_run.values.mean()
    expected = ratio_interval(mine, base, unseen=(max(lost, mine.mean()), max(lost, base.mean())))
    np.testing.assert_allclose(common.mean_ratios(common.at_the_end(data), "bts")["kube"], expected)


def labelled_runs(problems=30):
    from common import made_up

    regret = np.random.default_rng(0).uniform(1, 20, (3, problems, 1, 1))
    return made_up(regret, [100], ["bts", "kube", "omega-star-ucb"])


def test_the_first_three_by_the_mean_and_how_stable_they_are():
    rng = np.random.default_rng(1)
    values = np.array([30.0, 10, 20, 40])[:, None] + rng.normal(0, 1, (4, 50))
    assert omega.stability(values) == ([1, 2, 0], 1.0)
    first, share = omega.stability(
        np.repeat(rng.normal(0, 1, (1, 50)), 4, 0) + rng.normal(0, 1, (4, 50))
    )
    assert len(first) == 3 and share < 0.9


def test_the_crossing_by_hand():
    """The ratio of the means is 1/2, 1/√2 … 2 at budgets 1, 10, 100, 1000 or so: it is 1 half-way
    between 10 and 100.
    """
    budgets = np.array([1.0, 10, 100, 1000])
    base = np.ones((4, 50))
    mine = base * np.array([0.25, 0.5, 2, 4])[:, None]
    np.testing.assert_allclose(tails.crossing(budgets, mine, base, 100), [10**1.5] * 3)
    np.testing.assert_array_equal(tails.crossing(budgets, base / 2, base, 100), [np.inf] * 3)
    np.testing.assert_array_equal(tails.crossing(budgets, base * 2, base, 100), [0] * 3)
    # The crossing after which there is always more counts, not the first of three.
    mine = base * np.array([0.5, 2, 0.5, 2])[:, None]
    np.testing.assert_allclose(tails.crossing(budgets, mine, base, 100).estimate, 10**2.5)
    noisy = mine * np.random.default_rng(0).uniform(0.8, 1.2, (4, 50))
    estimate, low, high = tails.crossing(budgets, noisy, base, 1000)
    assert 100 < low < estimate < high < 1000


def test_lost_runs_have_hardly_pulled_the_best_arm():
    data = labelled_runs()
    best = (data.reward_mean / data.cost_mean).argmax("arm").values
    data.pulls[:] = 1000
    data.pulls[1, 7, 0, 0, best[7]] = 5
    found = tails.lost(data)
    assert found.sum() == 1 and found[1, 7, 0, 0]


def test_coverage_of_a_law_with_rare_lost_runs():
    """One run in 100 is lost, and costs 1,000 where others cost 1 to 2: with 20 problems Student's
    interval hardly ever covers the mean, 11.5, since four samples of five have no lost run. Of
    2,000 samples a share of ± 6% is beyond 5 deviations."""
    values = np.append(np.random.default_rng(0).uniform(1, 2, 990), np.full(10, 1000.0))
    found = tails.coverage(values, np.full(1000, 1000.0), 20)
    assert (
        abs(found["Student"]["covers"] - (1 - 0.99**20)) < 0.06
        and found["one lost run more"]["covers"] > 0.99
    )
    assert found["median"]["covers"] > 0.92
    pair = tails.coverage(values, np.full(1000, 1000.0), 20, base=np.full(1000, 5.0))
    assert (
        abs(pair["Student"]["wrong"] - 0.99**20) < 0.06 and pair["one lost run more"]["wrong"] == 0
    )


def test_ratios_are_drawn():
    from common import made_up

    regret = np.array([2.0, 4, 1])[:, None, None, None] * np.random.default_rng(0).uniform(
        1, 2, (1, 6, 1, 3)
    )
    data = made_up(regret, [100], ["bts", "kube", "oracle"])
    figure = plots.relative(data, "bts", panel="all")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["oracle", "bts", "kube"]
    medians = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("None", "D")]
    np.testing.assert_allclose(medians, [0.5, 1, 2])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: experiments.study("omegga"), "name = 'omegga' is not a study: give 'omega'"),
        (lambda: experiments.study("omega", "huge"), "scale = 'huge'"),
        (lambda: experiments.study("omega", seed=2.5), "seed = 2.5"),
        (lambda: experiments.study("omega", instances=1), "instances = 1"),
        (
            lambda: experiments.study("worst-case", instances=10),
            "instances = 10 is for random problems",
        ),
    ],
)
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# The laws of costs of `study money`


@pytest.mark.parametrize("name", money.LAWS)
def test_laws_of_costs_have_their_means_and_variances(name):
    """400,000 pulls of each arm: 6 standard errors of the mean, 2·10⁻⁹ each, 28 of them; the spread
    of the costs by hand.
    """
    bandit = laws.LawArms(
        reward=np.float32([0.2, 0.7]), cost=np.float32([0.05, 0.8]), **money.LAWS[name]
    )
    keys = jax.random.split(jax.random.key(0), 400_000)
    pull = jax.jit(jax.vmap(jax.vmap(bandit.pull, (0, None)), (None, 0)))
    reward, cost = (np.asarray(x, np.float64) for x in pull(keys, np.arange(2)))
    for draws, mean in ((reward, bandit.reward), (cost, bandit.cost)):
        error = np.maximum(draws.std(1), 1e-7) / np.sqrt(draws.shape[1])
        assert (abs(draws.mean(1) - mean) < 6 * error).all()
    assert (cost >= 0).all() and (cost <= float(bandit.cost_scale)).all()
    variation = cost.std(1) / cost.mean(1)
    mean = np.array([0.05, 0.8])
    expected = {
        "Bernoulli": np.sqrt((1 - mean) / mean),
        "five values": np.sqrt((1 - mean) / mean / 4),
        "fixed prices": 0,
        "log-normal 0.1": 0.1,
        "log-normal 1": 1,
        "log-normal 3": 3,
        "two values": np.sqrt(1.001 / 0.001 / 4),
    }
    tolerance = {"log-normal 3": 0.2, "two values": 0.15}.get(name, 0.02)
    np.testing.assert_allclose(variation, expected[name], rtol=tolerance, atol=1e-4)


def test_shares_of_the_linear_program_by_hand():
    """Two arms: the optimum of the budget 100 is 200. A policy with pseudo-regret 50 earns 3/4 of
    it.
    """
    axes = ("policy", "bandit", "budget", "seed")
    part = xr.Dataset(
        {"pseudo_regret": (axes, np.full((1, 2, 1, 1), 50.0))},
        coords={
            "policy": ["a"],
            "budget": [100.0],
            "reward_mean": (("bandit", "arm"), np.tile([0.5, 0.75], (2, 1))),
            "cost_mean": (("bandit", "arm", "resource"), np.tile([[0.25], [0.75]], (2, 1, 1))),
        },
    )
    np.testing.assert_allclose(money.shares(part)["a"], 0.75)
