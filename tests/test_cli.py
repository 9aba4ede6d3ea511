"""The command line, as a user calls it."""

import argparse
import io
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from common import made_up

import bts_jax as bj
from bts_jax import comparison, latex
from bts_jax.cli import COMMANDS, main
from bts_jax.options import parser
from bts_jax.statistics import measured
from bts_jax.tables import grouping, regret_table
from bts_jax.text import ALLOWANCE


def test_run_prints_a_table(capsys):
    main(["run", "--policy", "uniform", "kube", "--arms", "3", "--budget", "30", "--seeds", "130"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("bernoulli bandit, 3 arms") and "130 runs, seed 0" in lines[0]
    assert lines[1].split()[:3] == ["policy", "regret", "pseudo-regret"]
    assert [line.split()[0] for line in lines[2:4]] == ["uniform", "kube"]
    assert err == "", "no bar without a terminal"


@pytest.mark.slow
def test_run_is_reproducible_and_simulates_what_it_says(capsys):
    arguments = [
        "run",
        "--policy",
        "uniform",
        "--bandit",
        "multinomial",
        "--arms",
        "3",
        "--budget",
        "12.5",
        "--seeds",
        "70",
    ]
    main([*arguments, "--seed", "5"])
    row = capsys.readouterr().out.splitlines()[2].split()
    key_bandit, key_runs = jax.random.split(jax.random.key(5))
    bandit = bj.Multinomial.random(key_bandit, 3)
    runs = jax.vmap(lambda key: bj.simulate(bj.Uniform(), bandit, 12.5, key))(
        jax.random.split(key_runs, 70)
    )
    assert row[1] == f"{bj.regret(runs, bandit).mean():,.1f}"
    assert f"{runs.rounds.mean():,.1f}" in row


def test_theory_is_about_the_bandit_that_run_plays(capsys):
    from bts_jax import theory

    main(["theory", "--arms", "4", "--budget", "100", "--seed", "5", "--gamma", "0.5"])
    lines = capsys.readouterr().out.splitlines()
    bandit = bj.Bernoulli.random(jax.random.split(jax.random.key(5))[0], 4)
    assert lines[1].split()[:3] == ["arm", "reward", "cost"]
    assert [int(line.split()[0]) for line in lines[2:6]] == theory.gaps(
        bandit
    ).gap.argsort().tolist()
    bound = theory.bts_bound(bandit, 100, 0.5)
    assert lines[3].split()[-2] == f"{bound.pulls[int(lines[3].split()[0])]:.4g}"
    assert any(f"{bound.regret:,.1f}" in line for line in lines)
    assert any("ρ*B + 0.000" in line or "ρ*B − 0.000" in line for line in lines)

    main(
        [
            "theory",
            "--reward",
            "0.1",
            "0.75",
            "--cost",
            "1",
            "0.5",
            "--budget",
            "2e7",
            "--gamma",
            "0.5",
        ]
    )
    out = capsys.readouterr().out
    assert (
        out.startswith("bernoulli bandit, 2 arms; budget 2e+07\n")
        and "no exact optimum: budgets has 2e+07" in out
    )
    own = bj.Bernoulli(reward=[0.1, 0.75], cost=[1, 0.5])
    assert [line.split()[4] for line in out.splitlines()[2:4]] == [
        "0",
        f"{theory.gaps(own).gap[0]:.4g}",
    ]
    assert f"{theory.lower_bound_slope(own):,.2f}" in out


@pytest.mark.slow
def test_policies_add_up_and_come_once(capsys):
    main(
        [
            "run",
            "--policy",
            "kube",
            "--policy",
            "uniform",
            "kube",
            "--arms",
            "3",
            "--budget",
            "5",
            "--seeds",
            "130",
        ]
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:4]] == [
        "kube",
        "uniform",
    ]


def test_a_reader_that_stops_is_no_error():
    """`python -m` works, too."""
    command = f"{sys.executable} -m bts_jax policies | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("policy") and done.stderr == ""


def test_policies_lists_the_registry(capsys):
    main(["policies"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*bj.POLICIES, *bj.KNAPSACK_POLICIES]
    assert "budget" in lines[2] and "none" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--policy", "thomson"], "unknown policy 'thomson': there are bts, "),
        (["run", "--policy", "kube", "KUBE "], "did you mean 'kube'?"),
        (["run", "--policy", "EpsilonFirst"], "did you mean 'epsilon-first'?"),
        (["run", "--bandit", "bernouli"], "unknown bandit 'bernouli'"),
        (["theory", "--bandit", "bernouli"], "did you mean 'bernoulli'?"),
        (["tabel", "store"], "did you mean 'table'?"),
        (["study", "tail"], "did you mean 'tails'?"),
        (["run", "--reward", "0.5", "0.2"], "give both"),
        (
            ["run", "--reward", "0.5", "0.2", "--cost", "0.5", "0.2", "--arms", "3"],
            "--arms = 3 does not go with --reward",
        ),
        (["run", "--reward", "0.5", "0.2", "--cost", "0.5"], "differ in shape"),
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
    ],
)
def test_bad_input_ends_with_a_message_and_exit_code_2(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert named in err and "Traceback" not in err


def test_import_is_light():
    """Plotting, storage, progress, learning, SciPy and pandas are imported when they are used."""
    code = (
        "import sys\nfor name in 'matplotlib xarray zarr tqdm optax scipy pandas'.split(): "
        "sys.modules[name] = None\n"
        "import bts_jax; assert 'sweep' in dir(bts_jax)\n"
        "try: bts_jax.sweep\nexcept ImportError: print('needed when used')"
    )
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
    assert lines[0] == "mean regret, average over 3 bandits (Bernoulli, 4 arms), 9 runs each"
    values = regret[0, :, 1].mean(-1)  # of each bandit
    assert (
        shown(values, unseen=values.mean() + max(lost[:, 1].mean() - values.mean(), 0) / 9)
        in lines[3]
    )
    assert lines[-1] == f"95% intervals over the 3 bandits: about bandits like these; {ALLOWANCE}"
    assert table(data, "--over", "bandit") == lines
    lines = table(data, "--over", "seed")
    values = regret[0, :, 1].mean(0)
    assert (
        shown(values, unseen=values.mean() + max(lost[:, 1].mean() - values.mean(), 0) / 3)
        in lines[3]
    )
    assert lines[-1] == f"95% intervals over the seeds: about these bandits alone; {ALLOWANCE}"
    assert "over the 3 bandits" in table(data.isel(seed=[0]))[-1], (
        "one run on each: the bandits are the sample"
    )
    lines = table(data, "--statistic", "median", "--by-bandit")
    assert shown(regret[1, 2, 0], "median") in lines[-3] and lines[-1].endswith(
        "over the seeds: about this bandit alone"
    )
    data.regret[0, 1, :, 4] = np.nan
    kept = np.delete(regret[0, :, 1], 4, -1).mean(0)
    assert f"{kept.mean():,.1f} (" in table(data, "--over", "seed")[3], (
        "seeds of which a run is missing are left out"
    )
    assert f"{np.delete(regret[0, :, 1], 1, 0).mean():,.1f} (" in table(data)[3], "and bandits"
    data.regret[0, 1] = np.nan
    assert table(data, "--over", "seed")[3].split()[1] == "-"
    assert "(-∞ … ∞)" in table(data, "--over", "bandit", "--statistic", "median")[3]
    assert any(
        r" \pm \infty$" in line
        for line in table(data, "--over", "bandit", "--statistic", "median", "--latex")
    )


def test_a_table_in_latex(table):
    """An environment to paste: rules of booktabs, captions, labels that differ, and no letter that
    pdflatex cannot set.
    """
    names = ["ε-first", "100% ω*_²"]
    data = made_up(
        np.random.default_rng(0).normal(100, 50, (2, 2, 2, 9)), [10, 1e6], names
    ).assign_attrs(state="1 of 2 chunks")
    data = data.assign_coords(bandit=["Ada & Bob", "ada-bob"])
    lines = table(data, "--latex", "--by", "bandit")
    assert (
        lines[0] == r"% needs \usepackage{booktabs}"
        and lines[-1] == "% 1 of 2 chunks"
        and "\n".join(lines).isascii()
    )
    assert lines[1:3] == [r"\begin{table}", r"  \centering"] and lines[15] == r"\end{table}"
    assert lines[4] == (
        r"  \caption{Mean regret, bandit Ada \& Bob, 9 runs each. 95\% intervals "
        r"over the seeds: about this "
        rf"bandit alone; {ALLOWANCE}.}}"
    )
    assert [line for line in lines if "label" in line] == [
        rf"  \label{{tab:mean-regret-ada-bob-{place}}}" for place in (1, 2)
    ]
    assert lines[7:11] == [
        r"  \begin{tabular}{rrr}",
        r"    \toprule",
        r"    budget & $\varepsilon$-first & 100\% $\omega$$\ast$\_$^{2}$ \\",
        r"    \midrule",
    ]
    assert lines[12].startswith(r"    $1{,}000{,}000$ & $") and lines[13] == r"    \bottomrule"
    assert all(r"\pm" in line or "}_{-" in line for line in lines[11:13])
    assert table(data, "--latex")[5] == r"  \label{tab:mean-regret-bernoulli-4-arms}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((12.34, 10.0, 14.68), r"$12.3 \pm 2.4$"),
        ((12.3, 11.1, 16.8), "$12.3^{+4.5}_{-1.2}$"),
        ((-5, -6, -4), r"$-5.0 \pm 1.0$"),
        ((1, -np.inf, 2), r"$1.0^{+1.0}_{-\infty}$"),
        ((-0.04, -0.3, 0.2), r"$0.0 \pm 0.3$"),
        ((5, np.nan, np.nan), "$5.0$"),
        ((np.nan,) * 3, "--"),
        ((2000, 999.96, 7000), "$2{,}000.0^{+5{,}000.0}_{-1{,}000.1}$"),
    ],
)
def test_intervals_in_latex(found, expected):
    assert latex.estimate(found) == expected


