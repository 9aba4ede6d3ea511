"""Policies and bandits of one's own, named as "module:Class" in files and arguments."""

import json
import sys
from itertools import count
from pathlib import Path

import jax
import numpy as np
import pytest

import bts_jax as bj
from bts_jax.cli import main
from bts_jax.sweeps import classes, gridfile, specification
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.results import Results

NUMBERS = count()
MODULE = '''
import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class Turns:
    """Pulls all arms in turn, `start` first."""
    start: int = 0

    def init(self, problem):
        return jnp.int32(self.start), jnp.zeros(problem.num_arms)

    def __call__(self, state, key):
        return state[0], state

    def update(self, state, arm, reward, cost, key):
        return (arm + 1) % len(state[1]), state[1]


@chex.dataclass(frozen=True)
class Sure:
    """Arms that always earn and cost the same; nothing beyond the contract, and one way to draw them."""
    earns: jax.Array
    costs: jax.Array

    @property
    def reward_mean(self):
        return self.earns

    @property
    def cost_mean(self):
        return self.costs

    def pull(self, key, arm):
        return self.earns[arm], self.costs[arm]

    @classmethod
    def random(cls, key, num_arms=3, low=0.5):
        return cls(earns=jax.random.uniform(key, (num_arms,)), costs=jnp.full(num_arms, low))


@chex.dataclass(frozen=True)
class Fixed:
    """Two arms, without a way to draw others."""
    costs: float = 0.5

    @property
    def reward_mean(self):
        return jnp.array([0.5, 0.25])

    @property
    def cost_mean(self):
        return jnp.array([self.costs, self.costs])

    def pull(self, key, arm):
        return self.reward_mean[arm], self.cost_mean[arm]


@chex.dataclass(frozen=True)
class Needy:
    more: float

    def __post_init__(self):
        if self.more > 1:
            raise ZeroDivisionError("too much")  # LINE

    init = __call__ = update = None


class Wrong:
    init = None


number = 3
'''  # noqa: E501
GRID = """
num_seeds = 2
budgets = [2, 6]
policies.mine = {kind = "MODULE:Turns", start = 1}
policies.kube.kind = "kube"
bandits.sure = {kind = "MODULE:Sure", earns = [0.25, 0.75, 1.0], costs = [0.5, 0.5, 0.5]}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    yield name
    sys.modules.pop(name, None)


def write(name, text):
    with open(f"{name}.toml", "w") as file:
        file.write(text.replace("MODULE", name))
    return f"{name}.toml"


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_a_class_is_found_in_a_folder_which_python_does_not_search_afterwards(
    module, tmp_path, monkeypatch
):
    monkeypatch.chdir("/")
    before = list(sys.path)
    found = classes.find(f"{module}:Turns", "policy", folder=tmp_path)
    assert found.__name__ == "Turns" and found.__module__ == module and sys.path == before
    assert classes.find("bts_jax.bandits.beta:Beta", "bandit") is bj.Beta


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        (
            "nowhere_at_all:Turns",
            "policy",
            r"there is no module 'nowhere_at_all' in .*put the file "
            r"there",
        ),
        ("MODULE.inner:Turns", "policy", "importing 'own_.*' failed|there is no module"),
        ("MODULE:Turn", "policy", r"MODULE.py\) has no class 'Turn'.*did you mean 'Turns'"),
        ("MODULE:number", "policy", "not a class, named 'number'"),
        (
            "MODULE:Wrong",
            "policy",
            r"is not a policy \(no __call__, update\): add the members that "
            r"bts_jax.contract lists",
        ),
        ("MODULE:Turns", "bandit", r"is not a bandit \(no pull\)"),
        ("MODULE:Wrong", None, r"is not a policy \(no .*\) or a bandit \(no pull\)"),
        ("MODULE:", "policy", "does not name a class: .*my_module:MyPolicy"),
        ("../MODULE:Turns", "bandit", "does not name a class: .*my_module:MyBandit"),
    ],
)
def test_what_is_no_class_of_ones_own(text, kind, named, module):
    with pytest.raises(ValueError, match=named.replace("MODULE", module)) as caught:
        classes.find(text.replace("MODULE", module), kind, where="--policy")
    assert str(caught.value).startswith("--policy = ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("\n1 / 0\n", r"failed, ZeroDivisionError: division by zero \(.*MODULE.py, line 2\)"),
        ("\n\ndef f(:\n", r"failed, SyntaxError: .*MODULE.py, line 3\)"),
        (
            "import absent_dependency",
            r"failed, ModuleNotFoundError: No module named "
            r"'absent_dependency' \(.*MODULE.py, line 1\)",
        ),
        ("import sys; sys.exit(3)", r"failed, SystemExit: 3 \(.*MODULE.py, line 1\)"),
        ("import json\njson.loads('{')", r"failed, JSONDecodeError: .*MODULE.py, line 2\)"),
    ],
)
def test_an_error_in_the_users_module_says_where_it_is(code, named, module, tmp_path):
    (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(ValueError, match=named.replace("MODULE", module)):
        classes.find(f"{module}:Turns", "policy")


def test_a_file_with_the_name_of_a_loaded_module_is_not_mistaken_for_it(tmp_path):
    (tmp_path / "json.py").write_text("class Turns: pass")
    with pytest.raises(
        ValueError,
        match=r"json.py' has the name of a module that is loaded "
        r"already",
    ):
        classes.find("json:JSONDecoder", folder=tmp_path)


@pytest.mark.slow
def test_a_grid_file_with_classes_of_ones_own(module, monkeypatch, tmp_path):
    """User classes of policies and bandits, random ones, and one inside a built-in class; from
    another folder.
    """
    file = write(
        module,
        GRID
        + """
