# SPDX-License-Identifier: Apache-2.0
"""One worker's series, folder and summary, without an engine."""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

pytest.importorskip("vllm")

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trnport.adapters.vllm import env, metric_folder, metrics
from trnport.adapters.vllm.metric_folder import FolderCollector
from trnport.adapters.vllm.series import BOUNDS, Metric, SeriesFiles
from trnport.adapters.vllm.telemetry import Telemetry
from trnport.core.engine.observer import Execution
from trnport.core.errors import ConfigError, UnseenSignatureError

pytestmark = pytest.mark.vllm

README = Path(__file__).parents[3] / "README.md"
RUN = Execution("decode_b4_ctx64", "decode", ("r-1", "r-2", "r-3"), 3, 4, 4, 30, 256)


def scraped(folder):
    """Sample (name, labels) to value, through the text format."""
    registry = CollectorRegistry()
    registry.register(FolderCollector(folder))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@given(st.lists(st.integers(0, 40_000), max_size=20), st.lists(st.floats(0, 1e6), max_size=9))
def test_files_give_what_prometheus_client_itself_gives(padding, amounts):
    """The oracle: the same values in prometheus_client's own metrics, in memory."""
    import tempfile

    theirs = CollectorRegistry()
    histogram = Histogram("trnport:h", "H", ["rank_id"], buckets=BOUNDS, registry=theirs)
    counter = Counter("trnport:c", "C", ["rank_id", "bucket_name"], registry=theirs)
    gauge = Gauge("trnport:g", "G", ["rank_id"], registry=theirs)
    with tempfile.TemporaryDirectory() as folder:
        ours = SeriesFiles(Path(folder), {"rank_id": "1"})
        ours.touch(Metric("h", "histogram", "H"))
        histogram.labels("1")
        for value in padding:
            ours.observe(Metric("h", "histogram", "H"), value)
            histogram.labels("1").observe(value)
        for value in amounts:
            ours.add(Metric("c", "counter", "C", ("bucket_name",)), value, "b")
            counter.labels("1", "b").inc(value)
            ours.set(Metric("g", "gauge", "G"), value)
            gauge.labels("1").set(value)
        expected = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(generate_latest(theirs).decode())
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        assert scraped(Path(folder)) == pytest.approx(expected)
        ours.close(remove=True)
        assert not list(Path(folder).iterdir())


def test_a_killed_workers_leftovers_do_not_hide_the_others(tmp_path):
    (tmp_path / "counter_trnport-1-dead.db").touch()
    series = SeriesFiles(tmp_path, {})
    series.set(metrics.KV_BLOCKS, 5)
    assert scraped(tmp_path) == {("trnport:kv_blocks",): 5}


def test_damage_costs_our_series_and_not_the_scrape(tmp_path):
    (tmp_path / "counter_trnport-1-dead.db").write_bytes(b"\xff\x00\x00\x00\x00\x00\x00\x00abcd")
    assert scraped(tmp_path) == {}
    assert scraped(tmp_path / "nowhere") == {}


def test_the_newer_of_two_workers_in_one_process_counts(tmp_path):
    for blocks in (7, 5):
        SeriesFiles(tmp_path, {}).set(metrics.KV_BLOCKS, blocks)
    assert scraped(tmp_path) == {("trnport:kv_blocks",): 5}


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A place for folders, and a process that has none yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    monkeypatch.setenv(env.METRICS_FOLDER, str(tmp_path / "of-the-script-that-started-us"))
    monkeypatch.setattr(metric_folder.atexit, "register", lambda *_: None)
    metric_folder._own_folder.cache_clear()
    yield tmp_path
    metric_folder._own_folder.cache_clear()


def _child(connection):
    connection.send(str(metric_folder.metrics_folder()))


def test_children_share_the_folder_of_the_first_process_and_strangers_do_not(temporary):
    folder = metric_folder.metrics_folder()
    assert folder.name.startswith("trnport_prometheus_")
    assert folder == metric_folder.metrics_folder()
    assert os.environ[env.METRICS_FOLDER] == str(folder)
    receiver, sender = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(sender,))
    child.start()
    assert receiver.poll(30)
    assert receiver.recv() == str(folder)
    child.join(30)


def test_prometheus_own_variable_comes_first(temporary, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(temporary / "theirs"))
    assert metric_folder.metrics_folder() == temporary / "theirs"
    assert not list(temporary.glob("trnport_prometheus_*"))


def test_a_given_folder_that_is_not_there_is_refused_by_name(temporary, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(temporary / "nowhere"))
    with pytest.raises(ConfigError, match=r"PROMETHEUS_MULTIPROC_DIR='.*nowhere' is not a dir"):
        metric_folder.prepare_metrics()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(temporary))
    metric_folder.prepare_metrics()


