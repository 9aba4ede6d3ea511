"""A sweep whose chunks are played by the workers of an executor. The store is always the same."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from heapq import heappop, heappush
from pathlib import Path

import chex
import distributed  # not in a test that captures output, because it keeps the current stream
import jax
import numpy as np
import pytest
import submitit
from common import grid_file
from test_results import assert_same, snapshot

import bts_jax as bj
from bts_jax.cli import main
from bts_jax.sweeps import classes, executors, machine, schedule, worker
from bts_jax.sweeps.executors import Worker
from bts_jax.sweeps.grid import Grid
from bts_jax.sweeps.opening import begin

TWO = {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}
# Four chunks.
SMALL = {
    "policies": ["uniform"],
    "bandits": TWO,
    "budgets": [5, 10],
    "num_seeds": 7,
    "chunk_size": 2,
}
# Fifteen.
LONG = {
    "policies": ["uniform"],
    "bandits": TWO,
    "budgets": [5, 1000],
    "num_seeds": 1500,
    "chunk_size": 100,
}


@pytest.fixture(scope="module")
def small():
    return bj.sweep(**SMALL)


@pytest.fixture(scope="module")
def long():
    return bj.sweep(**LONG)


FILE = grid_file(4, [5])


class Inline:
    """The smallest interface of an executor: `submit`, and `result` of the returned object."""

    def __init__(self, fail=lambda number, order: False):
        self.orders, self.fail = [], fail

    def submit(self, function, *arguments):
        if function is worker.work:
            self.orders.append(worker.Order(*arguments[0]))
            if self.fail(len(self.orders), self.orders[-1]):
                return Inline.Failed()
        outcome = function(*arguments)
        return type("Result", (), {"result": lambda self: outcome})()

    class Failed:
        def result(self):
            raise OSError("the worker is gone")


# Real clusters on this machine.


@contextlib.contextmanager
def pool(_):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@contextlib.contextmanager
def dask(_, workers=2):
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=":0",
            memory_limit=0,
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextlib.contextmanager
def jobs(folder):
    yield submitit.LocalExecutor(folder / "jobs")


# When workers are killed, Dask and submitit leave sockets and processes to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


def interrupt_and_go_on(grid, store, executor):
    state = executors._state

    def interrupted(*arguments):
        if any(store.glob("checksum/c.*")):
            raise KeyboardInterrupt
        return state(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "_state", interrupted)
        with contextlib.suppress(KeyboardInterrupt):  # unless all tasks ended at once
            bj.sweep(**grid, out=store, executor=executor)
    results = bj.sweep(**grid, out=store, executor=executor)
    bj.sweep(**grid, out=store.with_name("alone"))
    files = [
        {
            file.relative_to(folder): content
            for file, content in snapshot(folder).items()
            if file.name != "zarr.json"
        }
        for folder in (store, store.with_name("alone"))
    ]
    assert files[0] == files[1], "nothing is left over"
    return results


POOL = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
import bts_jax as bj
from bts_jax.sweeps import executors

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        executors.first_worker(pool)
        print(*[process.pid for process in pool._processes.values()], flush=True)
        bj.sweep(["uniform"], {"two": bj.Bernoulli(reward=[0.9, 0.2], cost=[0.5, 0.5])}, [1e7], 4, out=sys.argv[1],
                 executor=pool, chunk_size=1)
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize("when", ["idle", "playing"])
def test_workers_of_a_pool_end_with_the_process_that_started_them(when, tmp_path):
    """A killed process cannot end its workers, and they would wait forever."""
    (tmp_path / "script.py").write_text(POOL)
    command = [sys.executable, tmp_path / "script.py", tmp_path / "store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        workers = list(map(int, process.stdout.readline().split()))
        until = time.monotonic() + 60
        while (
            when == "playing" and not list(tmp_path.glob("store/.*")) and time.monotonic() < until
        ):
            time.sleep(0.1)
        process.kill()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.1)
    left = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert workers and not left


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [pool, jobs])
def test_any_executor_makes_the_same_store_and_goes_on_after_an_interruption(
    cluster, long, tmp_path
):
    """Dask has a test of its own."""
    grid = {**LONG, "chunk_size": 750} if cluster is jobs else LONG  # each task is a process
    with cluster(tmp_path) as executor:
        assert_same(interrupt_and_go_on(grid, tmp_path / "store", executor), long)
    assert_same(bj.open_results(tmp_path / "store"), long)


@pytest.mark.slow
def test_a_killed_worker_of_dask_loses_nothing(long, tmp_path, monkeypatch):
    """After an interruption, as above, and if one of two workers is killed and another joins.
    Chunks that the killed worker had saved are not played again."""
    grid = {**LONG, "num_seeds": 4000}
    whole, store, played = bj.sweep(**grid), tmp_path / "store", []
    work = executors.play_elsewhere

    def counted(*arguments):
        counts, number = work(*arguments)
        played.append(number)
        return counts, number

    with dask(tmp_path) as client:
        assert_same(interrupt_and_go_on(LONG, tmp_path / "interrupted", client), long)
        monkeypatch.setattr(executors, "play_elsewhere", counted)
        processes = client.run(os.getpid)
        victim = next(iter(processes.values()))
        killed = []

        def kill():
            while len(list(store.glob("checksum/c.*"))) < 3:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            killed.append(len(list(store.glob("checksum/c.*"))))
            client.cluster.scale(3)

        thread = threading.Thread(target=kill)
        thread.start()
        assert_same(bj.sweep(**grid, out=store, executor=client), whole)
        thread.join()
        assert victim not in client.run(os.getpid).values()
    assert killed[0] < 40, "it was killed too late to show anything"
    assert 38 <= played[0] <= 40, (
        "a chunk is not reported if its worker was killed after it had saved it"
    )


@pytest.mark.slow
def test_the_command_line_starts_a_cluster_with_a_class_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_idle.py").write_text("""
import chex
import bts_jax as bj

