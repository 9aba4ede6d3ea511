"""The paper's experiments: what is computed from a Dataset, by hand; and a small figure1 from end to end."""

import csv
import re
import zlib

import jax
import numpy as np
import pytest
from common import made_up

import bts_jax as bj
from bts_jax import paper
from bts_jax.cli import main

NAMES = list(paper.RIVALS)


def section5(instances=1, seeds=20, seed=0):
    """Made-up runs with the paper's outcome: BTS best and steady, more regret with more arms, ε-first astray now and then."""
    rng = np.random.default_rng(seed)
    count = 4 * instances
    mean, deviation = np.array([[5, 50, 30, 40, 35.0], [0.2, 1, 1, 1, 1]])[:, :, None, None, None]
    regret = mean + deviation * rng.normal(size=(5, count, 2, seeds))
    arms = np.repeat([10, 100, 10, 100], instances)
    regret += arms[:, None, None]
    data = made_up(regret, [1000, 50_000], NAMES)
    data = data.assign_coords(
        bandit=[f"{i}" for i in range(count)], num_arms=("bandit", arms),
        family=("bandit", np.repeat(["Bernoulli", "Bernoulli", "Multinomial", "Multinomial"], instances)),
    )
    best = (data.reward_mean / data.cost_mean).values.argmax(-1)
    data.pulls[:] = 1
    for bandit, arm in enumerate(best):
        data.pulls[:, bandit, :, :, arm] = 100
        data.pulls[1, bandit, :, :3, arm] = 2
        data.pulls[1, bandit, :, :3, (arm + 1) % 4] = 100
    data.regret[1, :, :, :3] += 500
    return data


def test_failures_by_hand():
    data = section5()
    result = paper.failures(data)
    assert (result.runs == 3).all() and dict(result.sizes) == {"bandit": 4, "budget": 2}
    np.testing.assert_allclose(result.mean_wrong, data.regret[1, :, :, :3].mean("seed"))
    np.testing.assert_allclose(result.mean_right, data.regret[1, :, :, 3:].mean("seed"))
    assert (result.explained > 0.99).all(), "the runs astray make nearly all of the variance"
    never = paper.failures(data, "bts")
    assert (never.runs == 0).all() and np.isnan(never.mean_wrong).all() and (never.explained == 0).all()


def test_the_share_of_variance_is_that_of_the_groups():
    data = section5()
    regret = data.regret.values[1]
    means = np.where(np.arange(20) < 3, regret[..., :3].mean(-1, keepdims=True), regret[..., 3:].mean(-1, keepdims=True))
    np.testing.assert_allclose(paper.failures(data).explained, means.var(-1) / regret.var(-1))


@pytest.mark.parametrize("instances", [1, 4])
def test_what_the_paper_saw_is_confirmed(instances):
    assert [verdict for _, verdict, _ in paper.observations(section5(instances))] == ["holds"] * 4


def test_what_it_did_not_see_is_not():
    data = section5()
    worse = data.copy(deep=True)
    worse.regret[0] += 100
    assert paper.observations(worse)[0].verdict == "is contradicted in 4 of 4 panels"
    worse.regret[0, 0] -= 100
    assert paper.observations(worse)[0].verdict == "holds in 1, is contradicted in 3 of 4 panels"
    erratic = data.copy(deep=True)
    erratic.regret[0] += 20 * (erratic.regret[0] - erratic.regret[0].mean("seed"))
    assert paper.observations(erratic)[1].verdict == "does not hold"
    fewer = data.copy(deep=True)
    fewer.regret[2, 1] -= 100
    assert paper.observations(fewer)[2].verdict == "holds in 9 of 10 cases"
    calm = data.copy(deep=True)
    calm.regret[1, :, :, :3] -= 500
    assert paper.observations(calm)[3].verdict == "does not hold"


def test_a_tie_is_no_clear_advantage():
    data = section5()
    data.regret[4] = data.regret[0]
    assert paper.observations(data)[0].verdict == "is undecided in 4 of 4 panels"


