"""The command line: `bts-jax`, or `python -m bts_jax`."""

import argparse
import io
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from bts_jax import progress, signals
from bts_jax.text import ALLOWANCE, counted, printable, table


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command. Bad input ends with a one-line message and exit code 2, a full disk or memory with exit code 1."""
    _prepare_streams()
    parser = _parser()
    try:
        try:
            arguments = parser.parse_args(argv)
            with signals.ending():
                arguments.command(arguments)
        finally:
            _flush()
    except ValueError as error:
        parser.exit(2, _message(error))
    except BrokenPipeError:  # the reader of the output has seen enough
        parser.exit(0)
    except OSError as error:
        parser.exit(1, _message(error))
    except (MemoryError, JaxRuntimeError) as error:
        reason = str(error).split("\n")[0]
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in reason:
            raise
        parser.exit(1, _message(f"not enough memory ({reason}): give fewer seeds, budgets, arms or bandits"))


def _prepare_streams() -> None:
    """Makes output safe: a closed stream discards it, and a character that the encoding does not have becomes "?"."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # or a file of the store would be opened in its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flush() -> None:
    """Writes all output now, while an error can be reported. Python would try once more at its end: that goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(f"cannot write to standard output ({error.strerror})") from error


def _message(error: Any) -> str:
    return f"bts-jax: error: {printable(str(error), keep=chr(10))}\n"


class _Together(argparse.Action):
    """An option that goes with --distributed alone. Whether it was given is noted: it may also come from the environment."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.together = f"{option_string} = {values!r}"


