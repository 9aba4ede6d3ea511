"""Compiled programs are stored for later processes. If one is lost or damaged, it is compiled
again.
"""

import json
import os
import stat
import subprocess
import sys
import warnings
import zlib

import jax
import pytest

from bts_jax import cli, enable_cache, files
from bts_jax.engine.compile import cache
from bts_jax.engine.compile.programs import most_programs

# Three programs, and what JAX did for them: how many it read, and how many it compiled.
PROGRAMS = """
import collections, json, os, sys
import jax
import bts_jax

assert jax.config.jax_compilation_cache_dir is None, "import bts_jax leaves it alone"
done = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: done.update([name.rpartition("/")[2]]))
folder = bts_jax.enable_cache()
{meanwhile}
def one(x): return x + 1
def two(x): return x * 2
def three(x): return x - 3
found = [float(jax.jit(f)(jax.numpy.float32(5))) for f in (one, two, three)]
print(json.dumps(dict(folder=folder and str(folder), found=found, read=done["cache_hits"], compiled=done["cache_misses"])))
"""  # noqa: E501


def start(place, code, *arguments):
    """A process of Python without the tests' own cache, in which warnings are errors."""
    usual = {
        name: value
        for name, value in os.environ.items()
        if "JAX" not in name and name != "XLA_FLAGS"
    }
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**usual, "XDG_CACHE_HOME": str(place)},
    )


def ended(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == "", err
    return out


def programs(place, meanwhile=""):
    return json.loads(ended(start(place, PROGRAMS.format(meanwhile=meanwhile))))


@pytest.mark.slow
def test_a_later_command_compiles_nothing(tmp_path):
    code = (
        "import collections, sys, jax\nfrom bts_jax import cli\ndone = collections.Counter()\n"
        "jax.monitoring.register_event_listener(lambda name, **_: "
        "done.update([name.rpartition('/')[2]]))\n"
        "cli.main(sys.argv[1:])\nprint(done['cache_hits'], done['cache_misses'])"
    )
    command = "run --policy uniform --reward 0.5 0.9 --cost 0.25 0.9 --budget 5 --seeds 4".split()
    first, again = (ended(start(tmp_path, code, *command)).splitlines() for _ in range(2))
    read, compiled = map(int, first[-1].split())
    (folder,) = (tmp_path / "bts-jax").iterdir()
    assert compiled > 5 and again[-1].split() == [str(read + compiled), "0"]
    assert first[2].split()[:3] == again[2].split()[:3], "the same numbers"
    assert len(list(folder.iterdir())) == compiled
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "bts-jax", folder)] == [
        0o700
    ] * 2


@pytest.mark.slow
def test_two_processes_at_once_and_whatever_happens_to_their_programs(tmp_path):
    """There is no message, and later processes read all programs that were repaired."""
    both = [start(tmp_path, PROGRAMS.format(meanwhile="")) for _ in range(2)]
    first, other = (json.loads(ended(process)) for process in both)
    assert first["found"] == other["found"] == [6, 10, 2] and first["folder"].startswith(
        str(tmp_path)
    )
    files = {
        name: program.path
        for program in cache.programs(tmp_path / "bts-jax")
        for name in ("one", "two", "three")
        if program.path.name.startswith(f"jit_{name}-")
    }
    total = first["compiled"] + first["read"]

    for name, content in (("one", files["one"].read_bytes()[:-9]), ("two", b"garbage")):
        files[name].unlink()
        files[name].write_bytes(content)
    foreign = [files["one"].with_name(name) for name in ("note", "folder-cache", "link-cache")]
    foreign[0].write_text("mine")
    foreign[1].mkdir()
    foreign[2].symlink_to(foreign[0])
    cut_off = (
        "[os.truncate(path, 50) for path in folder.glob('jit_three-*') if not path.chmod(0o600)]"
    )
    assert programs(tmp_path, cut_off) == {**first, "read": total - 3, "compiled": 3}, (
        "all three are of no use"
    )
    assert all(os.path.lexists(path) for path in foreign) and foreign[0].read_text() == "mine"

    no_space = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    assert programs(tmp_path, no_space) == {**first, "read": total - 1, "compiled": 1}, (
        "the third was removed"
    )
    assert programs(tmp_path) == {**first, "read": total - 1, "compiled": 1}, (
        "and again: there was no space for it"
    )
    assert all(
        zlib.decompress(path.read_bytes()) and stat.S_IMODE(path.stat().st_mode) == 0o400
        for path in files.values()
    )


# In this process.