def test_the_report_has_it_all():
    text = paper.report(section5(instances=3))
    for part in ("Bernoulli, 10 arms", "Multinomial, 100 arms", "9 of 60", "4,630.0", "mean rank", "Observation 3", "HOLDS",
                 "20 runs, where the paper has 50,000 and 500"):
        assert part in text, part
    assert "one random instance" not in text and "one random instance" in paper.report(section5())


def test_instances_are_random_distinct_and_do_not_depend_on_their_number():
    few, many = paper.bandits(seed=1), paper.bandits(seed=1, instances=3)
    assert len(few) == 4 and len(many) == 12 and set(few) < set(many)
    for name, bandit in few.items():
        np.testing.assert_array_equal(bandit.cost_mean, many[name].cost_mean)
    assert len({np.asarray(bandit.cost_mean).tobytes() for bandit in many.values()}) == 12
    costs = np.asarray(paper.bandits(means=(0.4, 0.6))["bernoulli-100-1"].cost_mean)
    assert costs.min() >= 0.4 and costs.max() <= 0.6
    assert [bandit.num_arms for bandit in few.values()] == [10, 100, 10, 100]


def test_the_budgets_are_the_papers():
    assert paper.SCALES["paper"] == ((100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000,
                                      45_000, 50_000), 500)


def test_figure1_from_end_to_end(tmp_path, monkeypatch, capsys):
    """With few arms and small budgets; a second call has nothing to play, and another seed is refused."""
    monkeypatch.setattr(paper, "PANELS", (("bernoulli", 3),))
    monkeypatch.setattr(paper, "RIVALS", {"bts": bj.BTS(), "epsilon-first": bj.EpsilonFirst(), "kube": bj.KUBE()})
    monkeypatch.setitem(paper.SCALES, "quick", ((5, 20), 4))
    main(["figure1", "--out", str(tmp_path / "here"), "--seed", "3", "--quiet"])
    out, err = capsys.readouterr()
    assert "Observation 3" in out and "table.csv" in out and err == ""
    folder = tmp_path / "here"
    assert {path.name for path in folder.iterdir()} == {"figure1.png", "figure1.pdf", "report.txt", "runs.zarr", "table.csv"}
    assert (folder / "report.txt").read_text(encoding="utf-8").strip() in out
    data = bj.open_results(folder / "runs.zarr")
    with (folder / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 1 * 2
    assert float(rows[-1]["mean regret"]) == pytest.approx(data.regret[2, 0, 1].mean().item(), rel=1e-5)
    bandit = paper.bandits(3)["bernoulli-3-1"]
    np.testing.assert_allclose(data.reward_mean[0], np.asarray(bandit.reward_mean, np.float64))
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), np.uint32(zlib.crc32(b"bernoulli-3-1"))), 2)
    run = bj.simulate(bj.KUBE(), bandit, 20, key)
    assert run.rounds[0] == data.rounds.sel(policy="kube", bandit="bernoulli-3-1", budget=20, seed=2)
    again, _ = paper.figure1(out=folder, seed=3, quiet=True)
    assert again.identical(data)
    with pytest.raises(SystemExit) as ended:
        main(["figure1", "--out", str(folder), "--seed", "4", "--quiet"])
    assert ended.value.code == 2 and "runs.zarr" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "named"), [
    (["--instances", "0"], "instances = 0"),
    (["--means", "0", "0.5"], "allows arms that cost nothing"),
    (["--means", "0.7", "0.5"], "means = "),
    (["--scale", "huge"], "invalid choice: 'huge'"),
    (["--seed", "99999999999"], "seed = 99999999999"),
])
def test_bad_input(arguments, named, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["figure1", "--out", str(tmp_path / "out"), *arguments])
    assert ended.value.code == 2 and not (tmp_path / "out").exists()
    assert re.search(named, capsys.readouterr().err)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        paper.figure1(out=tmp_path / "file")


@pytest.mark.parametrize(("change", "named"), [
    (lambda data: data.isel(policy=[0, 2, 3]), "epsilon-first and others"),
    (lambda data: data.isel(seed=[0]), "at least 2"),
    (lambda data: data.isel(bandit=[]), "empty along bandit"),
])
def test_bad_datasets(change, named):
    with pytest.raises(ValueError, match=named):
        paper.observations(change(section5()))