def test_labels_in_latex_differ():
    assert latex.labels("mean", ["ten arms", "2 arms"]) == ["tab:mean-ten-arms", "tab:mean-2-arms"]
    found = latex.labels("mean", ["A", "a", "a 2", "α"])
    assert len({*found}) == 4 and all(re.fullmatch("tab:mean-[a-z0-9-]+", label) for label in found)


def test_an_interval_in_latex_is_never_shorter_than_it_is():
    rng = np.random.default_rng(0)
    for value, below, above in zip(
        rng.uniform(1, 100, 300), *rng.exponential(3, (2, 300)), strict=True
    ):
        numbers = [
            float(x)
            for x in re.findall(r"[\d.]+", latex.estimate((value, value - below, value + above)))
        ]
        printed, up, down = numbers[0], numbers[1], numbers[-1]  # the last two are the same after ±
        assert printed - down <= value - below + 1e-9 and value + above <= printed + up + 1e-9


def test_a_lost_run_moves_no_lower_limit(capsys):
    """Uniform play has more regret than a lost run. The limits are then Student's."""
    main(["run", "--policy", "uniform", "--arms", "3", "--budget", "30", "--seeds", "130"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("uniform"))
    mean, low, high = map(float, re.findall(r"-?[\d.]+", row)[:3])
    assert abs((mean - low) - (high - mean)) < 0.2


def test_a_table_of_one_bandit_has_no_interval_over_bandits(table, capsys):
    data = made_up(np.ones((2, 1, 1, 9)), [10]).assign_attrs(state="complete")
    with pytest.raises(SystemExit) as ended:
        table(data, "--over", "bandit")
    assert ended.value.code == 2 and "give over = 'seed'" in capsys.readouterr().err


def kinds_made_up():
    """Three instances of one kind, one of another."""
    data = made_up(np.random.default_rng(1).normal(100, 50, (2, 4, 2, 9)), [10, 1000]).assign_attrs(
        state="complete"
    )
    return data.assign_coords(family=("bandit", ["Bernoulli"] * 3 + ["Beta"]))


def test_table_ranking_and_plot_agree_about_the_sample(table):
    """The sample is the instances if there are several of a kind, and the runs if there is one."""
    data = kinds_made_up()
    assert grouping(data) == "kind" and grouping(data.isel(bandit=[0, 3])) == "bandit"
    found = regret_table(data)
    over = {"Bernoulli, 4 arms": "bandit", "Beta, 4 arms": "seed"}
    assert found.groupby("bandits", sort=False)["over"].first().to_dict() == over
    ranks = bj.ranking(data.isel(bandit=slice(3)))
    several = found[found.instances == 3].set_index(["policy", "budget"])
    for row, name in (("estimate", "mean"), ("low", "low"), ("high", "high")):
        expected = ranks[name].to_series().reindex(several.index)
        np.testing.assert_allclose(several[row], expected, rtol=1e-12)
    lines = table(data)
    assert sum(line.startswith("mean regret") for line in lines) == 2
    assert [line.split(":")[0] for line in lines if "intervals" in line] == [
        "95% intervals over the 3 bandits",
        "95% intervals over the seeds",
    ]
    assert regret_table(data, by="all").instances.unique() == [4] and regret_table(
        data, by="bandit"
    ).instances.unique() == [1]
    for options, named in (({"by": "family"}, "by = 'family'"), ({"over": "run"}, "over = 'run'")):
        with pytest.raises(ValueError, match=named):
            regret_table(data, **options)


def test_a_table_as_csv(table):
    data = kinds_made_up()
    frame = pd.read_csv(io.StringIO("\n".join(table(data, "--csv"))))
    pd.testing.assert_frame_equal(frame, regret_table(data), check_dtype=False)
    assert (
        list(frame.columns[2:7]) == ["budget", "policy", "estimate", "low", "high"]
        and len(frame) == 8
    )


@pytest.mark.slow
def test_run_prints_each_row_as_it_is_finished(capsys, monkeypatch):
    printed, play = [], comparison.play

    def played(batches):
        printed.append(capsys.readouterr().out)
        return play(batches)

    monkeypatch.setattr(comparison, "play", played)
    arms = ["--reward", "0.5", "0.9", "0.1", "--cost", "0.25", "0.9", "0.5"]
    # The programs of the first test.
    main(["run", "--policy", "uniform", "kube", *arms, "--budget", "30", "--seeds", "130"])
    compiling, second = printed
    assert (
        compiling.startswith("bernoulli bandit, 3 arms, best ratios 2 and 1; ")
        and len(compiling.splitlines()) == 2
    )
    assert second.startswith("uniform  ") and second.endswith("\n")
    head, row = compiling.splitlines()[1], second.splitlines()[0]
    assert [head.rstrip().endswith("truncated"), len(row)] == [True, len(head)], (
        "the columns line up with the head"
    )


def test_compare_is_simulate_batch_in_numbers(capsys):
    bandit, keys = (
        bj.Bernoulli(reward=[0.5, 0.9], cost=[0.25, 0.9]),
        jax.random.split(jax.random.key(1), 70),
    )
    (row,) = bj.compare({"mine": bj.Uniform()}, bandit, 30, keys, quiet=True)
    runs = bj.simulate_batch(bj.Uniform(), bandit, 30, keys)
    for found, expected in zip(jax.tree.leaves(row.runs), jax.tree.leaves(runs), strict=True):
        np.testing.assert_array_equal(found, expected)
    values = 2 * 30 - np.asarray(runs.reward[:, 0], np.float64)
    assert row.policy == "mine" and row.regret == bj.interval(values, unseen=(np.nan, 30.0)), (
        "a lost run loses 2 − 1 per unit"
    )
    assert row.best_arm == np.mean(np.asarray(runs.pulls)[:, 0, 0] / np.asarray(runs.rounds)[:, 0])
    assert (
        row.pulls == np.asarray(runs.rounds).mean()
        and row.truncated == 0
        and row.pulls_per_second > 0
    )
    for policies, given, named in (
        (["kub"], keys, "did you mean 'kube'"),
        (["kube"], keys[0], "keys has shape"),
        (["kube"], keys[:0], "keys has shape"),
    ):
        with pytest.raises(ValueError, match=named):
            bj.compare(policies, bandit, 30, given)


def compared(**policies):
    """Rows of `compare` on two arms, with these numbers of pulls of the worse one in each of 30
    runs. A pull of it loses 1.
    """
    rows = []
    for name, worse in policies.items():
        worse = np.broadcast_to(worse, 30)
        full, pulls = np.full((30, 1), 50.0), np.stack([100 - worse, worse], -1)[:, None]
        run = bj.Run(
            budget=full,
            reward=80.0 - worse[:, None],
            cost=full,
            rounds=2 * full,
            pulls=pulls,
            truncated=full < 0,
        )
        rows.append(comparison.Compared(name, *[None] * 2, 100, 0.5, 0, 0, 0, run))
    return rows


def test_identical_policies_and_those_no_better_than_uniform_are_named(capsys, monkeypatch):
    # Ratios 2 and 6/13: a pull of the second loses 1.
    bandit = bj.Bernoulli(reward=[0.8, 0.3], cost=[0.4, 0.65])
    noise = np.arange(30) % 5
    rows = compared(
        bts=10 + noise, tempered=10 + noise, uniform=50, slow=49 + noise, bad=60, good=40 + noise
    )
    assert comparison.alike(rows) == [["bts", "tempered"]]
    assert comparison.no_better(rows, bandit) == ["slow", "bad"]
    assert comparison.no_better(rows[:2], bandit) == [], (
        "without uniform there is nothing to compare with"
    )
    monkeypatch.setattr(
        comparison, "alike", lambda rows: [["uniform", "oracle"]] if len(rows) == 1 else []
    )
    monkeypatch.setattr(comparison, "no_better", lambda rows, bandit: ["kube"])
    # The program of the first test.
    main(["run", "--policy", "uniform", "--arms", "3", "--budget", "30", "--seeds", "130"])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the same runs: uniform, oracle (with these settings, they make the same decisions on such "
        "arms)",
        "not clearly better than uniform here: kube (95% interval of the difference of "
        "pseudo-regrets)",
    ]


def test_names_in_python_are_suggested():
    with pytest.raises(ValueError, match=r"policies has 'kub', .*; did you mean 'kube'\?"):
        bj.sweep(["kub"], {"two": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])}, [10], 2)