def _parser() -> argparse.ArgumentParser:
    from bts_jax._version import __version__
    from bts_jax.bandits import BANDITS
    from bts_jax.policies import POLICIES

    parser = argparse.ArgumentParser(prog="bts-jax", description="Budgeted multi-armed bandits in JAX.")
    parser.add_argument("--version", action="version", version=f"bts-jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="play policies on a random bandit and print a table")
    run.add_argument("--policy", nargs="+", action="extend", choices=[*POLICIES, "all"], metavar="NAME",
                     help=f"one or several of {', '.join(POLICIES)}; or all (default: bts)")
    run.add_argument("--bandit", default="bernoulli", choices=BANDITS, help="family of arms (default: %(default)s)")
    run.add_argument("--arms", type=int, default=10, metavar="K", help="number of arms (default: %(default)s)")
    run.add_argument("--budget", type=float, default=1000, metavar="B", help="budget of a run (default: %(default)s)")
    run.add_argument("--seeds", type=int, default=100, metavar="N", help="number of runs (default: %(default)s)")
    run.add_argument("--seed", type=int, default=0, metavar="S",
                     help="where all randomness comes from: the bandit, then the runs (default: %(default)s)")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", help="run a grid from a TOML file, and save it as it goes")
    sweep.add_argument("file", nargs="?", metavar="FILE", help="what to run; --example prints such a file")
    sweep.add_argument("--out", metavar="STORE", help="folder to save in (default: FILE with .zarr, in the current folder)")
    sweep.add_argument("--resume", metavar="STORE", help="go on with the sweep in STORE")
    sweep.add_argument("--example", action="store_true", help="print an example of a file")
    sweep.add_argument("--devices", type=int, metavar="N", help="how many GPUs or cores of this machine to use (default: all)")
    sweep.add_argument("--shard", metavar="I/N", help="play the I-th of N shares and no more, such as 3/8; all save in STORE")
    sweep.add_argument("--distributed", action="store_true",
                       help="share the work with the other processes started with this option, by srun, mpirun or the like")
    sweep.add_argument("--coordinator", action=_Together, metavar="HOST:PORT",
                       default=os.environ.get("JAX_COORDINATOR_ADDRESS"),
                       help="with --distributed, unless JAX finds out: where process 0 listens (or JAX_COORDINATOR_ADDRESS)")
    sweep.add_argument("--processes", action=_Together, type=int, metavar="N", default=os.environ.get("JAX_NUM_PROCESSES"),
                       help="likewise: how many there are (or JAX_NUM_PROCESSES)")
    sweep.add_argument("--process", action=_Together, type=int, metavar="I", default=os.environ.get("JAX_PROCESS_ID"),
                       help="likewise: which this is, from 0 on (or JAX_PROCESS_ID)")
    sweep.add_argument("--timeout", action=_Together, type=int, metavar="S", default=60,
                       help="with --distributed: how many seconds to wait for the others at the start (default: %(default)s)")
    sweep.add_argument("--quiet", action="store_true", help="no progress bar")
    sweep.set_defaults(command=_sweep, together=None)

    table = commands.add_parser("table", help="print the regret in a saved sweep, with confidence intervals")
    table.add_argument("store", metavar="STORE", help="folder that the sweep was saved in")
    table.add_argument("--by-bandit", action="store_true", help="a table for each bandit (default: averaged over bandits)")
    table.add_argument("--over", choices=["seed", "bandit"],
                       help="the sample of the intervals: the seeds, for a statement about these bandits alone; or the "
                            "bandits, for bandits like these (default: the bandits if each has one run, else the seeds)")
    table.add_argument("--statistic", default="mean", choices=["mean", "median", "trimmed"],
                       help="what is printed; trimmed is the mean of the middle eight tenths (default: %(default)s)")
    table.add_argument("--latex", action="store_true", help="print LaTeX")
    table.set_defaults(command=_print_table)

    plot = commands.add_parser("plot", help="draw the regret in a saved sweep")
    plot.add_argument("store", metavar="STORE", help="folder that the sweep was saved in")
    plot.add_argument("--out", metavar="FILE", help="PNG, PDF or SVG (default: STORE with .png, in the current folder)")
    plot.add_argument("--theory", nargs="*", choices=["bound", "leading", "slope"], metavar="NAME",
                      help="draw the paper's theory as well: any of bound, leading (term of the bound) and slope (of the lower "
                           "bound); without a name, bound and slope")
    plot.set_defaults(command=_plot)

    figure1 = commands.add_parser("figure1", help="repeat the simulations of the paper's Section 5, and judge its observations")
    figure1.add_argument("--scale", default="quick", choices=["quick", "paper"],
                         help="30 runs up to a budget of 2,000, or 500 up to 50,000 (default: %(default)s)")
    figure1.add_argument("--seed", type=int, default=0, metavar="S",
                         help="where all randomness comes from (default: %(default)s)")
    figure1.add_argument("--instances", type=int, default=1, metavar="N",
                         help="random instances of each panel (default: %(default)s)")
    figure1.add_argument("--means", type=float, nargs=2, default=(0.1, 0.9), metavar=("LOW", "HIGH"),
                         help="range of the expected rewards and costs of Bernoulli arms (default: 0.1 0.9)")
    figure1.add_argument("--out", metavar="DIR", help="folder for figure, table, report and runs (default: figure1-SCALE)")
    figure1.add_argument("--quiet", action="store_true", help="no progress bar")
    figure1.set_defaults(command=_figure1)

    study = commands.add_parser("study", help="run a study beyond the paper: the whole field, or an open question of the paper")
    study.add_argument("name", choices=["omega", "tails", "priors", "correlated", "worst-case"],
                       help="all policies on random problems; lost runs and heavy tails; priors of BTS; correlated rewards and "
                            "costs; hard problems")
    study.add_argument("--scale", default="quick", choices=["quick", "full"],
                       help="up to three minutes on two cores, or as large as a GPU can take (default: %(default)s)")
    study.add_argument("--instances", type=int, metavar="N",
                       help="random problems of each kind (default: as many as the scale has); the report says about how many "
                            "it would take to decide what is undecided")
    study.add_argument("--seed", type=int, default=0, metavar="S",
                       help="where all randomness comes from (default: %(default)s)")
    study.add_argument("--out", metavar="DIR",
                       help="folder for figures, table, report and runs (default: NAME-SCALE, or NAME-SCALE-N)")
    study.add_argument("--quiet", action="store_true", help="no progress bar")
    study.set_defaults(command=_study)

    theory = commands.add_parser("theory", help="print the paper's gaps, bounds and constants for a bandit")
    theory.add_argument("--reward", type=float, nargs="+", metavar="R",
                        help="expected rewards of Bernoulli arms, with --cost (default: a random bandit)")
    theory.add_argument("--cost", type=float, nargs="+", metavar="C", help="their expected costs")
    theory.add_argument("--bandit", default="bernoulli", choices=BANDITS, help="family of arms (default: %(default)s)")
    theory.add_argument("--arms", type=int, default=10, metavar="K", help="number of arms (default: %(default)s)")
    theory.add_argument("--budget", type=float, default=1000, metavar="B", help="budget of a run (default: %(default)s)")
    theory.add_argument("--gamma", type=float, metavar="G",
                        help="the bound's γ, between 0 and 1 (default: the best for each arm)")
    theory.add_argument("--seed", type=int, default=0, metavar="S",
                        help="where the bandit comes from, the same as in bts-jax run (default: %(default)s)")
    theory.set_defaults(command=_theory)

    bench = commands.add_parser("bench", help="measure how fast this machine plays, beside NumPy and others")
    bench.add_argument("--json", action="store_true", help="print all numbers as JSON")
    bench.add_argument("--quiet", action="store_true", help="do not say what is being measured")
    bench.set_defaults(command=_bench)

    policies = commands.add_parser("policies", help="list the policies and what each is told in advance")
    policies.set_defaults(command=_policies)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    import jax

    from bts_jax.batch import simulate_batch
    from bts_jax.metrics import pseudo_regret, regret
    from bts_jax.policies import POLICIES
    from bts_jax.statistics import lost_run

    if arguments.seeds < 1:
        raise ValueError(f"--seeds = {arguments.seeds} is not a number of runs: give a whole number of at least 1")
    wanted = arguments.policy or ["bts"]
    names = list(POLICIES) if "all" in wanted else list(dict.fromkeys(wanted))
    bandit, key_runs = _instance(arguments)
    keys = jax.random.split(key_runs, arguments.seeds)
    lost = float(lost_run(bandit.reward_mean, bandit.cost_mean, [arguments.budget])[0])
    # One program serves all chunks: the last is filled up with runs that are then dropped.
    chunks = min(max(arguments.seeds // 512, 1), 20)
    size = -(-arguments.seeds // chunks)
    filled = keys[np.arange(chunks * size) % arguments.seeds]

    rows = []
    with progress.counting(len(names) * arguments.seeds, "run", arguments.quiet) as advance:
        for name in names:
            advance(0, f"{name}, compiling")
            play = partial(simulate_batch, POLICIES[name](), bandit)
            started = time.perf_counter()
            play(min(arguments.budget, 1e-3), filled[:size])  # over at once; its program serves for all budgets
            compiled = time.perf_counter()
            parts = []
            for chunk in range(chunks):
                advance(0, name)
                parts.append(jax.device_get(play(arguments.budget, filled[chunk * size : (chunk + 1) * size])))
                advance(min(size, arguments.seeds - chunk * size), name)
            ended = time.perf_counter()
            runs = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: arguments.seeds], *parts)
            best = runs.pulls[:, 0, int(bandit.best_arm)] / runs.rounds[:, 0]
            rows.append([
                name,
                _interval(regret(runs, bandit)[:, 0], lost=lost),
                _interval(pseudo_regret(runs, bandit)[:, 0], lost=lost),
                f"{runs.rounds.mean():,.1f}",
                f"{100 * best.mean():.1f}%",
                f"{compiled - started:.1f}",
                f"{ended - compiled:.2f}",
                f"{runs.rounds.sum() / (ended - compiled):,.0f}",
                f"{runs.truncated.sum()}",
            ])
    ratio = np.sort(np.asarray(bandit.ratio))[::-1]
    print(f"{arguments.bandit} bandit, {arguments.arms} arms, best ratios {ratio[0]:.4g} and {ratio[1]:.4g}; "
          f"budget {arguments.budget:g}, {arguments.seeds} runs, seed {arguments.seed}; "
          f"on {jax.devices()[0].device_kind}")
    _table(["policy", "regret", "pseudo-regret", "pulls/run", "best arm", "compile s", "run s", "pulls/s", "truncated"],
           rows)
    print(f"regret and pseudo-regret: mean and its 95% interval; {ALLOWANCE}; best arm: share of the pulls")


def _instance(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The random bandit of --bandit, --arms and --seed, and the key of the runs on it."""
    import jax

    from bts_jax.bandits import BANDITS

    if not -(2**31) <= arguments.seed < 2**31:
        raise ValueError(f"--seed = {arguments.seed} is too large: give a whole number below 2³¹")
    key_bandit, key_runs = jax.random.split(jax.random.key(arguments.seed))
    return BANDITS[arguments.bandit].random(key_bandit, arguments.arms), key_runs


def _theory(arguments: argparse.Namespace) -> None:
    from bts_jax import theory
    from bts_jax.bandits import Bernoulli

    if (arguments.reward is None) != (arguments.cost is None):
        raise ValueError("--reward and --cost describe the same arms: give both, or neither for a random bandit")
    if arguments.reward is None:
        bandit, _ = _instance(arguments)
        named = f"{arguments.bandit} bandit, {arguments.arms} arms, seed {arguments.seed}"
    else:
        bandit = Bernoulli(reward=arguments.reward, cost=arguments.cost)
        named = f"bernoulli bandit, {bandit.num_arms} arms"
    budget = arguments.budget
    bound = theory.bts_bound(bandit, budget, arguments.gamma)
    repaired = theory.bts_bound(bandit, budget, arguments.gamma, proof="repaired")
    ratio, gap = theory.gaps(bandit)
    best, log = float(ratio.max()), np.log(budget)
    divergence = theory.least_divergence(bandit)
    rows = []
    for i in np.argsort(gap, kind="stable"):
        means = [f"{i}", f"{bandit.reward_mean[i]:.4f}", f"{bandit.cost_mean[i]:.4f}", f"{ratio[i]:.4g}", f"{gap[i]:.4g}"]
        if not rows:
            rows.append([*means, *["-"] * 8])
            continue
        gamma = float(bound.gamma[i])
        delta, epsilon = theory.delta_gap(bandit, gamma)[i], theory.epsilon_gap(bandit, gamma)[i]
        terms = (bound.logarithmic, bound.concentration, bound.exploration, bound.pulls)
        rows.append([*means, f"{gamma:.2f}", f"{delta:.3g}", f"{epsilon:.3g}", *(f"{term[i]:.4g}" for term in terms),
                     f"{1 / divergence[i]:.4g}"])
    print(f"{named}; budget {budget:g}")
    _table(["arm", "reward", "cost", "ρ", "Δ", "γ", "δ", "ε", "2 ln B/δ²", "Step 2", "Step 3", "pulls ≤", "1/K"], rows)
    _table(["regret", "value"], [
        ["bound on BTS, the paper's constants", f"{bound.regret:,.1f}"],
        ["its leading term", f"{bound.leading:,.1f}"],
        ["bound on BTS, Step 2 repaired", f"{repaired.regret:,.1f}"],
        ["factor of ln B for BTS, γ = 1/√2", f"{theory.bts_constant(bandit):,.1f}"],
        ["factor of ln B for UCB-BV1, quoted", f"{theory.ucb_bv1_constant(bandit):,.1f}"],
        ["lower bound's slope against ln B", f"{theory.lower_bound_slope(bandit):,.2f}"],
        ["the same times ln B, no floor", f"{theory.lower_bound_slope(bandit) * log:,.1f}"],
    ])
    try:
        optimum, oracle = (float(f(bandit, budget)) for f in (theory.optimal_reward, theory.oracle_reward))
        more = optimum - best * budget
        print(f"optimum R* = {optimum:,.3f}, ρ*B {'+' if more >= 0 else '−'} {abs(more):.3f}; "
              f"always the best arm earns {optimum - oracle:.3f} less")
    except ValueError as error:  # such arms, or such a budget, have no table
        print(f"no exact optimum: {error}")
    print("pulls ≤: 1 and the three terms before it, a bound on the mean pulls of BTS with the paper's constants. It is\n"
          "proved; the paper's proof has gaps, which help(bts_jax.theory.bts_bound) closes. The factor for UCB-BV1 is quoted\n"
          "from the paper, and we have not checked its proof. 1/K: least pulls per ln B, in the long run; no floor at any\n"
          "budget.")


def _sweep(arguments: argparse.Namespace) -> None:
    from bts_jax.sweeps.gridfile import EXAMPLE, read_toml

    if arguments.example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    if (arguments.file is None) == (arguments.resume is None):
        raise ValueError("give a TOML file, or --resume STORE; bts-jax sweep --example prints a file to begin with")
    if arguments.resume and arguments.out:
        raise ValueError(f"--out = {arguments.out!r} does not go with --resume, which saves in the store it goes on with")
    if arguments.shard and arguments.distributed:
        raise ValueError(f"--shard = {arguments.shard!r} does not go with --distributed, which deals out shares by itself")
    if arguments.together and not arguments.distributed:
        raise ValueError(f"{arguments.together} goes with --distributed alone: give that, too, or leave it out")
    shard = None if arguments.shard is None else tuple(arguments.shard.split("/"))
    if shard and (len(shard) != 2 or not all(part.isdecimal() for part in shard)):
        raise ValueError(f"--shard = {arguments.shard!r} is no share: give its number and how many there are, such as 3/8")
    store = arguments.resume or arguments.out or f"{Path(arguments.file).stem}.zarr"
    meeting = None
    with _resumable(store, f"to go on: bts-jax sweep --resume {shlex.quote(store)}"):
        if arguments.distributed:
            from bts_jax.sweeps.processes import Meeting

            meeting = Meeting(arguments.coordinator, arguments.processes, arguments.process, arguments.timeout)
        from bts_jax.sweeps.run import fill, stored

        with meeting or nullcontext():
            what = stored(store) if arguments.resume else read_toml(arguments.file)
            results = fill(**what, out=store, devices=arguments.devices, shard=shard and tuple(map(int, shard)),
                           quiet=arguments.quiet, meeting=meeting)
    missing = results.done.size - results.saved()
    if missing:
        which = f"share {arguments.shard}" if shard else f"the share of process {meeting.index}" if meeting else "this"
        print(f"{store}: {which} is done; {missing} of {results.done.size} units are still missing, of other shares")
        return
    sizes = " × ".join(str(results.sizes[axis]) for axis in ("policy", "bandit", "budget", "seed"))
    print(f"{store}: {sizes} (policies × bandits × budgets × seeds); see bts-jax table {shlex.quote(store)}")


def _resumable(store: str, how: str) -> AbstractContextManager:
    """Tells how to go on after a signal, if there is a store to go on with."""
    return signals.resumable(lambda: f"; {how}" if Path(store, "zarr.json").exists() else "")


def _print_table(arguments: argparse.Namespace) -> None:
    from bts_jax.statistics import measured
    from bts_jax.sweeps.opening import open_results

    results = open_results(arguments.store)
    names, bandits = ([str(name) for name in results[axis].values] for axis in ("policy", "bandit"))
    seeds = results.sizes["seed"]
    over = arguments.over or ("seed" if seeds > 1 or len(bandits) == 1 or arguments.by_bandit else "bandit")
    if over == "bandit" and (arguments.by_bandit or len(bandits) == 1):
        raise ValueError("--over bandit has one bandit in a table: give --over seed, or leave out --by-bandit")
    parts = [(f"bandit {printable(name)}", [i]) for i, name in enumerate(bandits)]
    if not arguments.by_bandit:
        parts = [(f"average over {len(bandits)} bandits" if len(bandits) > 1 else parts[0][0], list(range(len(bandits))))]
    comment = "% " * arguments.latex
    for title, chosen in parts:
        values = measured(results.isel(bandit=chosen))
        rows = [[f"{budget:,g}", *(_cell(values.isel(policy=i, budget=j), over, arguments.statistic)
                                   for i in range(len(names)))] for j, budget in enumerate(results.budget.values)]
        print(f"{comment}{arguments.statistic} regret, {title}, {counted(seeds, 'run')} each")
        (_latex if arguments.latex else _table)(["budget", *names], rows)
    about = f"the seeds: about {'this bandit' if len(bandits) == 1 else 'these bandits'} alone"
    about = f"the {len(bandits)} bandits: about bandits like these" if over == "bandit" else about
    if seeds > 1 or over == "bandit":
        print(f"{comment}95% intervals over {about}" + (f"; {ALLOWANCE}" if arguments.statistic == "mean" else ""))
    if results.attrs["state"] != "complete":
        print(comment + results.attrs["state"])


def _plot(arguments: argparse.Namespace) -> None:
    from bts_jax.plots import MOST_PANELS, image_format, regret, write
    from bts_jax.statistics import kinds
    from bts_jax.sweeps.opening import open_results

    out = Path(arguments.out or f"{Path(os.path.abspath(arguments.store)).stem}.png")
    image_format(out)
    results = open_results(arguments.store)
    panel = "family" if len(set(kinds(results))) <= MOST_PANELS else "all"
    panel = "bandit" if results.sizes["bandit"] <= MOST_PANELS else panel
    theory = False if arguments.theory is None else arguments.theory or True
    write(regret(results, panel=panel, theory=theory), out)
    print(out)


def _figure1(arguments: argparse.Namespace) -> None:
    from bts_jax.experiments.figure1 import figure1

    out = arguments.out or f"figure1-{arguments.scale}"
    with _resumable(f"{out}/runs.zarr", "the same command goes on"):
        _, report = figure1(arguments.scale, seed=arguments.seed, instances=arguments.instances, means=tuple(arguments.means),
                            out=out, quiet=arguments.quiet)
    print(f"{report}\n\n{out}: figure1.png, figure1.pdf, table.csv, report.txt, runs.zarr")


def _study(arguments: argparse.Namespace) -> None:
    from bts_jax.experiments import default_folder, study

    out = arguments.out or default_folder(arguments.name, arguments.scale, arguments.instances)
    with _resumable(f"{out}/runs.zarr", "the same command goes on"):
        _, report = study(arguments.name, arguments.scale, instances=arguments.instances, seed=arguments.seed, out=out,
                          quiet=arguments.quiet)
    print(f"{report}\n\n{out}: {', '.join(sorted(path.name for path in Path(out).iterdir()))}")


def _bench(arguments: argparse.Namespace) -> None:
    import json

    from bts_jax.bench import bench

    loud = sys.stderr.isatty() and not arguments.quiet
    result = bench(lambda text: print(f"measuring {text} ...", file=sys.stderr) if loud else None)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    rows = result.pop("rows")
    print("; ".join(f"{name}: {value}" for name, value in result.items() if value is not None))
    ours, users = ([row for row in rows if (row["written by"] == "user") == by_user] for by_user in (False, True))
    peers = list(dict.fromkeys(peer for row in ours for peer in row["ratios"]))
    columns = ["arms", "runs", "budget", "pulls/s", "µs/call", "compile s", "busy", "calls/pull"]

    def numbers(row: dict) -> list[str]:
        return [row["policy"], f"{row['arms']}", f"{row['runs']:,}", f"{row['budget']:,}", f"{row['pulls per second']:.3g}",
                f"{row['microseconds per call of all lanes']:.1f}", f"{row['compile seconds']:.1f}",
                f"{row['utilisation']:.0%}", f"{row['calls per pull']:.2f}"]

    _table(["policy", *columns, *(f"× {peer}" for peer in peers)],
           [[*numbers(row), *(f"{row['ratios'][p]:.1f}" if p in row["ratios"] else "" for p in peers)] for row in ours])
    print("µs/call: for a call of the policy in all lanes at once; busy: share of the work spent on live runs"
          + ("; × peer: our pulls per second over the peer's, both measured now" if peers else ""))
    if users:
        print()
        _table(["policy as a user writes it", *columns, "built-in", "time over built-in"],
               [[*numbers(row), row["built-in"], f"{row['over built-in']:.3g}"] for row in users])
        print("time over built-in: time per pull over that of the built-in policy with the same budget, both measured now")


def _policies(arguments: argparse.Namespace) -> None:
    from bts_jax.contract import told
    from bts_jax.policies import POLICIES

    _table(["policy", "class", "told in advance", "what it is"],
           [[name, policy.__name__, ", ".join(told(policy)) or "nothing", (policy.__doc__ or "").split("\n")[0]]
            for name, policy in POLICIES.items()], left=True)


def _interval(values: np.ndarray, statistic: str = "mean", lost: float = np.nan) -> str:
    """A statistic and its 95% interval, the latter from two values on; `lost` is what one lost run more would have."""
    from bts_jax.intervals import interval

    estimate, low, high = interval(values, statistic=statistic, unseen=(np.nan, lost) if statistic == "mean" else None)
    return f"{estimate:,.1f}" if len(values) < 2 else f"{estimate:,.1f} ({low:,.1f} … {high:,.1f})".replace("inf", "∞")


def _cell(values: Any, over: str, statistic: str) -> str:
    """A statistic of the regret [bandit, seed] and its interval: over the seeds, bandits being averaged; or over the bandits.

    Seeds (or bandits) of which a run is missing are left out.
    """
    from bts_jax.statistics import sample, unseen_excess

    missing = np.isnan(values.values)
    values = values.isel(seed=~missing.any(0)) if over == "seed" else values.isel(bandit=~missing.any(1))
    if 0 in values.shape:
        return "-"
    # A value is the mean over the other axis, and one lost run more is one of the runs in it.
    excess = unseen_excess(sample(values, "bandit").assign_coords(runs=values.sizes["bandit" if over == "seed" else "seed"]))
    drawn = values.values.mean(0 if over == "seed" else 1)
    return _interval(drawn, statistic, drawn.mean() + excess.item())


def _latex(head: list[str], rows: list[list[str]]) -> None:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {mark: f"\\{mark}" for mark in "&%$#_{}"}

    def number(cell: str) -> str:
        marks = {",": "{,}", " … ": r" \ldots ", " (": r"\ (", "∞": r"\infty"}
        for mark, command in marks.items():
            cell = cell.replace(mark, command)
        return "--" if cell == "-" else f"${cell}$"

    print(r"\begin{tabular}{" + "r" * len(head) + "}")
    print(" & ".join("".join(special.get(mark, mark) for mark in printable(name)) for name in head) + r" \\ \hline")
    for row in rows:
        print(" & ".join(map(number, row)) + r" \\")
    print(r"\end{tabular}")


def _table(head: list[str], rows: list[list[str]], left: bool = False) -> None:
    print(table(head, rows, left))