@pytest.fixture
def updated(monkeypatch, tmp_path):
    """Records the settings made in JAX instead of applying them, because the tests have turned
    JAX's cache off.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("BTS_JAX_CACHE", *(name for name in os.environ if name.startswith("JAX_"))):
        monkeypatch.delenv(name, raising=False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    with monkeypatch.context() as context, warnings.catch_warnings():
        settings = {}
        context.setattr(jax.config, "update", settings.__setitem__)
        context.setattr(cache.atexit, "register", lambda *_: None)
        context.setattr(cache, "_tidied_at_exit", False)
        yield settings
    jax.config.update("jax_compilation_cache_dir", before)


def test_what_the_user_has_set_stays(updated, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "7")
    folder = enable_cache()
    assert folder.parent == tmp_path / "bts-jax" and updated.pop(
        "jax_compilation_cache_dir"
    ) == str(folder)
    assert set(updated) == {
        "jax_persistent_cache_min_entry_size_bytes",
        "jax_persistent_cache_enable_xla_caches",
    }
    updated.clear()
    monkeypatch.setenv("BTS_JAX_CACHE", "off")
    assert enable_cache() is None and not updated and cache.why_unused() == "BTS_JAX_CACHE is off"


def test_a_folder_that_the_user_has_told_jax_stays(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        with monkeypatch.context() as context:
            context.setattr(jax.config, "update", lambda *_: pytest.fail("changed"))
            assert (
                enable_cache() == tmp_path
                and str(tmp_path) in cache.why_unused()
                and not list(tmp_path.iterdir())
            )
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_bad_settings_have_a_remedy(monkeypatch):
    monkeypatch.setenv("BTS_JAX_CACHE", "of")
    with pytest.raises(
        ValueError, match="BTS_JAX_CACHE = 'of' is neither 'on' nor 'off': set one of them"
    ):
        enable_cache()
    for value in (-1, 1e9, True):
        with pytest.raises(
            ValueError,
            match=rf"max_bytes = {value!r} is not a number of bytes: "
            rf"give a whole number",
        ):
            enable_cache(value)


@pytest.mark.parametrize("what", ["file", "open", "link", "loop"])
def test_a_place_that_will_not_do_is_not_used(what, updated, tmp_path):
    top, elsewhere = tmp_path / "bts-jax", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if what == "file":
        top.write_text("")
    elif what == "open":
        top.mkdir()
        top.chmod(0o770)
    else:
        top.symlink_to(elsewhere if what == "link" else top)
    assert enable_cache() is None and not updated
    assert "with mode 700, or set XDG_CACHE_HOME" in cache.why_unused()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("mode", "owner", "safe"),
    [
        (0o755, 0, True),
        (0o777, 0, False),
        (0o1777, 0, True),
        (0o775, 0, False),
        (0o700, 12345, False),
        (0o1777, 12345, False),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
def test_nobody_else_can_exchange_the_folder(
    mode, owner, safe, linked, updated, tmp_path, monkeypatch
):
    """A folder above the cache belongs to another user, or others may write to it; or the same
    holds on the way of a link.
    """
    if os.geteuid() != 0 and owner:
        pytest.skip("only root can give a folder to another user")
    above = tmp_path / "above"
    (above / "mine").mkdir(parents=True, mode=0o700)
    above.chmod(mode)
    os.chown(above, owner, -1) if owner else None
    monkeypatch.setattr(files, "_is_private_group", lambda number: False)
    place = above / "mine"
    if linked:
        (above / "link").symlink_to(above / "mine")
        (tmp_path / "safe").symlink_to(above / "link")
        place = tmp_path / "safe"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert (enable_cache() is not None) == safe == bool(updated)
    if not safe:
        assert cache.why_unused() == (
            f"{str(above)!r} belongs to another user, or others may write to it, so that they "
            "could exchange the programs: set XDG_CACHE_HOME to a folder that only you can change"
        )
        assert not list((above / "mine").iterdir()), "nothing was created there"


def test_links_above_the_cache(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "up").symlink_to("../..")
    (tmp_path / "gone").symlink_to("nowhere")
    assert files.exposed(tmp_path / "loop" / "a" / "b") == tmp_path
    assert files.exposed(tmp_path / "up" / "a" / "b") is None
    assert (
        files.exposed(tmp_path / "gone" / "a") is None
        and files.exposed(tmp_path / "no" / "such" / "folder") is None
    )
    if os.geteuid() == 0:
        os.lchown(tmp_path / "up", 12345, -1)
        assert files.exposed(tmp_path / "up" / "a" / "b") == tmp_path, (
            "another user can exchange this link"
        )


def test_a_group_with_the_name_of_its_only_member_is_private(monkeypatch):
    import grp
    import pwd

    monkeypatch.setattr(
        pwd, "getpwuid", lambda _: pwd.struct_passwd(("ana", "x", 1000, 1000, "", "", ""))
    )
    groups = {1: ("ana", []), 2: ("ana", ["ana"]), 3: ("ana", ["ana", "bo"]), 4: ("users", [])}
    monkeypatch.setattr(
        grp,
        "getgrgid",
        lambda number: grp.struct_group((groups[number][0], "x", number, groups[number][1])),
    )
    assert [files._is_private_group(number) for number in (1, 2, 3, 4, 5)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_files_of_version_0_2_are_removed(tmp_path):
    """It had a second kind of file, which nothing reads any more."""
    folder = tmp_path / "bts-jax" / "programs-a"
    folder.mkdir(parents=True)
    for name in ("x-traced", "y-cache"):
        (folder / name).write_bytes(zlib.compress(b"program"))
    assert len(cache.programs(tmp_path / "bts-jax")) == 2
    cache.tidy(folder, 2**30)
    assert [path.name for path in folder.iterdir()] == ["y-cache"]


def test_the_place_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, place in (
        ("/a", "/a/bts-jax"),
        ("", f"{tmp_path}/.cache/bts-jax"),
        ("a", f"{tmp_path}/.cache/bts-jax"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert str(cache.place()) == place


@pytest.fixture
def made(tmp_path):
    """Programs of two versions, used 1, 2, 3 and 4 seconds after the epoch; and files that are not
    the cache's.
    """
    for i, (folder, size) in enumerate([("a", 500), ("b", 1000), ("a", 2000), ("b", 4000)]):
        path = tmp_path / "bts-jax" / f"programs-{folder}" / f"{size}-cache"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.compress(os.urandom(size), 0).ljust(size))
        path.chmod(0o400)
        os.utime(path, (i + 1, 0))
    others = [
        tmp_path / "bts-jax" / "notes-cache",
        tmp_path / "bts-jax" / "programs-a" / "note",
        tmp_path / "other-cache",
    ]
    for path in others:
        path.write_bytes(bytes(99999))
    return tmp_path / "bts-jax", others


def test_programs_used_last_stay(made):
    top, others = made
    sizes = {program.path.stat().st_size for program in cache.programs(top)}
    _, second, third, large = sorted(sizes)

    def left(max_bytes):
        cache.tidy(top / "programs-a", max_bytes)
        return {program.path.stat().st_size for program in cache.programs(top)}

    assert left(sum(sizes)) == sizes
    assert left(sum(sizes) - 1) == {second, third, large} and left(third + large) == {third, large}
    assert left(large + 1) == {large} and left(0) == set()
    assert all(path.exists() for path in others)


def test_the_command_shows_and_empties_the_cache(made, monkeypatch, capsys):
    top, others = made
    monkeypatch.setenv("XDG_CACHE_HOME", str(top.parent))
    monkeypatch.setenv("BTS_JAX_CACHE", "off")
    size = sum(program.size for program in cache.programs(top))
    for command, said in (
        (["cache"], f"4 programs, {size / 2**20:.1f} MiB of at most 1,024"),
        (["cache", "--clear"], f"removed 4 programs, {size / 2**20:.1f} MiB"),
        (["cache"], "0 programs, 0.0 MiB of at most 1,024"),
    ):
        cli.main(command)
        first, *memory, last = capsys.readouterr().out.splitlines()
        assert (first, last) == (f"{top}: {said}", "not in use: BTS_JAX_CACHE is off")
        limit = (
            f"in memory: at most {most_programs()} programs in a process, about "
            f"{16 * most_programs():,} MiB"
        )
        assert memory == ([] if "--clear" in command else [limit])
    assert all(path.exists() for path in others)


def test_commands_that_play_keep_programs_unless_told_not_to(monkeypatch):
    monkeypatch.setenv("BTS_JAX_CACHE", "on")  # restored afterwards
    enabled = []
    monkeypatch.setattr(cache, "enable_cache", lambda: enabled.append(os.environ["BTS_JAX_CACHE"]))
    for name in ("run", "sweep", "figure1", "study", "theory", "bench"):
        monkeypatch.setitem(cli.COMMANDS, name, lambda arguments: None)
    for command in (
        "run",
        "sweep grid.toml",
        "figure1",
        "study omega",
        "theory",
        "bench",
        "run --no-cache",
    ):
        cli.main(command.split())
    assert enabled == ["on"] * 4 + ["off"]


X86 = (
    "processor\t: 0\nmodel name\t: Xeon\ncpu MHz\t\t: {mhz}\nflags\t\t: fpu "
    "{flag}\n\nprocessor\t: 1\nflags\t: {mhz}\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: {mhz}\nFeatures\t: fp {flag}\nCPU part\t: 0xd0c\n\n"


@pytest.mark.parametrize("text", [X86, ARM])
def test_cpus_are_told_apart_by_their_features(text, tmp_path):
    def cpu(**values):
        (tmp_path / "cpuinfo").write_text(text.format(**values))
        return cache._cpu(tmp_path)

    assert cpu(mhz=1, flag="avx") == cpu(mhz=2, flag="avx") != cpu(mhz=1, flag="sve")
    assert cache._cpu(tmp_path / "none")


def test_files_that_were_never_finished_are_removed(tmp_path):
    old, new = tmp_path / ".old", tmp_path / ".new"
    for path in (old, new):
        path.write_bytes(b"half of a program")
    os.utime(old, (0, 0))
    cache.tidy(tmp_path, 2**30)
    assert not old.exists() and new.exists(), "another process may be writing the new one"