def test_every_command_has_a_description_and_examples_that_work():
    commands = next(
        action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    ).choices
    assert set(commands) == set(COMMANDS)
    for name, command in commands.items():
        shown = command.format_help().partition("\n\n")[2].split()
        assert command.description.endswith(".") and shown[:9] == command.description.split()[:9]
        first, *examples = command.epilog.split("\n")
        assert first in ("example:", "examples:") and examples
        for example in examples:
            words = shlex.split(example.partition(" > ")[0])
            assert words[:2] == ["bts-jax", name] and parser().parse_args(words[1:]).command == name
            assert example in command.format_help(), "as it is written"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bj.sweep(
        ["uniform"],
        {"two": bj.Bernoulli(reward=[0.9, 0.5], cost=[0.5, 0.5])},
        [5, 10],
        2,
        out=tmp_path / "runs.zarr",
    )
    return tmp_path


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_no_file_is_overwritten_without_being_asked(store, capsys):
    (store / "a.png").write_text("mine")
    err = refused(["plot", "runs.zarr", "--out", "a.png"], capsys)
    assert "'a.png' exists" in err and "--force" in err and (store / "a.png").read_text() == "mine"
    main(["plot", "runs.zarr", "--out", "a.png", "--force"])
    assert (store / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_grid_file_in_place_of_a_store(store, capsys):
    (store / "runs.toml").write_text("num_seeds = 3")
    (store / "other.toml").write_text("num_seeds = 3")
    for arguments in (
        ["table", "runs.toml"],
        ["plot", "runs.toml"],
        ["sweep", "--resume", "runs.toml"],
    ):
        err = refused(arguments, capsys)
        assert (
            "'runs.toml' is not a store but a grid file" in err
            and "'runs.zarr'" in err
            and "makes it" not in err
        )
    assert "bts-jax sweep other.toml makes it" in refused(["table", "other.toml"], capsys)


@pytest.mark.parametrize("command", [["figure1"], ["study", "tails"]])
def test_another_seed_is_refused_at_once(command, store, capsys, monkeypatch):
    def play(*_, **__):
        raise AssertionError("this takes long")

    monkeypatch.setattr("bts_jax.experiments.figure1.figure1", play)
    monkeypatch.setattr("bts_jax.experiments.study", play)
    err = refused([*command, "--seed", "1", "--out", str(store)], capsys)
    assert "0 in the store" in err and "1 asked for" in err and "--out" in err
    with pytest.raises(AssertionError, match="this takes long"):
        main([*command, "--seed", "0", "--out", str(store)])
