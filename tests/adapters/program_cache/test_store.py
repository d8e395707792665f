# SPDX-License-Identifier: Apache-2.0
"""Programs on disk: made once, whole or not at all, whoever dies meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trnport.adapters.program_cache import Entry, ProgramCache, prune, verify
from trnport.core.errors import CompilationError, ConfigError

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 60.0


def slow_compiler(folder: Path, diary: Path, seconds: float) -> None:
    """A compiler that takes its time, and notes every run in a diary."""
    with diary.open("a") as file:
        file.write(f"{os.getpid()}\n")
    (folder / "half").write_bytes(b"first half")
    time.sleep(seconds)
    (folder / "code").mkdir()
    (folder / "code" / "rest.so").write_bytes(b"the rest")


def start_up(root: Path, keys: list[str], seconds: float, answers: Any) -> None:
    """What a starting server does with its cache, in a process of its own."""
    cache = ProgramCache(root / "cache", timeout=PATIENCE)
    made = []
    for key in keys:
        found, was_made = cache.find_or_make(
            key, key, lambda folder: slow_compiler(folder, root / "diary", seconds)
        )
        assert sorted(found.files) == ["code/rest.so", "half"]
        assert found.problem() == ""
        made.append(was_made)
    answers.put(made)


def process(root: Path, keys: list[str], seconds: float, answers: Any) -> Any:
    started = SPAWN.Process(target=start_up, args=(root, keys, seconds, answers))
    started.start()
    return started


def fill(folder: Path) -> None:
    (folder / "program").write_bytes(b"x" * 100)


def never(folder: Path) -> None:
    raise AssertionError(f"{folder} was to be found, not made")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)


def test_racing_processes_compile_each_program_once(tmp_path: Path) -> None:
    answers = SPAWN.Queue()
    keys = ["a", "b"]
    processes = [process(tmp_path, keys, 0.5, answers) for _ in range(3)]
    made = [answers.get(timeout=PATIENCE) for _ in processes]
    for one in processes:
        one.join(PATIENCE)
        assert one.exitcode == 0
    assert [sum(of_key) for of_key in zip(*made, strict=True)] == [1, 1]
    assert len((tmp_path / "diary").read_text().splitlines()) == len(keys)


def test_a_killed_compilation_is_taken_over(tmp_path: Path) -> None:
    answers = SPAWN.Queue()
    holder = process(tmp_path, ["a"], 1000, answers)
    wait_for(tmp_path / "diary")
    cache = ProgramCache(tmp_path / "cache")
    assert cache.abandoned() == []  # somebody is at work
    waiting = process(tmp_path, ["a"], 0, answers)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(PATIENCE)
    assert answers.get(timeout=PATIENCE) == [True]
    waiting.join(PATIENCE)
    assert list((cache.folder / "staging").iterdir()) == []
    assert [entry.key for entry in cache.entries()] == ["a"]


def test_what_a_killed_process_left_is_pruned(tmp_path: Path) -> None:
    answers = SPAWN.Queue()
    holder = process(tmp_path, ["a"], 1000, answers)
    wait_for(tmp_path / "diary")
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(PATIENCE)
    cache = ProgramCache(tmp_path / "cache")
    assert cache.entries() == []
    removed = prune(cache)
    assert (removed.programs, removed.leftovers) == (0, 1)
    assert cache.abandoned() == []


def test_waiting_ends(tmp_path: Path) -> None:
    answers = SPAWN.Queue()
    holder = process(tmp_path, ["a"], 1000, answers)
    wait_for(tmp_path / "diary")
    with pytest.raises(CompilationError, match=r"'decode'.*a\.lock"):
        ProgramCache(tmp_path / "cache", timeout=0.1).find_or_make("a", "decode", never)
    made, _ = ProgramCache(tmp_path / "cache", timeout=0.1).find_or_make("b", "b", fill)
    assert made.key == "b"  # other keys wait for nobody
    holder.kill()
    holder.join(PATIENCE)


def test_a_failed_compilation_leaves_nothing(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)

    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.find_or_make("a", "a", fail)
    assert cache.entries() == []
    assert cache.abandoned() == []
    assert cache.find_or_make("a", "a", fill)[1]


@pytest.mark.parametrize("damage", ["cut", "missing file", "no manifest", "broken manifest"])
def test_an_incomplete_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    cache = ProgramCache(tmp_path)
    made, _ = cache.find_or_make("a", "a", fill)
    match damage:
        case "cut":
            (made.folder / "program").write_bytes(b"x" * 99)
        case "missing file":
            (made.folder / "program").unlink()
        case "no manifest":
            (made.folder / "manifest.json").unlink()
        case "broken manifest":
            (made.folder / "manifest.json").write_text('{"format": 1, "files": [')
    assert cache.find("a") is None
    assert list(verify(cache)) == [("a", "not complete")]
    assert cache.find_or_make("a", "a", fill)[1]
    assert list(verify(cache)) == []


def test_verify_reads_the_contents(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    made, _ = cache.find_or_make("a", "a", fill)
    (made.folder / "program").write_bytes(b"y" * 100)
    assert list(verify(cache)) == [("a", "program differs from what was stored")]
    assert prune(cache).programs == 1
    assert cache.entries() == []


def test_a_discarded_program_is_made_again(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    cache.find_or_make("a", "a", fill)
    cache.discard("a")
    cache.discard("a")
    assert cache.find_or_make("a", "a", fill)[1]


# --- the shared folder ------------------------------------------------------------------------


def test_a_shared_cache_is_copied_from_and_never_written_to(tmp_path: Path) -> None:
    ProgramCache(tmp_path / "shared").find_or_make("a", "decode", fill)
    before = contents(tmp_path / "shared")
    cache = ProgramCache(tmp_path / "own", shared=tmp_path / "shared")
    found, made = cache.find_or_make("a", "decode", never)
    assert not made
    assert found.folder.is_relative_to(tmp_path / "own")
    assert cache.find_or_make("b", "other", fill)[1]
    assert contents(tmp_path / "shared") == before


def test_a_damaged_shared_program_is_compiled_here(tmp_path: Path) -> None:
    shared, _ = ProgramCache(tmp_path / "shared").find_or_make("a", "decode", fill)
    (shared.folder / "program").unlink()
    cache = ProgramCache(tmp_path / "own", shared=tmp_path / "shared")
    assert cache.find_or_make("a", "decode", fill)[1]


def contents(folder: Path) -> dict[str, tuple[bytes, float]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime) for path in files}


# --- size and environment -----------------------------------------------------------------------


def test_prune_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    for age, key in enumerate(["new", "middle", "old"]):
        made, _ = cache.find_or_make(key, key, fill)
        os.utime(made.folder / "manifest.json", (0, time.time() - 100 * age - 50))
    assert [entry.key for entry in cache.entries()] == ["new", "middle", "old"]
    cache.find("old")  # now it is the one used last
    assert [entry.key for entry in cache.entries()] == ["old", "new", "middle"]
    removed = prune(cache, max_bytes=250)
    assert (removed.programs, removed.num_bytes) == (1, 100)
    assert [entry.key for entry in cache.entries()] == ["old", "new"]
    prune(cache, max_age=20)
    assert [entry.key for entry in cache.entries()] == ["old"]


def test_the_environment_names_the_folders(tmp_path: Path) -> None:
    assert ProgramCache.from_environment({"TRNPORT_CACHE_DIR": "/x"}).folder == Path("/x")
    default = ProgramCache.from_environment({"XDG_CACHE_HOME": "/y"}).folder
    assert default == Path("/y/trnport/programs")
    with pytest.raises(ConfigError, match="TRNPORT_SHARED_CACHE_DIR='/nowhere'"):
        ProgramCache.from_environment({"TRNPORT_SHARED_CACHE_DIR": "/nowhere"})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="TRNPORT_CACHE_DIR"):
        ProgramCache(tmp_path / "file").find_or_make("a", "a", fill)


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    made, _ = ProgramCache(tmp_path).find_or_make("a", "decode", fill)
    read = Entry.read(made.folder)
    assert read is not None
    assert (read.name, read.num_bytes) == ("decode", 100)
