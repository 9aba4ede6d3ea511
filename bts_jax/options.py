"""The parser of the command line: commands, their options, and their help."""

import argparse
from collections.abc import Callable
from typing import Any

from bts_jax._version import __version__
from bts_jax.bandits import BANDITS
from bts_jax.names import suggestion
from bts_jax.policies import ALL_POLICIES
from bts_jax.sweeps import classes
from bts_jax.text import shown

# Commands that cache compiled programs; bench measures compilation.
PLAYING = ("run", "sweep", "figure1", "study")


class Formatter(argparse.HelpFormatter):
    """Formats help: descriptions are wrapped, and examples stay as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser that suggests a name if one is unknown."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, formatter_class=Formatter, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message = f"{error.message}{suggestion(value, map(str, action.choices or ()))}"
            raise


def name_in(registry: Any, what: str, *more: str) -> Callable[[str], str]:
    """Returns a type of argument: a name in the registry, or "module:Class", which is imported
    later.
    """

    def name(text: str) -> str:
        if text in registry or text in more or classes.is_name(text):
            return text
        known = [*registry, *more]
        raise argparse.ArgumentTypeError(
            f"unknown {what} {shown(text)}: there are {', '.join(known)}; a class of your own is "
            f"{classes.EXAMPLE[what]}{suggestion(text, known)}"
        )

    return name


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. The attribute `command` of its result is the name of the
    command.
    """
    result = Parser(
        prog="bts-jax",
        description="Budgeted multi-armed bandits in JAX.",
        epilog="bts-jax COMMAND --help describes a command, with an example.",
    )
    result.add_argument("--version", action="version", version=f"bts-jax {__version__}")
    commands = result.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
        lines = examples.strip().split("\n")
        epilog = "\n  ".join(["example:" if len(lines) == 1 else "examples:", *lines])
        added = commands.add_parser(
            name, help=summary, description=description.strip(), epilog=epilog
        )
        added.set_defaults(command=name)
        return added

    run = add(
        "run",
        "play policies on a bandit and print a table",
        """
Plays policies on one bandit, with common random numbers, and prints a row for each as soon as it is
finished: mean regret and its 95% interval, pulls, and times. "compile s" is how long the policy
waited until its program was compiled. While one policy plays, the programs of the next are
compiled. The bandit is drawn at random, or given by --reward and --cost.
""",
        """
bts-jax run --policy bts kube --arms 10 --budget 1000
bts-jax run --policy all --reward 0.5 0.9 --cost 0.3 0.8
bts-jax run --policy all --bandit timed --budget 500
bts-jax run --policy bts my_module:MyPolicy --bandit my_module:MyBandit""",
    )
    run.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        type=name_in(ALL_POLICIES, "policy", "all"),
        metavar="NAME",
        help=f"one or several of {', '.join(ALL_POLICIES)}; or all that are made "
        "for the bandit's number of resources (default: bts, or knapsack-bts for several "
        "resources); or classes of your own, as my_module:MyPolicy, with their default settings",
    )
    add_bandit(run)
    run.add_argument(
        "--budget",
        type=float,
        default=1000,
        metavar="B",
        help="budget of a run, of each resource if there are several (default: %(default)s)",
    )
    run.add_argument(
        "--seeds", type=int, default=100, metavar="N", help="number of runs (default: %(default)s)"
    )
    run.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="random seed of the bandit and of the runs (default: %(default)s)",
    )

    sweep = add(
        "sweep",
        "run a grid from a TOML file, and save results as they are computed",
        """
Plays every policy on every bandit with every budget, as described in a TOML file, and saves
finished parts in a store. After an interruption, the same command continues. A kind such as
"my_module:MyPolicy" in the file is a class of your own. Its module is looked for in the folder of
the file first. A store never asks for an import: with --resume, name such classes by --import.
""",
        """
bts-jax sweep --example > grid.toml
bts-jax sweep grid.toml --out grid.zarr
bts-jax sweep --resume grid.zarr --import my_module:MyPolicy
bts-jax sweep grid.toml --out /shared/grid.zarr --dask tcp://node1:8786""",
    )
    sweep.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="TOML file that describes the sweep; --example prints one",
    )
    sweep.add_argument(
        "--out",
        metavar="STORE",
        help="folder to save in (default: FILE with .zarr, in the current folder)",
    )
    sweep.add_argument("--resume", metavar="STORE", help="continue the sweep in STORE")
    sweep.add_argument(
        "--import",
        dest="imports",
        nargs="+",
        action="extend",
        metavar="MODULE:CLASS",
        help="with --resume: import these classes of your own, which the sweep in STORE uses",
    )
    sweep.add_argument("--example", action="store_true", help="print an example of a TOML file")
    sweep.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="how many GPUs or cores of this machine to use (default: all)",
    )
    sweep.add_argument(
        "--shard",
        metavar="I/N",
        help="play only the I-th of N shards, such as 3/8; all save in STORE. "
        "auto takes I and N from the launcher: srun, a SLURM array, mpirun; auto/8 takes only I "
        "from it, as under Kubernetes",
    )
    sweep.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="play on the workers of a Dask cluster: the address of its "
        "scheduler, such as tcp://node1:8786; or local, for a cluster on this machine with a "
        "worker for each GPU or core",
    )
    sweep.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help="play in SLURM jobs that are submitted with these options of sbatch, "
        'such as "partition=gpu,'
        'gpus_per_node=1,time=60"; their logs are in STORE.slurm',
    )
    sweep.add_argument(
        "--task-seconds",
        type=float,
        metavar="S",
        help="with --dask or --slurm: about how many seconds a task takes (default: 60)",
    )

    by = (
        "for each kind of bandit (a family with a number of arms), for each bandit, or for all "
        "together (default: each kind if one has several instances, else each bandit; all if there "
        "are more than eight kinds)"
    )
    merge = add(
        "merge",
        "join saved sweeps into one",
        """
Creates a new store that has the runs of all stores. They must agree in the seed, the platform, the
versions, and in every policy and bandit that has the same name. No run may be in two of them. Runs
that no store has are missing, and bts-jax sweep --resume computes them.
""",
        """
bts-jax merge monday.zarr tuesday.zarr --out both.zarr""",
    )
    merge.add_argument(
        "stores", nargs="+", metavar="STORE", help="folders that sweeps were saved in, at least two"
    )
    merge.add_argument("--out", required=True, metavar="STORE", help="the new folder")

    table = add(
        "table",
        "print the regret in a saved sweep, with confidence intervals",
        """
Prints the regret at each budget. If there are several instances of a kind of bandit, they are
averaged, and the 95% intervals are over the instances: they are about instances like these, as in
bts-jax plot and in bts_jax.ranking. For a single bandit, intervals are over its runs. With --over
seed, intervals are about these bandits alone.
""",
        """
bts-jax table grid.zarr
bts-jax table grid.zarr --by bandit --statistic median
bts-jax table grid.zarr --csv > grid.csv""",
    )
    table.add_argument("store", metavar="STORE", help="folder that the sweep was saved in")
    table.add_argument("--by", choices=["kind", "bandit", "all"], help=f"tables {by}")
    table.add_argument(
        "--by-bandit",
        dest="by",
        action="store_const",
        const="bandit",
        help="the same as --by bandit",
    )
    table.add_argument(
        "--over",
        choices=["seed", "bandit"],
        help="the sample of the intervals: the seeds, for a statement about these "
        "bandits alone; or the bandits, for bandits like these (default: the bandits if a table "
        "has several, else the seeds)",
    )
    table.add_argument(
        "--statistic",
        default="mean",
        choices=["mean", "median", "trimmed"],
        help="the statistic; trimmed is the mean of the middle eight tenths (default: %(default)s)",
    )
    form = table.add_mutually_exclusive_group()
    form.add_argument(
        "--latex",
        action="store_true",
        help="print LaTeX: a table environment for the package booktabs",
    )
    form.add_argument(
        "--csv",
        action="store_true",
        help="print CSV: a line for each budget and policy, all digits",
    )

    plot = add(
        "plot",
        "draw the regret in a saved sweep",
        """
Draws the mean regret against the budget, with its 95% interval over the same sample as in bts-jax
table. The figure names the sample. An existing file is not overwritten without --force.
""",
        """
bts-jax plot grid.zarr
bts-jax plot grid.zarr --out figure.pdf --by bandit --theory slope""",
    )
    plot.add_argument("store", metavar="STORE", help="folder that the sweep was saved in")
    plot.add_argument(
        "--out",
        metavar="FILE",
        help="PNG, PDF or SVG (default: STORE with .png, in the current folder)",
    )
    plot.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    plot.add_argument("--by", choices=["kind", "bandit", "all"], help=f"panels {by}")
    plot.add_argument(
        "--theory",
        nargs="*",
        choices=["bound", "leading", "slope"],
        metavar="NAME",
        help="draw the paper's theory as well: any of bound, leading (term of the "
        "bound) and slope (of the lower bound); without a name, bound and slope. It is about "
        "single bandits: each has a panel",
    )

    figure1 = add(
        "figure1",
        "repeat the simulations of the paper's Section 5, and test its observations",
        """
Repeats the simulations of the paper's Section 5 on random instances, draws its Figure 1, and tests
the paper's observations about it. Results are written into a folder. After an interruption, the
same command continues.
""",
        """
bts-jax figure1
bts-jax figure1 --scale paper --instances 20 --out twenty""",
    )
    figure1.add_argument(
        "--scale",
        default="quick",
        choices=["quick", "paper"],
        help="30 runs up to a budget of 2,000, or 500 up to 50,000 (default: %(default)s)",
    )
    figure1.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the random seed (default: %(default)s)"
    )
    figure1.add_argument(
        "--instances",
        type=int,
        default=1,
        metavar="N",
        help="random instances of each panel (default: %(default)s)",
    )
    figure1.add_argument(
        "--means",
        type=float,
        nargs=2,
        default=(0.1, 0.9),
        metavar=("LOW", "HIGH"),
        help="range of the expected rewards and costs of Bernoulli arms (default: 0.1 0.9)",
    )
    figure1.add_argument(
        "--out",
        metavar="DIR",
        help="folder for figure, table, report and runs (default: figure1-SCALE)",
    )

    study = add(
        "study",
        "run a study beyond the paper: a comparison of all policies, or an open question of the "
        "paper",
        """
Runs a study beyond the paper, and writes figures, a table, a report and all runs into a folder.
omega: all policies on random problems. tails: lost runs and heavy tails. priors: priors of BTS.
correlated: correlated rewards and costs. worst-case: hard problems. knapsacks: several resources.
money: costs of unknown size. After an interruption, the same command continues.
""",
        """
bts-jax study tails
bts-jax study omega --scale full --instances 1000""",
    )
    study.add_argument(
        "name",
        choices=["omega", "tails", "priors", "correlated", "worst-case", "knapsacks", "money"],
        help="which study",
    )
    study.add_argument(
        "--scale",
        default="quick",
        choices=["quick", "full"],
        help="up to three minutes on two cores, or as large as a GPU can handle "
        "(default: %(default)s)",
    )
    study.add_argument(
        "--instances",
        type=int,
        metavar="N",
        help="number of random problems of each kind (default: depends on the "
        "scale); the report estimates how many it would take to decide an undecided comparison",
    )
    study.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the random seed (default: %(default)s)"
    )
    study.add_argument(
        "--out",
        metavar="DIR",
        help="folder for figures, table, report and runs (default: NAME-SCALE, or NAME-SCALE-N)",
    )

    theory = add(
        "theory",
        "print the paper's gaps, bounds and constants for a bandit",
        """
Prints the paper's gaps, its bound on the regret of BTS term by term, the lower bound and the exact
optimum, for a random bandit (the one that bts-jax run plays with the same --bandit, --arms and
--seed) or for arms given by --reward and --cost.
""",
        """
bts-jax theory --reward 0.8 0.4 --cost 0.5 0.4 --budget 1000""",
    )
    add_bandit(theory)
    theory.add_argument(
        "--budget",
        type=float,
        default=1000,
        metavar="B",
        help="budget of a run (default: %(default)s)",
    )
    theory.add_argument(
        "--gamma",
        type=float,
        metavar="G",
        help="the bound's γ, between 0 and 1 (default: the best for each arm)",
    )
    theory.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="random seed of the bandit, the same as in bts-jax run (default: %(default)s)",
    )

    bench = add(
        "bench",
        "measure the speed on this machine, compared with NumPy and others",
        """
Measures pulls per second of several policies on this machine, compared with reference
implementations that are installed. --latency measures instead how long commands take from start to
end: the first time, and again with cached programs. --ablate measures what each pass of the engine
buys: it is switched off, and BTS and KUBE play without it.
""",
        """
bts-jax bench --json > bench.json
bts-jax bench --latency
bts-jax bench --ablate""",
    )
    bench.add_argument(
        "--ablate", action="store_true", help="measure what each pass of the engine buys"
    )
    bench.add_argument(
        "--latency",
        nargs="?",
        const="quick",
        choices=["quick", "full"],
        help="measure how long commands take; full: also those that take half an hour",
    )
    bench.add_argument("--json", action="store_true", help="print all numbers as JSON")
    bench.add_argument("--quiet", action="store_true", help="do not print what is being measured")

    cache = add(
        "cache",
        "show or clear the cache of compiled programs",
        """
Shows where compiled programs are cached, how many there are, and their total size. The cache
belongs to this user alone. It keeps the most recently used programs, up to 1 GiB. BTS_JAX_CACHE=off
in the environment turns it off, and so does --no-cache.
""",
        """
bts-jax cache
bts-jax cache --clear""",
    )
    cache.add_argument(
        "--clear",
        action="store_true",
        help="remove all programs; they are compiled again when needed",
    )

    add(
        "policies",
        "list the policies and their side information",
        """
Lists the policies by the names that bts-jax run, grid files and bts_jax.sweep take, with their side
information.
""",
        """
bts-jax policies""",
    )
    for name in PLAYING:
        commands.choices[name].add_argument("--quiet", action="store_true", help="no progress")
        commands.choices[name].add_argument(
            "--no-cache",
            action="store_true",
            help="do not use the cache of compiled programs: see bts-jax cache",
        )
    return result


def add_bandit(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select a bandit, see `bts_jax.cli._bandit`."""
    parser.add_argument(
        "--bandit",
        type=name_in(BANDITS, "bandit"),
        metavar="NAME",
        help=f"family of random arms, one of {', '.join(BANDITS)} (default: "
        "bernoulli); or a class of your own, as my_module:MyBandit",
    )
    parser.add_argument("--arms", type=int, metavar="K", help="number of random arms (default: 10)")
    parser.add_argument(
        "--reward",
        type=float,
        nargs="+",
        metavar="R",
        help="expected rewards of Bernoulli arms, with --cost (default: a random bandit)",
    )
    parser.add_argument("--cost", type=float, nargs="+", metavar="C", help="their expected costs")
