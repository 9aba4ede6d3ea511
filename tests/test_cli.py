"""The command line, as a user calls it."""

import re
import subprocess
import sys

import numpy as np
import pytest
from common import made_up

import bts_jax as bj
from bts_jax.cli import main
from bts_jax.statistics import measured
from bts_jax.text import ALLOWANCE


def test_run_prints_a_table(capsys):
    main(["run", "--policy", "uniform", "kube", "--arms", "3", "--budget", "30", "--seeds", "130"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("bernoulli bandit, 3 arms") and "130 runs, seed 0" in lines[0]
    assert lines[1].split()[:3] == ["policy", "regret", "pseudo-regret"]
    assert [line.split()[0] for line in lines[2:4]] == ["uniform", "kube"]
    assert err == "", "no bar without a terminal"


def test_run_is_reproducible_and_simulates_what_it_says(capsys):
    import jax

    arguments = ["run", "--policy", "uniform", "--bandit", "multinomial", "--arms", "3", "--budget", "12.5", "--seeds", "70"]
    main([*arguments, "--seed", "5"])
    row = capsys.readouterr().out.splitlines()[2].split()
    key_bandit, key_runs = jax.random.split(jax.random.key(5))
    bandit = bj.Multinomial.random(key_bandit, 3)
    runs = jax.vmap(lambda key: bj.simulate(bj.Uniform(), bandit, 12.5, key))(jax.random.split(key_runs, 70))
    assert row[1] == f"{bj.regret(runs, bandit).mean():,.1f}"
    assert f"{runs.rounds.mean():,.1f}" in row


def test_theory_is_about_the_bandit_that_run_plays(capsys):
    import jax

    from bts_jax import theory

    main(["theory", "--arms", "4", "--budget", "100", "--seed", "5", "--gamma", "0.5"])
    lines = capsys.readouterr().out.splitlines()
    bandit = bj.Bernoulli.random(jax.random.split(jax.random.key(5))[0], 4)
    assert lines[1].split()[:3] == ["arm", "reward", "cost"]
    assert [int(line.split()[0]) for line in lines[2:6]] == theory.gaps(bandit).gap.argsort().tolist()
    bound = theory.bts_bound(bandit, 100, 0.5)
    assert lines[3].split()[-2] == f"{bound.pulls[int(lines[3].split()[0])]:.4g}"
    assert any(f"{bound.regret:,.1f}" in line for line in lines)
    assert any("ρ*B + 0.000" in line or "ρ*B − 0.000" in line for line in lines)

    main(["theory", "--reward", "0.1", "0.75", "--cost", "1", "0.5", "--budget", "2e7", "--gamma", "0.5"])
    out = capsys.readouterr().out
    assert out.startswith("bernoulli bandit, 2 arms; budget 2e+07\n") and "no exact optimum: budgets has 2e+07" in out
    own = bj.Bernoulli(reward=[0.1, 0.75], cost=[1, 0.5])
    assert [line.split()[4] for line in out.splitlines()[2:4]] == ["0", f"{theory.gaps(own).gap[0]:.4g}"]
    assert f"{theory.lower_bound_slope(own):,.2f}" in out


def test_policies_add_up_and_come_once(capsys):
    main(["run", "--policy", "kube", "--policy", "uniform", "kube", "--arms", "3", "--budget", "5", "--seeds", "3"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:4]] == ["kube", "uniform"]


def test_a_reader_that_stops_is_no_error():
    """And `python -m` works."""
    command = f"{sys.executable} -m bts_jax policies | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("policy") and done.stderr == ""


def test_policies_lists_the_registry(capsys):
    main(["policies"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(bj.POLICIES)
    assert "budget" in lines[2] and "nothing" in lines[1]


@pytest.mark.parametrize(("arguments", "named"), [
    (["run", "--policy", "thomson"], "invalid choice: 'thomson'"),
    (["run", "--bandit", "beta-max"], "invalid choice: 'beta-max'"),
    (["run", "--arms", "1"], "num_arms = 1"),
    (["run", "--budget", "-5"], "budget = -5"),
    (["run", "--budget", "nan"], "budget = nan"),
    (["run", "--budget", "much"], "invalid float value: 'much'"),
    (["run", "--seeds", "0"], "--seeds = 0"),
    (["run", "--seed", "99999999999"], "--seed = 99999999999"),
    (["theory", "--gamma", "1"], "gamma = 1.0"),
    (["theory", "--reward", "0.5", "0.2"], "give both"),
    (["theory", "--budget", "2"], "budget = 2"),
    (["theory", "--seed", "99999999999"], "--seed = 99999999999"),
    ([], "COMMAND"),
])
def test_bad_input_ends_with_a_message_and_exit_code_2(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert named in err and "Traceback" not in err


def test_import_is_light():
    """Plotting, storage, progress, learning, SciPy and pandas are imported when they are used."""
    code = ("import sys\nfor name in 'matplotlib xarray zarr tqdm optax scipy pandas'.split(): sys.modules[name] = None\n"
            "import bts_jax; assert 'sweep' in dir(bts_jax)\n"
            "try: bts_jax.sweep\nexcept ImportError: print('needed when used')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "needed when used\n"


@pytest.fixture
def table(monkeypatch, capsys):
    """The lines that `bts-jax table` prints of a Dataset."""
    def lines(dataset, *options):
        monkeypatch.setattr("bts_jax.sweeps.opening.open_results", lambda _: dataset)
        main(["table", "store", *options])
        return capsys.readouterr().out.splitlines()

    return lines


def shown(values, statistic="mean", **options):
    estimate, low, high = bj.interval(values, statistic=statistic, **options)
    return f"{estimate:,.1f} ({low:,.1f} … {high:,.1f})"


def test_the_table_says_what_its_intervals_are_over(table):
    regret = np.random.default_rng(0).normal(100, 50, (2, 3, 2, 9))
    data = made_up(regret, [10, 1000]).assign_attrs(state="complete")
    lost = measured(data).lost_run.values
    lines = table(data)
    assert lines[0] == "mean regret, average over 3 bandits, 9 runs each"
    values = regret[0, :, 1].mean(0)  # of each seed
    assert shown(values, unseen=values.mean() + max(lost[:, 1].mean() - values.mean(), 0) / 3) in lines[3]
    assert lines[-1] == f"95% intervals over the seeds: about these bandits alone; {ALLOWANCE}"
    lines = table(data, "--over", "bandit")
    values = regret[0, :, 1].mean(-1)
    assert shown(values, unseen=values.mean() + max(lost[:, 1].mean() - values.mean(), 0) / 9) in lines[3]
    assert lines[-1] == f"95% intervals over the 3 bandits: about bandits like these; {ALLOWANCE}"
    assert "over the 3 bandits" in table(data.isel(seed=[0]))[-1], "one run on each: the bandits are the sample"
    lines = table(data, "--statistic", "median", "--by-bandit")
    assert shown(regret[1, 2, 0], "median") in lines[-3] and lines[-1].endswith("about these bandits alone")
    data.regret[0, 1, :, 4] = np.nan
    kept = np.delete(regret[0, :, 1], 4, -1).mean(0)
    assert f"{kept.mean():,.1f} (" in table(data)[3], "seeds of which a run is missing are left out"
    assert f"{np.delete(regret[0, :, 1], 1, 0).mean():,.1f} (" in table(data, "--over", "bandit")[3], "and bandits"
    data.regret[0, 1] = np.nan
    assert table(data)[3].split()[1] == "-"
    assert "(-∞ … ∞)" in table(data, "--over", "bandit", "--statistic", "median")[3]
    assert r"\infty" in table(data, "--over", "bandit", "--statistic", "median", "--latex")[4]


def test_a_lost_run_moves_no_lower_limit(capsys):
    """Uniform play has more regret than a lost run: the limits are then Student's."""
    main(["run", "--policy", "uniform", "--arms", "3", "--budget", "30", "--seeds", "130"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("uniform"))
    mean, low, high = map(float, re.findall(r"-?[\d.]+", row)[:3])
    assert abs((mean - low) - (high - mean)) < 0.2


def test_a_table_of_one_bandit_has_no_interval_over_bandits(table, capsys):
    data = made_up(np.ones((2, 1, 1, 9)), [10]).assign_attrs(state="complete")
    with pytest.raises(SystemExit) as ended:
        table(data, "--over", "bandit")
    assert ended.value.code == 2 and "--over seed" in capsys.readouterr().err
