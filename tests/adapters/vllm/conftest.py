# SPDX-License-Identifier: Apache-2.0
"""A tiny checkpoint with a tokenizer, and vLLM engines on it."""

import contextlib
import json
import string
from pathlib import Path

import pytest

from tests.compiling import nothing_is_compiled

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + '|' }}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a random Llama of 131 tokens, and the Transformers model it came from."""
    pytest.importorskip("vllm")
    from tests.zoo import save_llama

    folder = tmp_path_factory.mktemp("tiny-llama")
    model = save_llama(folder, "awkward")
    save_tokenizer(folder)
    return folder, model


def save_tokenizer(folder: Path) -> None:
    """One token for each character, 131 in all, with a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    visible = string.ascii_letters + string.digits + string.punctuation + " \n"
    filler = [chr(code) for code in range(0x3B1, 0x3B1 + 131 - len(special) - len(visible))]
    vocab = {token: i for i, token in enumerate([*special, *visible, *filler])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder)
    # Random weights stop nowhere sensible; tests that need an end ask for one.
    (folder / "generation_config.json").write_text(json.dumps({}))


DEFAULTS = {
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "block_size": 4,
    "num_gpu_blocks_override": 65,
    "disable_log_stats": True,
    "generation_config": "vllm",
    "seed": 0,
}


@contextlib.contextmanager
def open_llm(folder, **settings):
    """An engine inside this process."""
    from vllm import LLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        llm = LLM(str(folder), **{**DEFAULTS, **settings})
        try:
            with nothing_is_compiled(compiler_of(llm)):
                yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def llm(tiny):
    with open_llm(tiny[0]) as engine:
        yield engine


def worker_of(engine):
    """The worker behind an engine inside this process."""
    return engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def compiler_of(engine):
    return worker_of(engine)._executor._programs._compiler


def scheduler_of(engine):
    return engine.llm_engine.engine_core.engine_core.scheduler


def greedy_reference(model, prompt, count):
    """What Transformers generates."""
    import torch

    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, use_cache=True
        )
    return out[0, len(prompt) :].tolist()


def generate(engine, prompts, count=8, **params):
    """Tokens for several prompts of token ids."""
    from vllm import SamplingParams

    params = {"temperature": 0, "max_tokens": count, "ignore_eos": True, **params}
    outputs = engine.generate(
        [{"prompt_token_ids": list(prompt)} for prompt in prompts],
        SamplingParams(**params),
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def count_preemptions(engine):
    """A list that grows with every preemption."""
    scheduler = scheduler_of(engine)
    original, preempted = scheduler._preempt_request, []

    def counted(request, *args, **kwargs):
        preempted.append(request.request_id)
        return original(request, *args, **kwargs)

    scheduler._preempt_request = counted
    return preempted
