"""Daily tasks of a researcher, as a user writes them: each works in a few lines. Imports and blank lines do not count.

Adding to a finished store (`test_growth.test_task_j`) is one more.
"""

import jax
import matplotlib.figure
import numpy as np
import pytest

import bts_jax as bj
from bts_jax import plots
from bts_jax.cli import main
from bts_jax.pytrees import pytree


def run(code, lines, **names):
    """Runs a user's code, which has at most so many lines."""
    assert sum(bool(line.strip()) for line in code.splitlines()) <= lines
    names |= {"bj": bj, "jax": jax, "np": np, "plots": plots}
    exec(code, names)
    return names


@pytree
class Tuned(bj.Uniform):
    """A policy with two hyperparameters that compiles fast."""

    scale: float = 1.0
    epsilon: float = 0.1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_regret_curves_over_random_instances(folder):
    run("""
bandits = {f"{i}": bj.Bernoulli.random(jax.random.key(i), 3) for i in range(50)}
results = bj.sweep(["kube", "epsilon-first", "uniform", "oracle"], bandits, budgets=[5, 10], num_seeds=2)
plots.regret(results, panel="all").savefig("regret.pdf")
""", 8)
    assert (folder / "regret.pdf").read_bytes().startswith(b"%PDF")


MINE = """
import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class Greedy:
    bonus: float = 0.1

    def init(self, problem):
        return jnp.ones((2, problem.num_arms))

    def __call__(self, state, key):
        scores = state[0] / state[1] + self.bonus * jax.random.uniform(key, state[0].shape)
        return jnp.argmax(scores), state

    def update(self, state, arm, reward, cost, key):
        return state.at[:, arm].add(jnp.stack([reward, cost]))


@chex.dataclass(frozen=True)
class Coins:
    reward_mean: jax.Array
    cost_mean: jax.Array

    def pull(self, key, arm):
        key_reward, key_cost = jax.random.split(key)
        reward = jax.random.bernoulli(key_reward, self.reward_mean[arm])
        return reward.astype(float), jax.random.bernoulli(key_cost, self.cost_mean[arm]).astype(float)
"""
GRID = """
num_seeds = 3
budgets = [5, 10]
[policies.greedy]
kind = "mine_of_task_b:Greedy"
bonus = 0.2
[bandits.coins]
kind = "mine_of_task_b:Coins"
reward_mean = [0.2, 0.8]
cost_mean = [0.5, 0.5]
"""


@pytest.mark.slow
def test_b_a_policy_and_arms_of_ones_own(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    (folder / "mine_of_task_b.py").write_text(MINE)
    (folder / "grid.toml").write_text(GRID)
    assert len([line for line in MINE.splitlines() if line.strip()]) <= 38 and len(GRID.strip().splitlines()) <= 12
    from mine_of_task_b import Coins, Greedy

    results = run("""
coins = Coins(reward_mean=np.array([0.2, 0.8], np.float32), cost_mean=np.array([0.5, 0.5], np.float32))
results = bj.sweep({"greedy": Greedy(bonus=0.2)}, {"coins": coins}, budgets=[5, 10], num_seeds=3)
""", 2, Greedy=Greedy, Coins=Coins)["results"]
    main(["sweep", "grid.toml", "--quiet"])
    capsys.readouterr()
    assert bj.open_results("grid.zarr").drop_attrs().equals(results.drop_attrs())


def test_c_a_trace_and_its_figure():
    names = run("""
bandit = bj.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])
trace = bj.trace(bj.KUBE(), bandit, 20, jax.random.key(0), record=lambda state: state.reward_mean / state.cost_mean)
figure = plots.run(trace)
""", 3)
    assert isinstance(names["figure"], matplotlib.figure.Figure) and names["trace"].played.any()


@pytest.mark.slow
def test_d_a_heat_map_over_two_hyperparameters():
    names = run("""
grid = [(scale, epsilon) for scale in np.geomspace(0.1, 2, 10) for epsilon in np.linspace(0.05, 0.5, 10)]
policies = {f"{scale:.2f}, {epsilon:.2f}": Tuned(scale=scale, epsilon=epsilon) for scale, epsilon in grid}
bandits = {f"{i}": bj.Bernoulli.random(jax.random.key(i), 3) for i in range(5)}
results = bj.sweep(policies, bandits, budgets=[10], num_seeds=2)
figure = plots.heatmap(results, "scale", "epsilon")
""", 6, Tuned=Tuned)
    assert names["results"].scale.shape == (100,) and isinstance(names["figure"], matplotlib.figure.Figure)


def test_e_to_pandas():
    results = bj.sweep(["uniform", "oracle"], {"two": bj.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])}, [5, 10], 3)
    frame = run("""
frame = results[["regret", "reward"]].to_dataframe().reset_index()
means = frame.groupby(["policy", "budget"]).regret.mean()
""", 2, results=results)
    assert len(frame["frame"]) == 2 * 2 * 3
    np.testing.assert_allclose(frame["means"]["uniform", 10], results.regret.sel(policy="uniform", budget=10).mean())


@pytest.mark.slow
def test_f_arms_from_a_table_in_money(folder):
    rows = ["ad,clicks,price"] + [f"A,{i % 2},4" for i in range(10)] + [f"B,{1 + i % 2},5" for i in range(10)]
    (folder / "ads.csv").write_text("\n".join(rows))
    names = run("""
bandit = bj.Empirical.load("ads.csv", arm="ad", reward="clicks", cost="price")
run = bj.simulate(bj.Oracle(), bandit, budget=100, key=jax.random.key(0))
""", 2)
    assert names["run"].rounds.item() == 20 and names["run"].cost.item() == 100
    np.testing.assert_allclose(names["bandit"].ratio, [0.5 / 4, 1.5 / 5], rtol=1e-6)
    results = bj.sweep(["oracle"], {"ads": names["bandit"]}, [50, 100], 2)
    assert results.arm.values.tolist() == ["A", "B"] and results.pulls.sel(arm="B", budget=100).values.tolist() == [[[20, 20]]]


def test_g_two_local_processes(folder, capsys):
    (folder / "grid.toml").write_text("""
num_seeds = 4
budgets = [5, 10]
[policies.uniform]
kind = "uniform"
[bandits]
two = { kind = "bernoulli", reward = [0.5, 0.9], cost = [0.3, 0.8] }
three = { kind = "bernoulli", reward = [0.5, 0.9, 0.1], cost = [0.3, 0.8, 0.2] }
""")
    for command in ("sweep grid.toml --shard 1/2 --quiet", "sweep grid.toml --shard 2/2 --quiet"):
        main(command.split())
    assert bj.open_results("grid.zarr").attrs["state"] == "complete" and "grid.zarr" in capsys.readouterr().out


def test_h_costs_above_one():
    bandit = run("bandit = bj.Scaled(bj.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8]), scale=5)", 1)["bandit"]
    np.testing.assert_allclose(bandit.cost_mean, [1.5, 4.0], rtol=1e-6)
    assert bj.simulate(bj.Uniform(), bandit, 20, jax.random.key(0)).rounds.item() < 40


@pytest.mark.slow
def test_i_rounds_instead_of_a_budget():
    bandits = {"two": bj.Bernoulli(reward=[0.5, 0.9], cost=[0.3, 0.8])}
    results = run('results = bj.sweep(["uniform", "kube"], bandits, rounds=[10, 1000], num_seeds=2)', 1,
                  bandits=bandits)["results"]
    assert (results.pulls.sum("arm").sel(budget=1000) == 1000).all() and results.pseudo_regret.notnull().all()
