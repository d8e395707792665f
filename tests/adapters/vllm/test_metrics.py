# SPDX-License-Identifier: Apache-2.0
"""Our metrics at a server's /metrics, and vLLM's own where they were."""

import json
import signal
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from prometheus_client.parser import text_string_to_metric_families

from tests.adapters.vllm.test_serve import Server, completion
from trnport.adapters.vllm.metrics import METRICS

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

BUCKETS = ["--max-model-len=256", "--max-num-batched-tokens=128", "--num-gpu-blocks-override=129"]
WORD = "quetzal"
"""A prompt that no log line contains by chance."""


class Scrape:
    """The samples of one answer of /metrics."""

    def __init__(self, server):
        with urllib.request.urlopen(server.url("/metrics"), timeout=20) as answer:
            self.text = answer.read().decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name, **labels):
        """The sum of a series over all labels that are not given."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, f"no {name} with {labels}"
        return sum(found)

    def names(self, prefix):
        return {family.name for family in self.families if family.name.startswith(prefix)}

    def labels(self, name, label):
        return {sample.labels[label] for sample in self.samples if sample.name == name}


@pytest.fixture(scope="module")
def ranks(tiny, tmp_path_factory):
    """A server of two ranks that has answered one request of 5 tokens, in one HTTP server."""
    folder = tmp_path_factory.mktemp("metrics")
    environment = {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "TRNPORT_LOG_FORMAT": "json",
        "TMPDIR": str(folder),
        # What a script leaves behind that has used trnport before it starts a server.
        "TRNPORT_METRICS_DIR": str(folder / "of-another-server"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with Server(tiny[0], folder / "log.txt", *BUCKETS, "--tensor-parallel-size=2") as running:
            running.wait_until_ready()
            running.before = Scrape(running)
            completion(running, "hello", max_tokens=4)
            yield running


def test_every_metric_exists_before_the_first_request(ranks):
    assert ranks.before.names("trnport:") == {metric.full_name for metric in METRICS}
    assert ranks.before.value("trnport:program_execution_count_total") == 0
    for family in ranks.before.families:
        if family.name.startswith("trnport:"):
            assert {s.labels["rank_id"] for s in family.samples} == {"0", "1"}
            assert {s.labels["model_name"] for s in family.samples} == {"tiny"}
            assert {s.labels["engine"] for s in family.samples} == {"0"}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_request_is_counted_with_its_padding(ranks, rank):
    """5 tokens in a bucket of 128 leave 123; 3 more tokens are decodes of one row."""
    now, mine = Scrape(ranks), {"rank_id": rank}
    runs = "trnport:program_execution_count_total"
    assert now.value(runs, bucket_name="prefill_s128", **mine) == 1
    assert now.value(runs, bucket_name="decode_b1_ctx256", **mine) == 3
    assert now.value(runs, **mine) == 4
    assert now.value("trnport:num_batched_tokens_padding_sum", **mine) == 123
    assert now.value("trnport:num_batched_tokens_padding_count", **mine) == 1
    assert now.value("trnport:num_batched_tokens_padding_bucket", le="64.0", **mine) == 0
    assert now.value("trnport:num_batched_tokens_padding_bucket", le="128.0", **mine) == 1
    assert now.value("trnport:num_seqs_padding_count", **mine) == 3
    assert now.value("trnport:num_seqs_padding_sum", **mine) == 0
    assert now.value("trnport:batched_tokens_total", **mine) == 8
    assert now.value("trnport:batched_tokens_padded_total", **mine) == 131
    decodes = {"bucket_name": "decode_b1_ctx256", **mine}
    assert now.value("trnport:context_tokens_total", **decodes) == 6 + 7 + 8
    assert now.value("trnport:context_tokens_padded_total", **decodes) == 3 * 256
    assert now.value("trnport:kv_blocks", **mine) == 129
    assert now.value("trnport:prefix_cache_queries_total", **mine) == 5
    for positive in ("startup_time_seconds", "model_load_time_seconds", "model_load_size_bytes"):
        assert now.value(f"trnport:{positive}", **mine) > 0
    for name in now.labels(runs, "bucket_name"):
        assert now.value("trnport:compilation_time_seconds", bucket_name=name, **mine) > 0


def test_vllms_own_metrics_are_there_once(ranks):
    now = Scrape(ranks)
    assert now.value("vllm:prompt_tokens_total", engine="0") == 5
    assert now.value("vllm:generation_tokens_total", engine="0") == 4
    assert now.value("process_start_time_seconds") > 0, "metrics of the HTTP server's process"
    families = Counter(family.name for family in now.families)
    assert [name for name, count in families.items() if count > 1] == []
    keys = Counter((s.name, tuple(sorted(s.labels.items()))) for s in now.samples)
    assert [key for key, count in keys.items() if count > 1] == []
    assert len(now.names("vllm:")) > 20


def test_some_series_can_be_asked_for_by_name(ranks):
    url = ranks.url("/metrics?name[]=trnport:kv_blocks")
    with urllib.request.urlopen(url, timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert "trnport:kv_blocks" in {family.name for family in families}


def our_lines(server):
    """Our JSON lines so far."""
    return [json.loads(line) for line in server.text().splitlines() if line.startswith('{"')]


def test_debug_lines_carry_the_requests_id_and_never_its_text(ranks):
    completion(ranks, WORD, headers={"X-Request-Id": "who-asked"}, max_tokens=3)
    lines = [line for line in our_lines(ranks) if line["event"] == "program ran"]
    mine = [line for line in lines if "who-asked" in line["request_id"]]
    programs = Counter(line["program"] for line in mine)
    assert programs == {"prefill_s128": 2, "decode_b1_ctx256": 4}, "on each of two ranks"
    assert {line["padded_tokens"] for line in mine} == {128, 1}
    assert all(line["milliseconds"] > 0 for line in mine)
    assert {line["level"] for line in mine} == {"debug"}
    everything = json.dumps(our_lines(ranks))
    assert WORD not in everything
    tokens = ", ".join(str(3 + "abcdefghijklmnopqrstuvwxyz".index(letter)) for letter in WORD)
    assert tokens not in everything


def test_a_bad_request_changes_no_series(ranks):
    before = Scrape(ranks).value("trnport:program_execution_count_total")
    status, _ = ranks.post("/v1/completions", {"prompt": [131]})
    assert status == 400
    assert Scrape(ranks).value("trnport:program_execution_count_total") == before


def test_the_run_ends_with_a_summary_and_no_folder(ranks):
    """The last test of this server: it stops it."""
    folders = list(Path(ranks.log.parent).glob("trnport_prometheus_*"))
    assert len(folders) == 1
    assert ranks.stop(signal.SIGTERM) == 0, ranks.text()[-4000:]
    (summary,) = [line for line in our_lines(ranks) if line["event"] == "end of run"]
    assert summary["programs_executed"] == 4 + 3
    assert summary["steps"] == 7
    assert summary["signature_misses"] == 0
    assert summary["most_hit"] == ["decode_b1_ctx256:5", "prefill_s128:2"]
    assert summary["padding_waste"] == f"{1 - (5 + 7 + 5) / (256 + 5):.1%}"
    assert "Traceback" not in ranks.text()
    assert not folders[0].exists()
