# SPDX-License-Identifier: Apache-2.0
"""Who samples which request, the masks of grammars, and the thread of asynchronous steps."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

from trnport.adapters.vllm.capabilities import Capabilities
from trnport.adapters.vllm.choosing import TokenChooser
from trnport.adapters.vllm.device_thread import DeviceThread
from trnport.adapters.vllm.masks import grammar_masks
from trnport.adapters.vllm.output import build_output
from trnport.adapters.vllm.sampled import SampledRequests
from trnport.core.engine.result import StepResult
from trnport.core.errors import ConfigError

pytestmark = pytest.mark.vllm

DEVICE = Capabilities(on_device=True)
SILENT = Capabilities(on_device=True, returns_logits=False)
GREEDY = Capabilities(on_device=True, all_greedy=True, returns_logits=False)

HOST_ONLY = {
    "logprobs": 0,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.2,
    "min_p": 0.1,
    "min_tokens": 2,
    "logit_bias": {3: 1.0},
    "allowed_token_ids": [3, 4],
    "bad_words": ["x"],
}
EASY = [{}, {"temperature": 0}, {"top_k": 5, "top_p": 0.3, "seed": 4}, {"stop": "x", "n": 2}]


@pytest.mark.parametrize("name", HOST_ONLY)
def test_a_parameter_that_programs_do_not_know_needs_logits(name):
    params = SamplingParams(**{name: HOST_ONLY[name]})
    assert DEVICE.host_parameter(params) == name
    assert DEVICE.refusal(params) is None
    assert Capabilities().refusal(params) is None
    parameter, message = SILENT.refusal(params)
    assert parameter == name
    assert message.startswith(f"{name}=") and "without --max-logprobs 0" in message


@pytest.mark.parametrize("params", EASY, ids=str)
def test_what_programs_know_is_left_to_them(params):
    for capabilities in (Capabilities(), DEVICE, SILENT):
        assert capabilities.host_parameter(SamplingParams(**params)) is None
        assert capabilities.refusal(SamplingParams(**params)) is None


def test_all_greedy_programs_do_not_draw():
    assert GREEDY.refusal(SamplingParams(temperature=0.7))[0] == "temperature"
    assert GREEDY.refusal(SamplingParams(temperature=0)) is None


def test_a_grammar_needs_programs_with_a_mask():
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a"]))
    parameter, message = DEVICE.refusal(params)
    assert parameter == "structured_outputs"
    assert 'restart it with "enable_structured_outputs": true in neuron_config' in message
    assert Capabilities(on_device=True, masked=True).refusal(params) is None
    assert Capabilities().refusal(params) is None


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 131])
def test_a_mask_has_the_bits_of_its_words(vocab):
    words = -(-vocab // 32)
    bits = np.random.default_rng(vocab).integers(-(2**31), 2**31, (3, words), dtype=np.int64)
    grammar = GrammarOutput(["c", "a", "b"], bits.astype(np.int32))
    masks = grammar_masks(grammar, vocab)
    assert list(masks) == ["c", "a", "b"]
    for row, mask in zip(bits.tolist(), masks.values(), strict=True):
        assert mask.tolist() == [bool(row[i // 32] >> (i % 32) & 1) for i in range(vocab)]


def test_tokens_beyond_a_grammars_vocabulary_are_forbidden():
    masks = grammar_masks(GrammarOutput(["a"], np.full((1, 1), -1, dtype=np.int32)), 40)
    assert masks["a"].tolist() == [True] * 32 + [False] * 8
    assert grammar_masks(None, 40) == {}


def chooser(capabilities, processors=None, **requests):
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            logprobs_mode="raw_logprobs", use_fp64_gumbel=False, logits_processors=processors
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        speculative_config=None,
    )
    sampled = SampledRequests()
    for name, params in requests.items():
        sampled.add(name, SamplingParams(**params), [1, 2], [])
    return TokenChooser(config, capabilities, sampled)


def schedule_of(names):
    schedule = SchedulerOutput.make_empty()
    schedule.num_scheduled_tokens = dict.fromkeys(names, 1)
    return schedule


def test_rows_of_both_kinds_keep_their_tokens_and_logprobs():
    requests = {
        "a": {"temperature": 0},
        "b": {"temperature": 0, "logit_bias": {7: 100.0}},
        "c": {"temperature": 1.0},
        "d": {"temperature": 0, "logprobs": 2},
    }
    logits = torch.randn(4, 37, generator=torch.Generator().manual_seed(0))
    # Numbers that no sampler would give, so that it shows where a token comes from.
    result = StepResult(list(requests), logits.clone(), torch.tensor([30, 31, 32, 33]))
    chosen = chooser(DEVICE, **requests).choose(schedule_of(requests), None, result)
    report = build_output([*requests, "chunk"], *chosen)
    tokens = {i: report.sampled_token_ids[row] for i, row in report.req_id_to_index.items()}
    best = int(logits[3].argmax())
    assert tokens == {"a": [30], "b": [7], "c": [32], "d": [best], "chunk": []}
    scores = report.logprobs.slice_request(report.req_id_to_index["d"], 1)
    assert scores.logprob_token_ids[0][0] == best
    assert scores.logprobs[0][0] == pytest.approx(float(logits[3].log_softmax(-1)[best]))


def test_a_grammar_also_holds_for_rows_that_the_host_samples():
    requests = {"a": {"temperature": 0}, "b": {"temperature": 0, "min_tokens": 1}}
    words = np.zeros((2, 2), dtype=np.int32)
    words[:, 0] = [1 << 5, 1 << 9]
    result = StepResult(["a", "b"], torch.randn(2, 37), torch.tensor([5, 30]))
    grammar = GrammarOutput(["a", "b"], words)
    chosen = chooser(DEVICE, **requests).choose(schedule_of(requests), grammar, result)
    assert dict(zip(chosen.request_ids, chosen.token_ids, strict=True)) == {"a": 5, "b": 9}


def test_custom_processors_see_every_row_or_none():
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class Seven(LogitsProcessor):
        def __init__(self, *_):
            pass

        def is_argmax_invariant(self):
            return False

        def update_state(self, batch_update):
            pass

        def apply(self, logits):
            logits[:, 7] = 1000
            return logits

    result = StepResult(["a"], torch.randn(1, 37), torch.tensor([30]))
    choose = chooser(DEVICE, [Seven], a={"temperature": 0}).choose
    assert choose(schedule_of("a"), None, result).token_ids == [7]
    with pytest.raises(ConfigError, match=r"max_logprobs=0.*processors"):
        chooser(SILENT, [Seven])


# --- the thread -----------------------------------------------------------------------------------


class Steps:
    """Remembers what is called, and on which thread."""

    def __init__(self, fail_at=None):
        self.calls, self.threads, self.fail_at = [], set(), fail_at
        self.gate = threading.Event()

    def execute(self, schedule):
        return self._record(("execute", schedule.step))

    def sample(self, grammar):
        return self._record(("sample", int(grammar.grammar_bitmask[0, 0])))

    def _record(self, call):
        self.gate.wait(10)
        if call == self.fail_at:
            raise RuntimeError(f"{call} went wrong")
        self.calls.append(call)
        self.threads.add(threading.current_thread())
        return call


class Masks:
    """Fills one array for every step, as vLLM does."""

    def __init__(self):
        self.words = np.zeros((1, 1), dtype=np.int32)

    def of(self, number):
        self.words[0, 0] = number
        return GrammarOutput(["r"], self.words)


def step(number, tokens=1):
    scheduled = {"r": tokens} if tokens else {}
    return SimpleNamespace(step=number, num_scheduled_tokens=scheduled)


def start(steps):
    failures = []
    return DeviceThread(steps.execute, steps.sample, failures.append), failures


def test_steps_are_queued_at_once_and_run_in_order():
    steps, masks = Steps(), Masks()
    thread, failures = start(steps)
    outputs = []
    for number in range(3):
        assert thread.execute(step(number)) is True
        outputs.append(thread.sample(masks.of(number)))
    assert not steps.calls, "nothing could have run yet"
    steps.gate.set()
    assert outputs[2].get_output() == ("sample", 2)
    assert outputs[0].get_output() == ("sample", 0)
    assert steps.calls == [(half, n) for n in range(3) for half in ("execute", "sample")]
    assert thread.execute(step(3, tokens=0)) is False
    assert steps.calls[-1] == ("execute", 3), "a step without tokens has no second half to wait for"
    assert len(steps.threads) == 1 and threading.current_thread() not in steps.threads
    thread.close()
    assert not failures and not any(t.is_alive() for t in steps.threads)


@pytest.mark.parametrize("half", ["execute", "sample"])
def test_a_failure_reaches_whoever_waits_and_nothing_runs_after_it(half):
    steps, masks = Steps(fail_at=(half, 1)), Masks()
    thread, failures = start(steps)
    outputs = []
    for number in range(3):
        thread.execute(step(number))
        outputs.append(thread.sample(masks.of(number)))
    steps.gate.set()
    assert outputs[0].get_output() == ("sample", 0)
    for output in outputs[1:]:
        with pytest.raises(RuntimeError, match="went wrong"):
            output.get_output()
    with pytest.raises(RuntimeError, match="went wrong"):
        thread.execute(step(3))
    assert [str(error) for error in failures] == [f"{(half, 1)} went wrong"]
    assert all(number < 2 for _, number in steps.calls)
    thread.close()


def test_closing_waits_for_the_step_under_way_and_drops_the_rest():
    steps = Steps()
    thread, _ = start(steps)
    for number in range(3):
        thread.execute(step(number))
    time.sleep(0.05)
    threading.Timer(0.1, steps.gate.set).start()
    thread.close()
    assert steps.calls == [("execute", 0)]