bandits.drawn = {kind = "MODULE:Sure", random = {num_arms = 2, instances = 2, low = 0.25}}
bandits.half = {kind = "scaled", scale = 0.5, bandit = {kind = "MODULE:Sure", earns = [1, 0], costs = [0.5, 0.5]}}
""",  # noqa: E501
    )
    monkeypatch.chdir("/")
    arguments = gridfile.read_toml(tmp_path / file)
    bandits = arguments["bandits"]
    assert (
        list(bandits) == ["sure", "drawn-0", "drawn-1", "half"]
        and arguments["policies"]["mine"].start == 1
    )
    assert isinstance(bandits["sure"].earns, jax.Array) and bandits["sure"].earns.tolist() == [
        0.25,
        0.75,
        1.0,
    ]
    key = jax.random.fold_in(jax.random.key(0), 1)
    assert (bandits["drawn-1"].earns == jax.random.uniform(key, (2,))).all() and bandits[
        "drawn-1"
    ].costs[0] == 0.25
    assert bandits["half"].cost_mean.tolist() == [0.25, 0.25]
    del (
        arguments["policies"]["kube"],
        arguments["bandits"]["drawn-0"],
        arguments["bandits"]["drawn-1"],
    )
    results = bj.sweep(**arguments)
    assert (
        results.pulls.sel(policy="mine", bandit="sure", budget=2).values.tolist() == [[1, 2, 1]] * 2
    ), "arm 1 first, 4 pulls"
    assert (
        results.reward.sel(policy="mine", bandit="sure", budget=2).values.tolist()
        == [0.75 + 1 + 0.25 + 0.75] * 2
    )
    assert (
        results.pulls.sel(policy="mine", bandit="half", budget=2).values.tolist() == [[4, 4, 0]] * 2
    )


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "start = 1",
            "strat = 1",
            "unknown key 'strat' in policies.mine: there are start; did you mean 'start'?",
        ),
        (
            "MODULE:Turns",
            "MODULE:Sure",
            "policies.mine.kind = 'MODULE:Sure' is not a policy (no init, __call__, update)",
        ),
        (
            'MODULE:Turns", start = 1',
            'MODULE:Needy", more = 2',
            "policies.mine: ZeroDivisionError: too much",
        ),
        ('MODULE:Turns", start = 1', 'MODULE:Needy"', "the key 'more' is missing in policies.mine"),
        (
            "earns = [0.25, 0.75, 1.0], costs = [0.5, 0.5, 0.5]",
            "random = {arms = 3}",
            "unknown key 'arms' in bandits.sure.random: there are num_arms, low, instances, seed; "
            "did you mean 'num_arms'?",
        ),
        ("costs = [0.5, 0.5, 0.5]", 'costs = [0.5, "x"]', "bandits['sure']"),
        (
            'kind = "kube"',
            'kind = "kub"',
            "a class of your own is 'my_module:MyPolicy'; did you mean 'kube'?",
        ),
    ],
)
def test_a_bad_grid_file_with_classes_of_ones_own(old, new, named, module, capsys):
    assert old in GRID
    err = refused(["sweep", write(module, GRID.replace(old, new))], capsys)
    assert named.replace("MODULE", module) in err
    if "ZeroDivision" in named:
        line = 1 + MODULE[: MODULE.index("# LINE")].count("\n")
        assert f"{module}.py, line {line})" in err


@pytest.mark.slow
def test_a_store_asks_for_no_import_but_the_user_may(module, capsys, monkeypatch):
    file, store = write(module, GRID), f"{module}.zarr"
    main(["sweep", file])
    first = bj.open_results(store)
    sys.modules.pop(module)
    err = refused(["sweep", "--resume", store], capsys)
    assert (
        "policies['mine'] is a Turns, which is not built in: go on with bts-jax sweep grid.toml "
        "--out STORE" in err
    )
    assert "--import my_module:Turns" in err and module not in sys.modules
    assert "bandits['sure'] is a Sure" in refused(
        ["sweep", "--resume", store, "--import", f"{module}:Turns"], capsys
    )
    played = []
    put = Results.put
    monkeypatch.setattr(
        Results, "put", lambda self, chunk, values: (played.append(chunk), put(self, chunk, values))
    )
    main(["sweep", "--resume", store, "--import", f"{module}:Turns", f"{module}:Sure"])
    assert not played
    for chunk in Path(store, "checksum").glob("c*"):
        chunk.unlink()
    main(["sweep", "--resume", store, "--import", f"{module}:Turns", "--import", f"{module}:Sure"])
    assert played and bj.open_results(store).drop_attrs().identical(first.drop_attrs())
    assert "is only for --resume" in refused(["sweep", file, "--import", f"{module}:Turns"], capsys)
    assert "does not name a class" in refused(
        ["sweep", "--resume", store, "--import", "Turns"], capsys
    )


def test_what_cannot_be_made_from_a_store(module):
    """A class that has changed, and a built-in class that contains a user's class."""
    file = write(
        module,
        GRID + 'bandits.half = {kind = "scaled", scale = 0.5, bandit = {kind = '
        '"MODULE:Sure", earns = [1, 0], '
        "costs = [0.5, 0.5]}}\n",
    )
    arguments = gridfile.read_toml(file)
    described = json.loads(Grid(**arguments, seed=0).attributes()["specification"])
    own = classes.by_name([f"{module}:Turns", f"{module}:Sure"])
    with pytest.raises(
        ValueError,
        match=r"bandits\['half'\] is a Scaled, which has a part of a "
        r"class of your own: go on with",
    ):
        specification.arguments(described, bj.POLICIES, bj.BANDITS, own)
    del described["bandits"]["half"]
    made = specification.arguments(described, bj.POLICIES, bj.BANDITS, own)
    assert made["policies"]["mine"].start == 1 and made["budgets"] == [2, 6]
    assert jax.tree.structure(made["bandits"]) == jax.tree.structure(
        {"sure": arguments["bandits"]["sure"]}
    )
    assert (made["bandits"]["sure"].earns == arguments["bandits"]["sure"].earns).all()
    described["policies"]["mine"]["fields"] = {"strat": 1}
    with pytest.raises(ValueError, match=r"policies\['mine'\]: .*strat"):
        specification.arguments(described, bj.POLICIES, bj.BANDITS, own)
    described["policies"]["mine"] |= {"fields": {}, "structure": "PyTreeDef(*)"}
    with pytest.raises(
        ValueError,
        match=r"policies\['mine'\] is a Turns with settings that are "
        r"not numbers, or with other",
    ):
        specification.arguments(described, bj.POLICIES, bj.BANDITS, own)


