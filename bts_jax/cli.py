"""The command line: `bts-jax`, or `python -m bts_jax`."""

import argparse
import gc
import io
import os
import shlex
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from bts_jax import signals
from bts_jax.text import ALLOWANCE, counted, line, printable, table


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command. Bad input ends with a one-line message and exit code 2, a full disk or
    memory with exit code 1.
    """
    gc.freeze()  # imported objects live until the end
    # Tracing creates many objects, few of them garbage: the search took a tenth of the time.
    gc.set_threshold(100_000)
    _prepare_streams()
    from bts_jax.options import PLAYING
    from bts_jax.options import parser as make_parser

    parser = make_parser()
    try:
        try:
            arguments = parser.parse_args(argv)
            with signals.ending():
                if arguments.command in PLAYING:
                    _keep_programs(arguments.no_cache)
                COMMANDS[arguments.command](arguments)
        finally:
            _flush()
    except ValueError as error:
        parser.exit(2, _message(error))
    except BrokenPipeError:  # the reader has closed the output
        parser.exit(0)
    except OSError as error:
        parser.exit(1, _message(error))
    except (MemoryError, JaxRuntimeError) as error:
        reason = str(error).split("\n")[0]
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in reason:
            raise
        parser.exit(
            1, _message(f"not enough memory ({reason}): give fewer seeds, budgets, arms or bandits")
        )


def _prepare_streams() -> None:
    """Makes output safe: a closed stream discards it, and a character that the encoding does not
    have becomes "?".
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # otherwise a file of the store could take its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flush() -> None:
    """Writes all output now, while an error can be reported. After an error, what Python writes at
    its end is discarded.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(f"cannot write to standard output ({error.strerror})") from error


def _keep_programs(no_cache: bool) -> None:
    """Turns the cache of compiled programs on or off, here and in the worker processes of this
    one.
    """
    from bts_jax.engine.compile import cache

    if no_cache:
        os.environ[cache.VARIABLE] = "off"
    cache.enable_cache()


def _message(error: Any) -> str:
    return f"bts-jax: error: {printable(str(error), keep=chr(10))}\n"


def _bandit(arguments: argparse.Namespace) -> tuple[Any, str, Any]:
    """The bandit that the arguments describe, a description of it, and the key of the runs on
    it.
    """
    import jax

    from bts_jax.bandits import BANDITS, Bernoulli
    from bts_jax.sweeps import classes

    if not -(2**31) <= arguments.seed < 2**31:
        raise ValueError(f"--seed = {arguments.seed} is too large: give a whole number below 2³¹")
    key_bandit, key_runs = jax.random.split(jax.random.key(arguments.seed))
    if (arguments.reward is None) != (arguments.cost is None):
        raise ValueError(
            "--reward and --cost describe the same arms: give both, or neither for a random bandit"
        )
    name, arms = arguments.bandit or "bernoulli", arguments.arms
    if arguments.reward is not None:
        for option, value in (("--bandit", arguments.bandit), ("--arms", arms)):
            if value is not None:
                raise ValueError(
                    f"{option} = {value!r} does not go with --reward and --cost, which give "
                    "Bernoulli arms by hand: leave it out"
                )
        bandit = Bernoulli(reward=arguments.reward, cost=arguments.cost)
    elif not classes.is_name(name):
        bandit = BANDITS[name].random(key_bandit, 10 if arms is None else arms)
    else:
        kind = classes.find(name, "bandit", where="--bandit")
        if hasattr(kind, "random"):
            options = {"key": key_bandit, "num_arms": 10 if arms is None else arms}
            bandit = classes.arrays(classes.call(f"--bandit = {name!r}", kind.random, options))
        elif arms is not None:
            raise ValueError(
                f"--arms = {arms} is for random arms, and {kind.__name__} has no class method "
                "random(key, num_arms) to draw them: leave it out, or add one"
            )
        else:
            bandit = _default("--bandit", name, kind)
    where = name if classes.is_name(name) else f"{name} bandit"
    return bandit, f"{where}, {np.shape(bandit.reward_mean)[-1]} arms", key_runs


def _default(option: str, name: str, kind: type) -> Any:
    """An instance of a user-defined class with its default settings."""
    import inspect

    from bts_jax.sweeps import classes

    needed = [
        one.name
        for one in inspect.signature(kind).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if needed:
        raise ValueError(
            f"{option} = {name!r} has no default for {', '.join(needed)}: give it one in the "
            "class, or set it in a grid file for bts-jax sweep"
        )
    return classes.arrays(classes.call(f"{option} = {name!r}", kind, {}))


def _can_play(policy: type, bandit: Any) -> bool:
    """Whether a class of policies can play with the resources of the bandit."""
    from bts_jax.arguments import check_resources

    try:
        check_resources(policy(), bandit)
    except ValueError:
        return False
    return True


def _run(arguments: argparse.Namespace) -> None:
    import jax

    from bts_jax.comparison import alike, compare, no_better
    from bts_jax.contract import num_resources, ratio
    from bts_jax.linear_program import lp_value
    from bts_jax.policies import ALL_POLICIES, POLICIES
    from bts_jax.sweeps import classes

    if arguments.seeds < 1:
        raise ValueError(
            f"--seeds = {arguments.seeds} is not a number of runs: give a whole number of at least "
            "1"
        )
    bandit, what, key_runs = _bandit(arguments)
    several = num_resources(bandit) is not None
    field = (
        [name for name, kind in ALL_POLICIES.items() if _can_play(kind, bandit)]
        if several
        else POLICIES
    )
    wanted = arguments.policy or ["knapsack-bts" if several else "bts"]
    names = [name for one in wanted for name in (field if one == "all" else [one])]
    policies = {
        name: _default("--policy", name, classes.find(name, "policy", where="--policy"))
        if classes.is_name(name)
        else ALL_POLICIES[name]()
        for name in dict.fromkeys(names)
    }
    budget = arguments.budget
    keys = jax.random.split(key_runs, arguments.seeds)
    rows = compare(policies, bandit, budget, keys, quiet=arguments.quiet)
    if several:
        optimum = float(lp_value(bandit, budget))
        resources = counted(num_resources(bandit) or 1, "resource")
        about = f"{resources}, optimum of the linear program {optimum:,.4g}"
    else:
        ratios = np.sort(ratio(np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean), np))[
            ::-1
        ]
        optimum, about = (
            min(ratios[0], 1e3) * budget,
            f"best ratios {ratios[0]:.4g} and {ratios[1]:.4g}",
        )
    print(
        f"{what}, {about}; budget {budget:g}, {arguments.seeds} runs, seed {arguments.seed}; on "
        f"{jax.devices()[0].device_kind}"
    )
    # The columns are as wide as the largest numbers to be expected, which are not known yet.
    most = len(f"{optimum:,.1f}")
    pulls = len(f"{budget / max(float(np.mean(bandit.cost_mean)), 1e-3):,.1f}")
    interval = most if arguments.seeds == 1 else 3 * most + 6
    head = {
        "policy": max(map(len, ["policy", *policies])),
        "regret": interval,
        "pseudo-regret": interval,
        "pulls/run": pulls,
        **({} if several else {"best arm": 8}),
        "compile s": 9,
        "run s": 6,
        "pulls/s": 10,
        "truncated": 9,
    }
    widths = [max(len(name), width) for name, width in head.items()]
    print(line(list(head), widths), flush=True)
    seen = []
    for row in rows:
        seen.append(row)
        share = [] if several else [f"{row.best_arm:.1%}"]
        print(
            line(
                [
                    row.policy,
                    _interval(row.regret),
                    _interval(row.pseudo_regret),
                    f"{row.pulls:,.1f}",
                    *share,
                    f"{row.compile_seconds:.1f}",
                    f"{row.seconds:.2f}",
                    f"{row.pulls_per_second:,.0f}",
                    f"{row.truncated}",
                ],
                widths,
            ),
            flush=True,
        )
    if several:
        print(
            "regret and pseudo-regret, against the optimum of the linear program: mean and 95% "
            "interval over the runs"
        )
    else:
        print(
            f"regret and pseudo-regret: mean and 95% interval over the runs; {ALLOWANCE}\n"
            "best arm: its share of the pulls"
        )
    for names in alike(seen):
        print(
            f"the same runs: {', '.join(names)} (with these settings, they make the same decisions "
            "on such arms)"
        )
    if names := no_better(seen, bandit):
        print(
            f"not clearly better than uniform here: {', '.join(names)} (95% interval of the "
            "difference of pseudo-regrets)"
        )


def _theory(arguments: argparse.Namespace) -> None:
    from bts_jax import theory

    bandit, named, _ = _bandit(arguments)
    named = named if arguments.reward else f"{named}, seed {arguments.seed}"
    budget = arguments.budget
    bound = theory.bts_bound(bandit, budget, arguments.gamma)
    repaired = theory.bts_bound(bandit, budget, arguments.gamma, proof="repaired")
    ratio, gap = theory.gaps(bandit)
    best, log = float(ratio.max()), np.log(budget)
    divergence = theory.least_divergence(bandit)
    reward_mean, cost_mean = np.asarray(bandit.reward_mean), np.asarray(bandit.cost_mean)
    rows = []
    for i in np.argsort(gap, kind="stable"):
        means = [
            f"{i}",
            f"{reward_mean[i]:.4f}",
            f"{cost_mean[i]:.4f}",
            f"{ratio[i]:.4g}",
            f"{gap[i]:.4g}",
        ]
        if not rows:
            rows.append([*means, *["-"] * 8])
            continue
        gamma = float(bound.gamma[i])
        delta, epsilon = theory.delta_gap(bandit, gamma)[i], theory.epsilon_gap(bandit, gamma)[i]
        terms = (bound.logarithmic, bound.concentration, bound.exploration, bound.pulls)
        rows.append(
            [
                *means,
                f"{gamma:.2f}",
                f"{delta:.3g}",
                f"{epsilon:.3g}",
                *(f"{term[i]:.4g}" for term in terms),
                f"{1 / divergence[i]:.4g}",
            ]
        )
    print(f"{named}; budget {budget:g}")
    _table(
        [
            "arm",
            "reward",
            "cost",
            "ρ",
            "Δ",
            "γ",
            "δ",
            "ε",
            "2 ln B/δ²",
            "Step 2",
            "Step 3",
            "pulls ≤",
            "1/K",
        ],
        rows,
    )
    _table(
        ["regret", "value"],
        [
            ["bound on BTS, the paper's constants", f"{bound.regret:,.1f}"],
            ["its leading term", f"{bound.leading:,.1f}"],
            ["bound on BTS, Step 2 repaired", f"{repaired.regret:,.1f}"],
            ["factor of ln B for BTS, γ = 1/√2", f"{theory.bts_constant(bandit):,.1f}"],
            ["factor of ln B for UCB-BV1, quoted", f"{theory.ucb_bv1_constant(bandit):,.1f}"],
            ["lower bound: factor of ln B for B → ∞", f"{theory.lower_bound_slope(bandit):,.2f}"],
            [
                "that factor times ln B; not a bound at this B",
                f"{theory.lower_bound_slope(bandit) * log:,.1f}",
            ],
        ],
    )
    try:
        optimum, oracle = (
            float(f(bandit, budget)) for f in (theory.optimal_reward, theory.oracle_reward)
        )
        more = optimum - best * budget
        print(
            f"optimum R* = {optimum:,.3f}, ρ*B {'+' if more >= 0 else '−'} {abs(more):.3f}; always "
            f"pulling the best arm earns {optimum - oracle:.3f} less"
        )
    except ValueError as error:  # there is no table for such arms or such a budget
        print(f"no exact optimum: {error}")
    print(
        "pulls ≤: 1 plus the three terms before it, a bound on the mean pulls of BTS with the "
        "paper's constants. It is\n"
        "proved; the paper's proof has gaps, which help(bts_jax.theory.bts_bound) closes. The "
        "factor for UCB-BV1 is quoted\n"
        "from the paper, and we have not checked its proof. 1/K: the least pulls per ln B as "
        "the budget grows; this is not\n"
        "a lower bound at any single budget."
    )


def _sweep(arguments: argparse.Namespace) -> None:
    from bts_jax.sweeps.gridfile import EXAMPLE, read_toml

    if arguments.example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    if (arguments.file is None) == (arguments.resume is None):
        raise ValueError(
            "give a TOML file, or --resume STORE; bts-jax sweep --example prints an example file"
        )
    if arguments.resume and arguments.out:
        raise ValueError(
            f"--out = {arguments.out!r} does not go with --resume, which saves in STORE: leave it "
            "out"
        )
    if arguments.imports and not arguments.resume:
        raise ValueError(
            f"--import = {arguments.imports[0]!r} is only for --resume: in a grid file, a class of "
            "your own "
            'is the kind of a policy or a bandit, as in kind = "my_module:MyPolicy"'
        )
    store = arguments.resume or arguments.out or f"{Path(arguments.file).stem}.zarr"
    elsewhere = {
        name: value for name in ("dask", "slurm") if (value := getattr(arguments, name)) is not None
    }
    for first, second in (
        ("dask", "slurm"),
        *((name, other) for name in elsewhere for other in ("shard", "devices")),
    ):
        if getattr(arguments, first) is not None and getattr(arguments, second) is not None:
            raise ValueError(
                f"--{second} = {getattr(arguments, second)!r} does not go with --{first}: leave "
                "one of them out"
            )
    if arguments.task_seconds is not None and not elsewhere:
        raise ValueError(
            f"--task-seconds = {arguments.task_seconds:g} goes with --dask or --slurm: leave it out"
        )
    shard = None
    if arguments.shard is not None:
        from bts_jax.sweeps import clusters, machine

        shard = clusters.shard_of(arguments.shard)
        machine.share_machine()
    again = ["--resume", store]

    def how() -> str:
        # A signal may arrive at any time: import nothing here.
        if executors := sys.modules.get("bts_jax.sweeps.executors"):
            executors.cancel_all()
        return f"to continue: bts-jax sweep {shlex.join(again)}"

    with _resumable(store, how), ExitStack() as stack:
        if arguments.resume:
            what = _stored(store, arguments.imports or [])
            again += ["--import", *arguments.imports] if arguments.imports else []
        else:
            what = read_toml(arguments.file)
            again = again if _all_ours(what) else [arguments.file, "--out", store]
        if elsewhere:
            what |= {
                "executor": _executor(stack, elsewhere, store),
                "task_seconds": 60 if arguments.task_seconds is None else arguments.task_seconds,
            }
            again += [part for name, value in elsewhere.items() for part in (f"--{name}", value)]
            again += (
                []
                if arguments.task_seconds is None
                else ["--task-seconds", f"{arguments.task_seconds:g}"]
            )
        from bts_jax.sweeps.executors import TasksFailed
        from bts_jax.sweeps.run import fill

        try:
            results = fill(
                **what, out=store, devices=arguments.devices, shard=shard, quiet=arguments.quiet
            )
        except TasksFailed as error:
            raise OSError(str(error)) from error
    total = len(results.chunks)
    missing = total - results.saved()
    if missing:
        which = f"shard {shard[0]}/{shard[1]}" if shard else "this"
        print(
            f"{store}: {which} is done; {missing} of {total} chunks, of other shards, are still "
            "missing"
        )
        return
    sizes = " × ".join(str(results.sizes[axis]) for axis in ("policy", "bandit", "budget", "seed"))
    print(
        f"{store}: {sizes} (policies × bandits × budgets × seeds); see bts-jax table "
        f"{shlex.quote(store)}"
    )


def _executor(stack: ExitStack, where: dict[str, str], store: str) -> Any:
    """The executor for --dask or --slurm. This process leaves the GPUs to the workers."""
    import jax

    from bts_jax.sweeps import clusters

    jax.config.update("jax_platforms", "cpu")
    if "slurm" in where:
        return clusters.slurm(where["slurm"], f"{store}.slurm")
    return stack.enter_context(clusters.dask(where["dask"]))


def _merge(arguments: argparse.Namespace) -> None:
    from bts_jax.sweeps.growth import merge

    results = merge(*map(_store, arguments.stores), out=arguments.out)
    sizes = " × ".join(str(results.sizes[axis]) for axis in ("policy", "bandit", "budget", "seed"))
    print(
        f"{arguments.out}: {sizes} (policies × bandits × budgets × seeds), {results.attrs['state']}"
    )


def _stored(store: str, imports: Sequence[str]) -> dict[str, Any]:
    """The sweep in a store, as arguments of `sweep`, with the user-defined classes that the user
    has named.
    """
    from bts_jax.sweeps import classes
    from bts_jax.sweeps.run import stored

    return stored(_store(store), classes.by_name(imports))


def _all_ours(what: dict[str, Any]) -> bool:
    """Whether a sweep uses only classes in the registries."""
    from bts_jax.bandits import BANDITS
    from bts_jax.policies import ALL_POLICIES
    from bts_jax.sweeps.specification import is_ours

    return all(
        is_ours(thing, registry)
        for kind, registry in (("policies", ALL_POLICIES), ("bandits", BANDITS))
        for thing in what[kind].values()
    )


def _resumable(store: str, how: Callable[[], str]) -> AbstractContextManager:
    """Says how to continue after a signal, if there is a store."""
    return signals.resumable(
        lambda: f"; {how()}" if os.path.exists(Path(store, "zarr.json")) else ""
    )


def _store(path: str) -> str:
    """The path of a store, unless it is that of a grid file."""
    if Path(path).suffix == ".toml" and os.path.isfile(path):
        store = f"{Path(path).stem}.zarr"
        remedy = f"name the folder that its sweep is saved in, {store!r} unless --out was given"
        if not os.path.exists(store):
            remedy += f"; bts-jax sweep {shlex.quote(path)} makes it"
        raise ValueError(f"{path!r} is not a store but a grid file: {remedy}")
    return path


def _print_table(arguments: argparse.Namespace) -> None:
    from bts_jax.sweeps.opening import open_results
    from bts_jax.tables import group_in_words, grouping, regret_table, sample_in_words

    results = open_results(_store(arguments.store))
    by, seeds = arguments.by or grouping(results), results.sizes["seed"]
    found = regret_table(results, statistic=arguments.statistic, by=by, over=arguments.over)
    if arguments.csv:
        found[["bandits", "policy"]] = found[["bandits", "policy"]].map(_cell)
        print(found.to_csv(index=False, lineterminator="\n"), end="")
        for remark in _remarks(results):
            print(remark, file=sys.stderr)
        return
    groups = [rows for _, rows in found.groupby("bandits", sort=False)]
    where = "with one resource, " if "resource" in results.dims else ""
    allowing = f"; {where}{ALLOWANCE}" if arguments.statistic == "mean" else ""
    notes = [
        f"95% intervals {sample_in_words(rows)}{allowing}" if max(rows["count"]) > 1 else ""
        for rows in groups
    ]
    titles = [
        f"{arguments.statistic} regret, {printable(group_in_words(rows, by))}, "
        f"{counted(seeds, 'run')} each"
        for rows in groups
    ]
    head = ["budget", *map(str, results.policy.values)]
    if arguments.latex:
        _print_latex(arguments.statistic, groups, head, titles, notes)
    else:
        for rows, title, note, following in zip(
            groups, titles, notes, [*notes[1:], ""], strict=True
        ):
            print(title)
            _table(head, _cells(rows, "{:,g}".format, _interval))
            if note and note != following:
                print(note)
    for remark in _remarks(results):
        print("% " * arguments.latex + remark)


def _print_latex(
    statistic: str, groups: list, head: list[str], titles: list[str], notes: list[str]
) -> None:
    from bts_jax import latex

    print(r"% needs \usepackage{booktabs}")
    labels = latex.labels(f"{statistic}-regret", [str(rows.bandits.iloc[0]) for rows in groups])
    for rows, title, note, label in zip(groups, titles, notes, labels, strict=True):
        caption = ". ".join(filter(None, [title[0].upper() + title[1:], note])) + "."
        print(
            latex.table(
                [printable(name) for name in head],
                _cells(rows, latex.number, latex.estimate),
                caption,
                label,
            )
        )


def _cells(
    rows: Any, number: Callable[[float], str], interval: Callable[[Any], str]
) -> list[list[str]]:
    """The rows of a table: the budget, and the estimate and interval of each policy."""
    return [
        [number(budget), *map(interval, part[["estimate", "low", "high"]].itertuples(index=False))]
        for budget, part in rows.groupby("budget")
    ]


def _remarks(results: Any) -> list[str]:
    """What a reader of a table must know about its store: that it is incomplete, or old."""
    state = [] if results.attrs["state"] == "complete" else [results.attrs["state"]]
    return state + [results.attrs[name] for name in ("note",) if name in results.attrs]


def _plot(arguments: argparse.Namespace) -> None:
    from bts_jax.plots import MOST_PANELS, image_format, regret, write
    from bts_jax.sweeps.opening import open_results
    from bts_jax.tables import grouping

    out = Path(arguments.out or f"{Path(os.path.abspath(_store(arguments.store))).stem}.png")
    image_format(out)
    if os.path.lexists(out) and not arguments.force:
        raise ValueError(
            f"{str(out)!r} exists: give --force to overwrite it, or another file by --out"
        )
    results = open_results(arguments.store)
    theory = False if arguments.theory is None else arguments.theory or True
    by = arguments.by or (
        "bandit" if theory and results.sizes["bandit"] <= MOST_PANELS else grouping(results)
    )
    write(regret(results, panel="family" if by == "kind" else by, theory=theory), out)
    print(out)


def _figure1(arguments: argparse.Namespace) -> None:
    from bts_jax.experiments.figure1 import figure1

    out = arguments.out or f"figure1-{arguments.scale}"
    _check_seed(out, arguments.seed)
    with _resumable(f"{out}/runs.zarr", lambda: "the same command continues"):
        _, report = figure1(
            arguments.scale,
            seed=arguments.seed,
            instances=arguments.instances,
            means=tuple(arguments.means),
            out=out,
            quiet=arguments.quiet,
        )
    print(f"{report}\n\n{out}: figure1.png, figure1.pdf, table.csv, report.txt, runs.zarr")


def _study(arguments: argparse.Namespace) -> None:
    from bts_jax.experiments import default_folder, study

    out = arguments.out or default_folder(arguments.name, arguments.scale, arguments.instances)
    _check_seed(out, arguments.seed)
    with _resumable(f"{out}/runs.zarr", lambda: "the same command continues"):
        _, report = study(
            arguments.name,
            arguments.scale,
            instances=arguments.instances,
            seed=arguments.seed,
            out=out,
            quiet=arguments.quiet,
        )
    print(f"{report}\n\n{out}: {', '.join(sorted(path.name for path in Path(out).iterdir()))}")


def _check_seed(folder: str, seed: int) -> None:
    """Raises if the runs in that folder have another seed. This is checked first, since all random
    numbers would differ.
    """
    from bts_jax.sweeps.opening import read_specification

    store = Path(folder, "runs.zarr")
    if os.path.isfile(store / "zarr.json"):
        try:
            found = read_specification(store)["seed"]
        except ValueError:  # reported where the store is used
            return
        if found != seed:
            raise ValueError(
                f"--seed: {found} in the store {str(store)!r}, {seed} asked for: give another "
                "folder by --out"
            )


def _bench(arguments: argparse.Namespace) -> None:
    import json

    from bts_jax import progress
    from bts_jax.ablation import ablation
    from bts_jax.bench import bench
    from bts_jax.latency import latency

    say = progress.printed()

    def doing(text: str) -> None:
        if not arguments.quiet:
            say(f"measuring {text}")

    if arguments.ablate and arguments.latency:
        raise ValueError("--ablate and --latency are both given: give one of them")
    if arguments.ablate:
        result = ablation(doing)
    else:
        result = latency(arguments.latency == "full", doing) if arguments.latency else bench(doing)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    rows = result.pop("rows")
    print("; ".join(f"{name}: {value}" for name, value in result.items() if value is not None))
    if arguments.ablate:
        settings = [name for name in rows[0] if name not in ("pass", "buys")]
        cells = [[f"{row[name]:.2f}" for name in settings] for row in rows]
        _table(
            ["without", *settings],
            [[row["pass"], *some] for row, some in zip(rows, cells, strict=True)],
        )
        print("time of a call, divided by the time with all passes")
        return
    if arguments.latency:
        times = [
            [f"{row[when]:.2f}" if when in row else "" for when in ("first", "again")]
            for row in rows
        ]
        _table(
            ["seconds", "first", "again"],
            [[row["what"], *cells] for row, cells in zip(rows, times, strict=True)],
        )
        print(
            "first: with an empty cache of compiled programs; again: with the programs that the "
            "first run has cached"
        )
        return
    ours, users = (
        [row for row in rows if (row["written by"] == "user") == by_user]
        for by_user in (False, True)
    )
    others = list(dict.fromkeys(other for row in ours for other in row["ratios"]))
    columns = ["arms", "runs", "budget", "pulls/s", "µs/call", "compile s", "busy", "calls/pull"]

    def numbers(row: dict) -> list[str]:
        return [
            row["policy"],
            f"{row['arms']}",
            f"{row['runs']:,}",
            f"{row['budget']:,}",
            f"{row['pulls per second']:.3g}",
            f"{row['microseconds per call of all lanes']:.1f}",
            f"{row['compile seconds']:.1f}",
            f"{row['utilisation']:.0%}",
            f"{row['calls per pull']:.2f}",
        ]

    _table(
        ["policy", *columns, *(f"× {other}" for other in others)],
        [
            [
                *numbers(row),
                *(f"{row['ratios'][p]:.3g}" if p in row["ratios"] else "" for p in others),
            ]
            for row in ours
        ],
    )
    print(
        "µs/call: for a call of the policy in all lanes at once; busy: share of the work spent on "
        "live runs"
        + (
            "; × name: our pulls per second divided by those of that program, both measured now"
            if others
            else ""
        )
    )
    if users:
        print()
        _table(
            ["policy as a user writes it", *columns, "built-in", "time over built-in"],
            [[*numbers(row), row["built-in"], f"{row['over built-in']:.3g}"] for row in users],
        )
        print(
            "time over built-in: time per pull divided by that of the built-in policy at the same "
            "budget, both measured now"
        )


def _cache(arguments: argparse.Namespace) -> None:
    from bts_jax.engine.compile import cache
    from bts_jax.engine.compile.programs import PROGRAM_BYTES, most_programs

    top = cache.place()
    found = cache.clear(top) if arguments.clear else cache.programs(top)
    size = (
        f"{counted(len(found), 'program')}, {sum(program.size for program in found) / 2**20:,.1f} "
        "MiB"
    )
    print(
        f"{top}: removed {size}"
        if arguments.clear
        else f"{top}: {size} of at most {cache.MOST_BYTES // 2**20:,}"
    )
    if not arguments.clear:
        most = most_programs()
        print(
            f"in memory: at most {most} programs in a process, about "
            f"{most * PROGRAM_BYTES // 2**20:,} MiB"
        )
    if reason := cache.why_unused():
        print(f"not in use: {reason}")


def _policies(arguments: argparse.Namespace) -> None:
    from bts_jax.contract import side_info
    from bts_jax.policies import ALL_POLICIES

    _table(
        ["policy", "class", "side information", "what it is"],
        [
            [
                name,
                policy.__name__,
                ", ".join(side_info(policy)) or "none",
                (policy.__doc__ or "").split("\n")[0],
            ]
            for name, policy in ALL_POLICIES.items()
        ],
        left=True,
    )


def _interval(found: Any) -> str:
    """An estimate, with its 95% interval if the sample has more than one value."""
    estimate, low, high = map(float, found)
    if np.isnan(estimate):
        return "-"
    return (
        f"{estimate:,.1f}"
        if np.isnan(low)
        else f"{estimate:,.1f} ({low:,.1f} … {high:,.1f})".replace("inf", "∞")
    )


def _cell(name: str) -> str:
    """A name in a CSV file. A spreadsheet would compute a cell that begins like a formula, so it
    gets an apostrophe.

    Some spreadsheets read full-width signs as signs. A name cannot begin with a tab or a line break
    (`checks.name`).
    """
    return (
        f"'{name}" if unicodedata.normalize("NFKC", name).startswith(("=", "+", "-", "@")) else name
    )


def _table(head: list[str], rows: list[list[str]], left: bool = False) -> None:
    print(table(head, rows, left))


COMMANDS = {
    "run": _run,
    "sweep": _sweep,
    "merge": _merge,
    "table": _print_table,
    "plot": _plot,
    "figure1": _figure1,
    "study": _study,
    "theory": _theory,
    "bench": _bench,
    "cache": _cache,
    "policies": _policies,
}