OWNER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from trnport.adapters.vllm.metric_folder import metrics_folder
print(metrics_folder(), flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


def test_a_folder_ends_with_its_process_or_with_the_next_one(temporary):
    def start(how):
        command = [sys.executable, "-c", OWNER, str(temporary), how]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start("wait") as living, start("end") as ended:
        kept = Path(living.stdout.readline().strip())
        gone = Path(ended.stdout.readline().strip())
        assert ended.wait(30) == 0
        assert not gone.exists()
        metric_folder.remove_orphans(temporary)
        assert kept.exists(), "its owner lives"
        living.send_signal(signal.SIGKILL)
        living.wait(30)
        assert kept.exists()
        metric_folder.remove_orphans(temporary)
        assert not kept.exists()


# --- the worker's reports -------------------------------------------------------------------------


@pytest.fixture
def telemetry(tmp_path, monkeypatch):
    monkeypatch.setattr("trnport.adapters.vllm.telemetry.metrics_folder", lambda: tmp_path)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="tiny"),
        parallel_config=SimpleNamespace(data_parallel_index=2),
    )
    return Telemetry(config, 0)


def schedule(**tokens):
    new = [SimpleNamespace(prompt_token_ids=[81, 82, 83], num_computed_tokens=2)]
    return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_new_reqs=new)


@contextlib.contextmanager
def bound_logs():
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


def test_a_failed_step_names_its_requests_and_nothing_of_their_content(telemetry):
    telemetry.ready()
    step = telemetry.step(schedule(a=3, b=1))
    with bound_logs() as lines, pytest.raises(UnseenSignatureError), step:
        raise UnseenSignatureError("token 81")
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("step failed", "error")
    assert line["request_ids"] == ["a", "b"]
    assert "81" not in str(line)
    assert structlog.contextvars.get_contextvars() == {}


def test_any_line_within_a_step_carries_its_requests(telemetry):
    with bound_logs() as lines, telemetry.step(schedule(a=3)):
        structlog.get_logger("trnport.core.x").info("deep inside")
    assert lines[0]["request_id"] == "a"


def test_the_summary_comes_once_and_only_of_a_worker_that_was_ready(telemetry):
    with bound_logs() as lines:
        telemetry.close()
        telemetry.observer.compiled("decode_b4_ctx64", 0.5)
        telemetry.ready()
        with telemetry.step(schedule(a=1, b=1, c=1)):
            telemetry.observer.executed(RUN, 0.25)
        with telemetry.step(schedule()):  # nothing to compute
            pass
        with contextlib.suppress(UnseenSignatureError), telemetry.step(schedule(a=1)):
            raise UnseenSignatureError("not compiled")
        telemetry.close()
        telemetry.close()
    (summary,) = [line for line in lines if line["event"] == "end of run"]
    assert summary["steps"] == 2
    assert summary["programs_executed"] == 1
    assert summary["padding_waste"] == "25.0%"
    assert summary["most_hit"] == ["decode_b4_ctx64:1"]
    assert summary["signature_misses"] == 1


def test_a_late_compilation_is_a_miss(telemetry):
    telemetry.ready()
    telemetry.observer.compiled("decode_b4_ctx64", 0.5)
    with bound_logs() as lines:
        telemetry.close()
    assert lines[0]["signature_misses"] == 1


def test_a_run_is_counted_under_its_labels(telemetry, tmp_path):
    telemetry.observer.executed(RUN, 0.25)
    with telemetry.step(schedule(a=1)):
        pass
    found = scraped(tmp_path)
    labels = (("engine", "2"), ("model_name", "tiny"), ("rank_id", "0"))
    bucket = ("bucket_name", "decode_b4_ctx64")
    assert found["trnport:program_execution_seconds_total", bucket, *labels] == 0.25
    assert found["trnport:batched_tokens_padded_total", bucket, *labels] == 4
    assert found["trnport:context_tokens_total", bucket, *labels] == 30
    assert found["trnport:num_seqs_padding_sum", *labels] == 1
    assert found["trnport:prefix_cache_queries_total", *labels] == 3
    assert found["trnport:prefix_cache_hits_total", *labels] == 2


# --- the README -----------------------------------------------------------------------------------


def test_the_readme_lists_every_metric():
    """Each row: name, type, labels beside the worker's, meaning."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", README.read_text(), re.MULTILINE
    )
    assert rows == [
        (m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.meaning)
        for m in metrics.METRICS
    ], "the table in README.md should be:\n" + "\n".join(
        f"| `{m.name}` | {m.kind} | {', '.join(f'`{x}`' for x in m.labels)} | {m.meaning} |"
        for m in metrics.METRICS
    )