@pytest.mark.slow
def test_run_with_classes_of_ones_own(module, capsys):
    """A bandit needs only the contract. It is drawn at random if its class has `random`, and
    created directly otherwise.
    """
    main(
        [
            "run",
            "--policy",
            f"{module}:Turns",
            "--bandit",
            f"{module}:Sure",
            "--arms",
            "2",
            "--budget",
            "4",
            "--seeds",
            "3",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    earns = jax.random.uniform(jax.random.split(jax.random.key(0))[0], (2,))
    most, least = 2 * float(max(earns)), 2 * float(min(earns))
    assert lines[0].startswith(f"{module}:Sure, 2 arms, best ratios {most:.4g} and {least:.4g}; ")
    row = lines[2].split()
    assert (
        row[0] == f"{module}:Turns"
        and row[1] == f"{8 * float(max(earns)) - 4 * float(sum(earns)):,.1f}"
    )
    assert "8.0" in row and "50.0%" in row, "eight pulls at 0.5, half of them of the best arm"
    main(
        [
            "run",
            "--policy",
            f"{module}:Turns",
            "--bandit",
            f"{module}:Fixed",
            "--budget",
            "4",
            "--seeds",
            "1",
        ]
    )
    out = capsys.readouterr().out
    assert (
        out.startswith(f"{module}:Fixed, 2 arms, best ratios 1 and 0.5; ")
        and out.splitlines()[2].split()[1] == "1.0"
    )
    main(["theory", "--bandit", f"{module}:Fixed", "--budget", "100"])
    assert capsys.readouterr().out.startswith(f"{module}:Fixed, 2 arms, seed 0; budget 100\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["--policy", "MODULE:Needy"],
            "--policy = 'MODULE:Needy' has no default for more: give it one in the class",
        ),
        (["--policy", "MODULE:Sure"], "--policy = 'MODULE:Sure' is not a policy"),
        (["--bandit", "MODULE:Turns"], "--bandit = 'MODULE:Turns' is not a bandit (no pull)"),
        (
            ["--bandit", "MODULE:Fixed", "--arms", "3"],
            "--arms = 3 is for random arms, and Fixed has no class method random",
        ),
        (["--bandit", "MODULE:Sure", "--arms", "1"], "give at least 2 arms"),
        (["--bandit", "absent_module:Arms"], "there is no module 'absent_module'"),
    ],
)
def test_run_refuses_what_is_no_class_of_ones_own(arguments, named, module, capsys):
    err = refused(["run", *(argument.replace("MODULE", module) for argument in arguments)], capsys)
    assert named.replace("MODULE", module) in err


def test_lists_become_arrays_where_they_are_leaves():
    made = classes.arrays({"a": [0.5, 1], "b": [[1, 2], [3, 4]], "c": 2.0, "d": [[1], [2, 3]]})
    assert (
        made["a"].dtype == np.float32
        and made["b"].shape == (2, 2)
        and made["c"] == 2.0
        and isinstance(made["d"], list)
    )
