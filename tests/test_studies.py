"""The studies: tiny ones from end to end, and what is computed from runs, by hand."""

import csv

import numpy as np
import pytest
import xarray as xr

import bts_jax as bj
from bts_jax import grid, plots, studies
from bts_jax.cli import main
from bts_jax.grid import _Grid
from bts_jax.results import VARIABLES, begin
from bts_jax.studies import STUDIES, Size

TINY = {
    "omega": Size((3,), (20, 40), 2, 1),
    "priors": Size((3,), (5, 10), 2, 2),
    "correlated": Size((3,), (5, 10), 2, 2),
    "worst-case": Size((2,), (50, 100, 200), 1, 4),
}
FIGURES = {"omega": {"ratios-bernoulli", "ratios-multinomial", "ratios-beta", "regret"}, "priors": {"ratios", "regret"},
           "correlated": {"correlation"}, "worst-case": {"worst-case"}}


def made_up_sweep(policies, bandits, budgets, seeds, *, seed, out, quiet, relative=False):
    """What `sweep` returns, with numbers that nobody has played."""
    attributes = _Grid(policies, bandits, budgets, seeds, seed, relative).attributes()
    results = begin(attributes, seeds, None)
    rng = np.random.default_rng(0)
    for unit in results.missing:
        shapes = {name: (len(budgets), seeds, *[results.sizes["arm"]] * (name == "pulls")) for name in VARIABLES}
        values = {name: rng.uniform(5, 50, shape) for name, shape in shapes.items()}
        results.put(unit, {**values, "truncated": np.zeros(shapes["truncated"], bool)})
    return results.dataset()


def written(name, out):
    files = {f"{figure}.{kind}" for figure in FIGURES[name] for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} - {"runs.zarr"} == files | {"report.txt", "table.csv"}
    with (out / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_writes(name, tmp_path, monkeypatch):
    """With all policies, and made-up runs."""
    monkeypatch.setitem(STUDIES[name].sizes, "quick", TINY[name])
    monkeypatch.setattr(grid, "sweep", made_up_sweep)
    dataset, report = studies.study(name, out=tmp_path / "here")
    rows = written(name, tmp_path / "here")
    assert (tmp_path / "here" / "report.txt").read_text(encoding="utf-8") == report + "\n"
    assert not set(dataset.policy.values) & set(studies.LEFT_OUT)
    kinds = {row["kind"] for row in rows}
    assert len(rows) == len(kinds) * dataset.sizes["policy"] * dataset.sizes["budget"]
    first = dataset.isel(policy=0, budget=0).pseudo_regret
    mine = [str(bandit).rsplit("-", 2)[0] == rows[0]["kind"].rsplit(", ", 1)[0] for bandit in dataset.bandit.values]
    assert float(rows[0]["mean regret"]) == pytest.approx(first.isel(bandit=mine).mean().item(), rel=1e-5)
    for part in {"omega": ["ω*-UCB has less regret", "ucb-bv1", "told nothing"],
                 "priors": ["gaussian-bts in place", "Jeffreys"], "correlated": ["+1.00", "Regret of joint BTS"],
                 "worst-case": ["0.5", "kl-ucb-sc"]}[name]:
        assert part in report, part


def test_a_study_from_end_to_end(tmp_path, monkeypatch, capsys):
    """With one policy; a second call has nothing to play, and another seed is refused."""
    monkeypatch.setitem(STUDIES["worst-case"].sizes, "quick", TINY["worst-case"])
    monkeypatch.setattr(studies, "RIVALS", ("kube",))
    out = tmp_path / "here"
    main(["study", "worst-case", "--out", str(out), "--seed", "3", "--quiet"])
    printed, err = capsys.readouterr()
    assert err == "" and (out / "report.txt").read_text(encoding="utf-8").strip() in printed and "table.csv" in printed
    written("worst-case", out)
    dataset = bj.open_results(out / "runs.zarr")
    assert dataset.state == "complete" and dict(dataset.sizes) == {"policy": 1, "bandit": 4, "budget": 3, "seed": 4, "arm": 2}
    monkeypatch.setattr(plots, "save", lambda *_: None)
    again, _ = studies.study("worst-case", out=out, seed=3, quiet=True)
    assert again.identical(dataset)
    with pytest.raises(SystemExit) as ended:
        main(["study", "worst-case", "--out", str(out), "--seed", "4", "--quiet"])
    assert ended.value.code == 2


def test_the_settings_are_those_of_the_publications():
    size = STUDIES["omega"].sizes["full"]
    assert size.arms == (10, 50, 100) and size.budgets[-1] == 150_000 and (size.instances, size.runs) == (100, 1)
    settings = studies._omega_settings(Size((10,), (1,), 2, 1), 0)
    assert settings["policies"] == [name for name in bj.POLICIES if name not in ("oracle", "uniform", "tempered-bts")]
    assert {type(bandit) for bandit in settings["bandits"].values()} == {bj.Bernoulli, bj.Multinomial, bj.Beta}
    joint = studies._correlated_settings(Size((4,), (1,), 1, 1), 0)["bandits"]
    assert len({np.asarray(bandit.cost).tobytes() for bandit in joint.values()}) == 1, "the same means"
    assert (joint["+1.00-4-1"].correlation == joint["+1.00-4-1"].limits[1]).all()
    hard = studies._worst_settings(Size((4,), (100, 900), 1, 1), 0)["bandits"]
    np.testing.assert_allclose(hard["hard at 900-4-1"].ratio, bj.Bernoulli.hard(4, 900).ratio)


def test_a_known_exponent_is_found():
    """Regret 3 B^0.7 on the worse of two instances, with noise of 1%."""
    budgets = np.array([100.0, 300, 1000, 3000])
    noise = 1 + 0.01 * np.random.default_rng(0).normal(size=(2, 4, 50))
    values = np.stack([3 * budgets**0.7, 2 * budgets**0.3])[..., None] * noise
    runs = xr.DataArray(values, dims=("bandit", "budget", "seed"), coords={"budget": budgets})
    worst, where, (value, low, high) = studies.exponent(runs)
    np.testing.assert_allclose(worst, 3 * budgets**0.7, rtol=0.01)
    assert where.tolist() == [0] * 4 and low < value < high
    assert abs(value - 0.7) < 0.01 and high - low < 0.01
    assert studies._own_exponent(np.array([1e8, 1e10])) == pytest.approx(0.5 + 0.5 * np.log(10 / 8) / np.log(100))


def test_the_median_ratio_and_its_interval():
    mine, base = np.array([1.0, 2, 3, 4, 0]), np.array([1.0, 1, 1, 1, 0])
    median, low, high = studies._ratio(mine, base)
    assert median == 2.5 and 1 <= low < 2.5 < high <= 4, "no ratio to 0"


def test_ratios_are_drawn():
    from common import made_up

    regret = np.array([2.0, 4, 1])[:, None, None, None] * np.random.default_rng(0).uniform(1, 2, (1, 6, 1, 3))
    data = made_up(regret, [100], ["bts", "kube", "oracle"])
    figure = plots.relative(data, "bts", panel="all")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["oracle", "bts", "kube"]
    medians = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("None", "D")]
    np.testing.assert_allclose(medians, [0.5, 1, 2])


@pytest.mark.parametrize(("call", "named"), [
    (lambda: studies.study("omegga"), "name = 'omegga' is not a study: give 'omega'"),
    (lambda: studies.study("omega", "huge"), "scale = 'huge'"),
    (lambda: studies.study("omega", seed=2.5), "seed = 2.5"),
])
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=named):
        call()