@chex.dataclass(frozen=True)
class Cautious(bj.Uniform):
    patience: float = 1.0
""")
    (tmp_path / "grid.toml").write_text(
        FILE + '[policies.mine]\nkind = "my_idle:Cautious"\npatience = 2.0\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(bj.__file__).parent.parent))
    main(["sweep", "grid.toml", "--dask", "local", "--task-seconds", "1"])
    assert capsys.readouterr().out.startswith("grid.zarr: 2 × 1 × 1 × 4")
    results = bj.open_results("grid.zarr")
    assert results.state == "complete"
    assert (results.sel(policy="mine").reward == results.sel(policy="any").reward).all(), (
        "the same policy by another name"
    )


SBATCH = """#!/bin/bash
# Stands in for SLURM: runs the jobs one after the other, here.
for script; do :; done
grep "#SBATCH" "$script" >> options
jobs=$(sed -n "s/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p" "$script")
export SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1
(for job in $(seq 0 "${jobs:-0}"); do
    if [ "$jobs" ]; then export SLURM_ARRAY_JOB_ID=$$ SLURM_ARRAY_TASK_ID=$job; fi
    SLURM_JOB_ID=$(($$ + job)) bash "$script"
done) < /dev/null > /dev/null 2>&1 &
echo "Submitted batch job $$"
"""
SRUN = """#!/bin/bash
while [ "$1" != "${1#-}" ]; do case "$1" in --output|--error) shift;; esac; shift; done
exec "$@"
"""


@pytest.mark.slow
def test_the_command_line_submits_jobs_to_slurm(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("sbatch", SBATCH),
        ("srun", SRUN),
        ("sacct", "#!/bin/bash\necho 'JobID|State'"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(Path(bj.__file__).parent.parent))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "grid.toml").write_text(FILE + '[policies.other]\nkind = "uniform"\n')
    main(["sweep", "grid.toml", "--slurm", "partition=gpu,gpus-per-node=1,time=60"])
    assert capsys.readouterr().out.startswith("grid.zarr: 2 × 1 × 1 × 4")
    assert bj.open_results("grid.zarr").state == "complete"
    options = (tmp_path / "options").read_text()
    assert all(
        f"#SBATCH --{option}\n" in options
        for option in ("partition=gpu", "gpus-per-node=1", "time=60")
    )
    assert "#SBATCH --array=0-1%" in options, "one array for both tasks"


# Tasks.


def test_an_executor_needs_submit_and_result_alone(small, tmp_path):
    inline = Inline()
    assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=inline), small)
    assert [order.chunks for order in inline.orders] == [[(0, 0, part)] for part in range(4)]
    before = snapshot(tmp_path)
    assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=inline), small)
    assert len(inline.orders) == 4 and snapshot(tmp_path) == before, "nothing is played twice"


def test_threads_work_too(small, tmp_path):
    with ThreadPoolExecutor(3) as threads:
        assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=threads), small)


@pytest.mark.slow
def test_a_store_that_grows_is_played_by_workers(tmp_path):
    store = tmp_path / "store"
    bj.sweep(["uniform"], TWO, [5, 10], 3, chunk_size=2, out=store)
    inline = Inline()
    more = {"three": bj.Bernoulli(reward=[0.5, 0.7, 0.1], cost=[0.5, 0.2, 0.2])}
    grown = bj.sweep(["kube"], more, [5, 10], 4, chunk_size=2, out=store, executor=inline)
    assert_same(grown, bj.sweep(["kube"], more, [5, 10], 4, chunk_size=2))
    assert inline.orders[0].asked == (["kube"], ["three"])
    assert_same(
        bj.sweep(["uniform"], TWO, [5, 10], 3, out=store), bj.sweep(["uniform"], TWO, [5, 10], 3)
    )


@pytest.mark.slow
def test_what_a_worker_has_played_before_it_failed_counts(small, tmp_path):
    """The second task is played, but its worker dies before it reports the result."""

    class Lost(Inline):
        def submit(self, function, *arguments):
            result = super().submit(function, *arguments)
            return Inline.Failed() if len(self.orders) == 2 and function is worker.work else result

    lost = Lost()
    played = []
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(
        worker, "work", lambda order, work=worker.work: played.append(work(order)) or played[-1]
    )
    with monkeypatch.context():
        assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=lost), small)
    monkeypatch.undo()
    assert len(lost.orders) == 5 and [report["played"] for report in played] == [1, 1, 1, 1, 0]


@pytest.mark.slow
def test_a_task_that_fails_is_submitted_again_three_times(small, tmp_path):
    def thrice(number, order):
        return (
            sum(chunk == (0, 0, 2) for earlier in failing.orders for chunk in earlier.chunks) <= 3
            and (0, 0, 2) in order.chunks
        )

    failing = Inline(thrice)
    assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=failing), small)
    assert Counter(chunk for order in failing.orders for chunk in order.chunks)[0, 0, 2] == 4


@chex.dataclass(frozen=True)
class Branching(bj.Uniform):
    """The mistake is common in JAX, and its error cannot be sent to another process."""

    def __call__(self, state, key):
        arm, state = bj.Uniform.__call__(self, state, key)
        return (arm if arm > 0 else 0), state


@pytest.mark.slow
def test_an_error_in_a_policy_is_named_and_harms_no_other(tmp_path, small):
    inline = Inline()
    message = r"4 tasks of 8 failed.*policy 'mine' on bandit 'two'.*ValueError: policy Branching: __call__ branches on a traced"  # noqa: E501
    with pytest.raises(RuntimeError, match=message):
        policies = {"uniform": bj.Uniform(), "mine": Branching()}
        bj.sweep(**{**SMALL, "policies": policies}, out=tmp_path / "store", executor=inline)
    assert_same(bj.sweep(**SMALL, out=tmp_path / "store", executor=inline), small)
    assert sum(order.chunks[0][0] == 0 for order in inline.orders) == 4, (
        "the other policy was played once"
    )


@pytest.mark.slow
def test_tasks_that_fail_end_a_command_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(FILE)
    monkeypatch.setattr("bts_jax.cli._executor", lambda *_: Inline(lambda *_: True))
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "grid.toml", "--dask", "local"])
    err = capsys.readouterr().err
    assert ended.value.code == 1 and err.count("\n") == 1
    assert err.startswith("bts-jax: error: 1 task of 1 failed") and "the worker is gone" in err


@pytest.mark.slow
def test_a_store_that_gets_another_grid_meanwhile_is_noticed(tmp_path):
    class Grown(Inline):
        def submit(self, function, *arguments):
            result = super().submit(function, *arguments)
            if len(self.orders) == 4:
                bj.sweep(["oracle"], TWO, [5, 10], 2, out=tmp_path / "store")
            return result

    with pytest.raises(
        ValueError, match="has got another grid from another process: start the same sweep again"
    ):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=Grown())


@pytest.mark.slow
def test_a_task_that_fails_for_good_is_named_and_all_others_are_completed(small, tmp_path):
    always = Inline(lambda number, order: (0, 0, 1) in order.chunks)
    named = (
        r"1 task of 4 failed, each 4 times.*1 chunk; the first has policy 'uniform' on "
        r"bandit 'two' \(OSError: the worker "
        r"is gone\).*start the same sweep again"
    )
    with pytest.raises(RuntimeError, match=named):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=always)
    assert (
        bj.open_results(tmp_path / "store").state
        == "incomplete: 1 of 4 chunks are missing (regret NaN)"
    )
    assert_same(bj.sweep(**SMALL, out=tmp_path / "store"), small)


@pytest.mark.slow
def test_an_executor_that_breaks_is_named(tmp_path):
    class Broken(Inline):
        def submit(self, function, *arguments):
            if self.orders:
                raise OSError("cannot schedule new tasks")
            return super().submit(function, *arguments)

    with pytest.raises(RuntimeError, match=r"3 tasks of 4 failed.*cannot schedule new tasks"):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=Broken())
    assert bj.open_results(tmp_path / "store").state.startswith("incomplete: 3 of 4")


@pytest.mark.slow
def test_ctrl_c_cancels_what_has_not_begun(tmp_path, monkeypatch):
    class Slow(Inline):
        """Only the first task ever starts."""

        def __init__(self):
            super().__init__()
            self.futures = []

        def submit(self, function, *arguments):
            future = Future()
            if function is worker.describe or not self.futures:
                future.set_result(function(*arguments))
            if function is worker.work:
                self.futures.append(future)
            return future

    slow = Slow()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(executors, "_state", stop)
    with pytest.raises(KeyboardInterrupt):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=slow)
    assert [future.cancelled() for future in slow.futures] == [False, True, True, True]
    assert bj.open_results(tmp_path / "store").state.startswith("incomplete: 3 of 4")


@pytest.mark.slow
def test_invalid_runs_are_warned_of(tmp_path):
    broken = {"mine": OutOfReach()}
    named = r"policies\['mine'\] on bandits\['two'\] produced invalid runs \(NaN\) for 3 seeds"
    with pytest.warns(RuntimeWarning, match=named):
        bj.sweep(broken, TWO, [5], 3, out=tmp_path / "store", executor=Inline())


@chex.dataclass(frozen=True)
class OutOfReach(bj.Uniform):
    def __call__(self, state, key):
        return 7, state


@chex.dataclass(frozen=True)
class Nested(bj.Uniform):
    inner: object = None


# What is refused.


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"executor": 5}, "executor = 5 has no method submit"),
        ({"out": None}, "out = None.*a folder that all workers share"),
        ({"shard": (1, 2)}, r"shard = \(1, 2\) does not go with executor"),
        ({"devices": 1}, "devices = 1 does not go with executor"),
        ({"memory_bytes": 10**9}, "memory_bytes = 1000000000 does not go with executor"),
        ({"task_seconds": 0}, "task_seconds = 0.0 is not allowed: give a positive number"),
        ({"task_seconds": "x"}, "task_seconds = 'x'"),
        (
            {"policies": {"mine": Nested(inner=OutOfReach())}},
            r"policies\['mine'\] cannot be "
            r"recreated by a worker.*use shards",
        ),
    ],
)
def test_what_does_not_go_with_an_executor_is_refused(changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        bj.sweep(**{**SMALL, "out": tmp_path / "store", "executor": Inline(), **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bts_jax", "jax"])
def test_a_first_worker_with_another_version_is_refused(name, tmp_path, monkeypatch):
    describe = worker.describe
    monkeypatch.setattr(worker, "describe", lambda *_: {**describe(*_), name: "0.0.1"})
    with pytest.raises(
        ValueError,
        match=f"process {os.getpid()} has {name} 0.0.1, and here it is .*the same versions",
    ):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=Inline())
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_worker_that_would_not_play_the_same_is_refused_by_name(tmp_path, monkeypatch):
    """Another version, another kind of device, or another store under the same path: a later worker
    reports it.
    """
    inline = Inline()
    bj.sweep(**SMALL, out=tmp_path / "store", executor=inline)
    before, order = snapshot(tmp_path), inline.orders[0]

    def refused(order):
        worker._stores.clear()
        return worker.work(tuple(order))["refused"]

    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.1")
        assert "another kind of worker than the first (jax: " in refused(order)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "__version__", "0.0.1")
        assert "(bts_jax: " in refused(order)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda **_: [Worker("gpu", "H200", 1)])
        assert "(platform: cpu there, gpu here)" in refused(order)
    begun = time.monotonic()
    for store in (tmp_path / "nowhere", tmp_path):
        text = refused(order._replace(store=str(store), patience=0.3))
        assert (
            "does not see the store of this sweep after 0.3 s" in text
            and "in a folder that all workers share" in text
        )
    assert time.monotonic() - begun < 10
    assert "is another one there" in refused(order._replace(made=("yesterday", 5), patience=0))
    grown = order._replace(made=(order.made[0], 5), patience=0)
    assert "another process has given the store another grid" in refused(grown)
    assert "there is no module 'my_missing'" in refused(
        order._replace(own=((("Mine", ("my_missing:Mine", ".")),), ()))
    )
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_a_refusal_ends_the_sweep_and_leaves_the_store_as_it_is(tmp_path, monkeypatch):
    inline = Inline()
    monkeypatch.setattr(executors, "PATIENCE", 0.2)
    monkeypatch.setattr(
        worker, "_seen", lambda *_: (_ for _ in ()).throw(worker.Refusal("it has no disk"))
    )
    worker._stores.clear()
    with pytest.raises(
        ValueError,
        match=f"process {os.getpid()} refuses to play: it has no disk.*start the same sweep again",
    ):
        bj.sweep(**SMALL, out=tmp_path / "store", executor=inline)
    assert bj.open_results(tmp_path / "store").state.startswith("incomplete: 4 of 4")


@pytest.mark.slow
def test_other_code_of_a_class_of_ones_own_is_refused(tmp_path, monkeypatch):
    module = tmp_path / "my_changing.py"
    text = (
        "import chex, bts_jax as bj\n@chex.dataclass(frozen=True)\nclass Mine(bj.Uniform):\n    "
        "scale: float = 1.0\n"
    )
    module.write_text(text)
    inline = Inline()
    mine = {"mine": classes.find("my_changing:Mine", folder=tmp_path)()}
    bj.sweep(mine, TWO, [5], 2, out=tmp_path / "store", executor=inline)
    order = inline.orders[0]
    assert order.own == ((("Mine", ("my_changing:Mine", str(tmp_path.resolve()))),), ())
    module.write_text(text + "    def more(self):\n        return 1\n")
    worker._stores.clear()
    assert (
        "it has imported my_changing:Mine before the file changed; restart"
        in worker.work(tuple(order))["refused"]
    )
    # As on a machine with another version of the file.
    monkeypatch.delitem(sys.modules, "my_changing")
    assert (
        "it has other code or settings of policies (mine.code: "
        in worker.work(tuple(order))["refused"]
    )


@pytest.mark.slow
def test_a_class_without_a_file_goes_as_it_is(tmp_path):
    """For example a class of a notebook. Dask sends it by value: the worker cannot compare its
    code, and need not do so.
    """
    text = (
        "import chex, bts_jax as bj\n@chex.dataclass(frozen=True)\nclass "
        "OutOfFile(bj.Uniform):\n    scale: float = 1.0\n"
    )
    inline = Inline()
    whole = bj.sweep({"mine": OutOfFile()}, TWO, [5], 2)
    assert_same(
        bj.sweep({"mine": OutOfFile()}, TWO, [5], 2, out=tmp_path / "store", executor=inline), whole
    )
    order = inline.orders[0]
    namespace = {"__name__": "__main__"}
    exec(text, namespace)
    worker._stores.clear()
    report = worker.work(tuple(order._replace(own=((("OutOfFile", namespace["OutOfFile"]),), ()))))
    assert report.get("played") == 0, report


@chex.dataclass(frozen=True)
class OutOfFile(bj.Uniform):
    scale: float = 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dask", "local", "--shard", "1/2"], "--shard = '1/2' does not go with --dask"),
        (["--slurm", "time=5", "--devices", "1"], "--devices = 1 does not go with --slurm"),
        (["--slurm", "time=5", "--dask", "local"], "--slurm = 'time=5' does not go with --dask"),
        (["--slurm", "time"], "--slurm = 'time' has 'time', which is not NAME=VALUE"),
        (["--slurm", "time=5"], "--slurm = 'time=5' cannot be used (Could not detect"),
        (["--task-seconds", "5"], "--task-seconds = 5 goes with --dask or --slurm"),
        (["--dask", "nonsense"], "--dask = 'nonsense' is not the address of a scheduler"),
    ],
)
def test_bad_commands_end_with_a_message_and_exit_code_2(
    arguments, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(FILE)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "small.toml", *arguments])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and named in err and err.count("\n") == 1, err
    assert not (tmp_path / "small.zarr").exists()


# How a sweep is divided into tasks.


def many(device, policies=("kube", "ucb-bv1", "epsilon-first"), seeds=40):
    costs = np.geomspace(0.02, 1, 60)
    bandits = {
        f"{i}": bj.Bernoulli(reward=[0.5] * (2 + i % 2), cost=[cost] * (2 + i % 2))
        for i, cost in enumerate(costs)
    }
    grid = Grid(list(policies), bandits, [10, 500], seeds, 0, device=device)
    return grid, begin(grid.attributes(), 10, None)


CPU, GPU = Worker("cpu", "core", 1), Worker("gpu", "H200", 1)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_tasks_are_a_partition_and_the_longest_come_first(device):
    grid, results = many(device)
    for seconds in (60, 1e-4):
        divided, widest = schedule.tasks(grid, results, results.chunks, seconds, 1)
        assert sorted(chunk for task in divided for chunk in task) == results.chunks
        works = [sum(schedule.work_of(grid, results, chunk) for chunk in task) for task in divided]
        assert works == sorted(works, reverse=True)
        assert widest == max(
            max(Counter(chunk.policy for chunk in task).values()) for task in divided
        )
        if device is CPU:
            assert len(divided) >= 64 and all(
                len({chunk.policy for chunk in task}) == 1 for task in divided
            )
            programs = {
                call.program
                for task in divided
                for call in schedule.calls(grid, results, task, 100, widest)
            }
            assert len(programs) == 6, "three policies and two kinds of bandits, whatever the tasks"
    short, usual = (
        len(schedule.tasks(grid, results, results.chunks, seconds, 1)[0]) for seconds in (1e-5, 60)
    )
    assert short > 2 * usual if device is CPU else short == usual == 2, (
        "a GPU plays as few runs as these at once"
    )


@pytest.mark.slow
def test_a_task_for_a_gpu_fills_it():
    """At least 8,192 runs of a policy at a time, and several full calls if they are not longer than
    a task should be.
    """
    grid, results = many(GPU, seeds=4000)
    for seconds, full in ((60, False), (1e-6, True)):
        divided, _ = schedule.tasks(grid, results, results.chunks, seconds, 1)
        runs = [
            min(Counter(chunk.policy for chunk in task).values()) * results.chunk_size
            for task in divided
        ]
        assert sum(number < 8192 for number in runs) <= 6, (
            "what is left over, of each policy and kind of bandit"
        )
        assert not full or max(runs) < 2 * 8192
    grid, results = many(GPU, seeds=400)
    results.chunk_size = 2**15  # as with this many seeds
    divided, _ = schedule.tasks(grid, results, results.chunks, 60, 1)
    assert max(map(len, divided)) > 2


def test_a_task_takes_about_as_long_as_it_should():
    grid, results = many(CPU, seeds=400)
    divided, _ = schedule.tasks(grid, results, results.chunks, 0.02, 1)
    expected = [
        sum(schedule.work_of(grid, results, chunk) for chunk in task)
        * results.chunk_size
        / schedule.CPU_SPEED
        for task in divided
    ]
    assert np.median(expected) == pytest.approx(0.02, rel=0.1) and len(divided) > 64


@pytest.mark.parametrize("deal", ["tasks", "shards"])
def test_on_a_gpu_all_policies_of_a_bandit_stay_together(deal):
    """Their batches are then fused into one program."""
    grid, results = many(GPU)
    parts = (
        schedule.tasks(grid, results, results.chunks, 60, 1)[0]
        if deal == "tasks"
        else schedule.shards(grid, results, results.chunks, 4)
    )
    for part in parts:
        places = {
            chunk[1:]: {other.policy for other in part if other[1:] == chunk[1:]} for chunk in part
        }
        assert all(policies == {0, 1, 2} for policies in places.values())
        fused = schedule.fuse(grid, results, schedule.calls(grid, results, part, 2**15), 2**15)
        assert max(map(len, fused)) == 3


@pytest.mark.slow
def test_a_slow_worker_does_not_hold_up_the_others():
    """Chunks differ by a factor of fifty, and one of two workers has half the speed. The time is
    within 1.15 of the optimum.
    """
    grid, results = many(CPU)
    works = [
        sum(schedule.work_of(grid, results, chunk) for chunk in task)
        for task in schedule.tasks(grid, results, results.chunks, 60, 1)[0]
    ]
    ends = [(0.0, 1.0), (0.0, 0.5)]
    for task in works:
        end, speed = heappop(ends)
        heappush(ends, (end + task / speed, speed))
    assert max(ends)[0] < 1.15 * sum(works) / 1.5


# How workers share a machine.


@pytest.mark.slow
def test_workers_of_one_parent_are_counted(tmp_path):
    def process(name, parent, command, cores="f"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text(
            f"Name:\tpython\nPPid:\t{parent}\nCpus_allowed:\t{cores}\n"
        )
        (tmp_path / name / "cmdline").write_bytes(command)

    spawned = b"python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=%d)\0--multiprocessing-fork\0"  # noqa: E501
    for number in range(3):
        process(str(100 + number), 7, spawned % number)
    process("103", 7, b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0")
    process("104", 8, spawned % 4)
    process("105", 7, spawned % 5, cores="f0")
    (tmp_path / "106").mkdir()  # it has ended meanwhile
    (tmp_path / "meminfo").write_text("")
    assert machine.workers_here(tmp_path, "100") == (4, 3), "one is bound to other cores"
    assert machine.workers_here(tmp_path, "105") == (4, 1) and machine.workers_here(
        tmp_path, "104"
    ) == (1, 1)
    assert machine.workers_here(tmp_path / "none", "1") == (1, 1)


@pytest.mark.slow
def test_workers_take_one_gpu_each_and_share_when_there_are_too_few(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_held", held := [])
    assert [machine.claimed(["2", "GPU-a/b"], tmp_path) for _ in range(2)] == ["2", "GPU-a/b"]
    assert machine.claimed(["2", "GPU-a/b"], tmp_path) in ("2", "GPU-a/b")
    for file in held:
        file.close()
    assert machine.claimed(["2", "GPU-a/b"], tmp_path) == "2", (
        "free again after its process has ended"
    )
    held[-1].close()


@pytest.mark.parametrize(
    ("variable", "files", "gpus"),
    [
        (None, ["nvidia0", "nvidia1", "nvidiactl", "null"], ["0", "1"]),
        (None, [], []),
        ("3, 5", ["nvidia0"], ["3", "5"]),
        ("", ["nvidia0"], []),
        ("-1", ["nvidia0"], []),
    ],
)
def test_visible_gpus_are_found_without_jax(variable, files, gpus, tmp_path, monkeypatch):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert machine.visible_gpus(tmp_path) == gpus
    assert machine.visible_gpus(tmp_path / "none") == ([] if variable is None else gpus)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "gpus", "devices", "environment"),
    [
        ((1, 1), ["0", "1"], None, {}),
        ((2, 2), [], 4, {}),
        ((3, 3), [], 2, {}),
        ((9, 9), [], 1, {}),
        ((9, 2), [], 4, {}),
        ((2, 1), ["0", "1"], None, {"CUDA_VISIBLE_DEVICES": "0"}),
        ((2, 2), ["0", "1"], 4, {"CUDA_VISIBLE_DEVICES": "0"}),
        (
            (3, 3),
            ["0", "1"],
            2,
            {"CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        ((2, 2), ["0"], 4, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ],
)
def test_what_a_worker_leaves_to_the_others(
    workers, gpus, devices, environment, monkeypatch, tmp_path
):
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "BTS_JAX_CPU_DEVICES",
        "BTS_JAX_WORKERS",
    ):
        monkeypatch.delenv(name, raising=False)
    updates = {}
    monkeypatch.setattr(machine, "has_started", lambda: False)
    monkeypatch.setattr(machine, "workers_here", lambda: workers)
    monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(machine, "private_folder", lambda: tmp_path)
    monkeypatch.setattr(machine.jax.config, "update", updates.__setitem__)
    monkeypatch.setattr(machine, "_held", [])
    before = dict(os.environ)
    machine.share_machine()
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for name in changed:
        monkeypatch.delenv(name)
    assert changed == environment and updates.get("jax_num_cpu_devices") == devices
    monkeypatch.setattr(machine, "has_started", lambda: True)
    updates.clear()
    machine.share_machine()
    assert not updates, "too late"


@pytest.mark.slow
def test_the_first_worker_of_a_pool_does_not_take_the_whole_machine(monkeypatch):
    """A process pool starts its processes one by one, so the first one sees no others."""
    updates = {}
    monkeypatch.setattr(machine, "has_started", lambda: False)
    monkeypatch.setattr(machine, "workers_here", lambda: (1, 1))
    monkeypatch.setattr(machine, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(machine, "claimed", lambda gpus: gpus[1])
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(machine, "enable_cache", lambda: None)
    monkeypatch.setattr(machine.jax.config, "update", updates.__setitem__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in ("BTS_JAX_CPU_DEVICES", "BTS_JAX_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    machine.share_machine(4, one_gpu=True)
    assert updates == {"jax_num_cpu_devices": 2} and os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert executors._workers(ProcessPoolExecutor(3)) == 3 and executors._workers(Inline()) == 1
