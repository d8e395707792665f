# SPDX-License-Identifier: Apache-2.0
"""How a server's processes come to be, and that they do not outlive it."""

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trnport.adapters.vllm import start_method

METHOD = start_method.METHOD


@pytest.fixture
def process(monkeypatch):
    """A first process of ``vllm serve`` that has chosen nothing yet; forks are left alone."""
    forks = []
    monkeypatch.delenv(METHOD, raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "model"])
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.cli.main", object())
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: forks.append(hooks))
    return forks


def test_a_server_forks(process, monkeypatch):
    start_method.choose_start_method()
    assert os.environ[METHOD] == "fork" and len(process) == 1
    start_method.choose_start_method()
    assert len(process) == 1
    monkeypatch.delenv(METHOD)


def test_a_server_run_as_a_module_forks(process, monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm.entrypoints.cli.main")
    spec = SimpleNamespace(name="vllm.entrypoints.cli.main")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    start_method.choose_start_method()
    assert os.environ[METHOD] == "fork"
    monkeypatch.delenv(METHOD)


def test_the_users_choice_stays(process, monkeypatch):
    monkeypatch.setenv(METHOD, "spawn")
    start_method.choose_start_method()
    assert os.environ[METHOD] == "spawn" and not process


@pytest.mark.parametrize("other", ["script", "bench", "child"])
def test_whatever_is_no_server_chooses_nothing(process, monkeypatch, other):
    if other == "script":
        monkeypatch.delitem(sys.modules, "vllm.entrypoints.cli.main")
    if other == "bench":
        monkeypatch.setattr(sys, "argv", ["vllm", "bench", "serve"])
    if other == "child":
        monkeypatch.setattr(start_method.multiprocessing, "parent_process", object)
    start_method.choose_start_method()
    assert METHOD not in os.environ and not process


SERVER = textwrap.dedent("""
    import os, socket, sys, time
    from trnport.adapters.vllm.start_method import separate_children

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    if sys.argv[1] == "separate":
        separate_children()
    port = listening.getsockname()[1]
    if os.fork() == 0:
        print(os.getpid(), port, flush=True)
    time.sleep(60)
""")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end_of(pid):
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["separate", "plain"])
def test_a_killed_server_leaves_neither_process_nor_port(how):
    command = [sys.executable, "-c", SERVER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        child, port = map(int, server.stdout.readline().split())
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        # While the child is halted, only its sockets speak for it.
        os.kill(child, signal.SIGSTOP)
        server.kill()
        server.wait()
        refused = socket.socket().connect_ex(("127.0.0.1", port)) != 0
        os.kill(child, signal.SIGCONT)
        if how == "separate":
            wait_for_the_end_of(child)
        survived = is_alive(child)
        if survived:
            os.kill(child, signal.SIGKILL)
    # Without our part the child lives on with the port, so the test can fail.
    assert (refused, survived) == ((True, False) if how == "separate" else (False, True))


def test_a_server_collects_no_garbage_during_its_imports(process, monkeypatch):
    try:
        start_method.pause_collector()
        assert not gc.isenabled()
        imported = [object(), {}]
        start_method.resume_collector()
        assert gc.isenabled() and not any(found is imported for found in gc.get_objects())
        later = [object(), {}]
        start_method.resume_collector()  # with a copy of the configuration
        assert any(found is later for found in gc.get_objects())
        monkeypatch.setattr(sys, "argv", ["script"])
        start_method.pause_collector()
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
