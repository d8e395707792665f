# SPDX-License-Identifier: Apache-2.0
"""Our metrics, beside vLLM's: what the programs do, and how much of it is padding."""

from __future__ import annotations

from trnport.adapters.vllm.series import Metric, SeriesFiles
from trnport.core.engine.observer import Execution

_BUCKET = ("bucket_name",)

EXECUTIONS = Metric("program_execution_count", "counter", "Runs of a program", _BUCKET)
SECONDS = Metric("program_execution_seconds", "counter", "Time spent in runs of a program", _BUCKET)
TOKENS = Metric("batched_tokens", "counter", "Tokens that a program computed", _BUCKET)
PADDED_TOKENS = Metric(
    "batched_tokens_padded", "counter", "Token rows that a program ran, padding included", _BUCKET
)
CONTEXT = Metric(
    "context_tokens", "counter", "Cached tokens in reach of a program's sequences", _BUCKET
)
PADDED_CONTEXT = Metric(
    "context_tokens_padded", "counter", "Cached tokens that a program has room for", _BUCKET
)
TOKENS_PADDING = Metric(
    "num_batched_tokens_padding", "histogram", "Padding rows of each prefill run"
)
SEQS_PADDING = Metric("num_seqs_padding", "histogram", "Padding rows of each decode run")
PREFIX_QUERIES = Metric("prefix_cache_queries", "counter", "Prompt tokens of requests that started")
PREFIX_HITS = Metric("prefix_cache_hits", "counter", "Those of them that were in the cache")
STARTUP = Metric("startup_time_seconds", "gauge", "From the worker's start until it can serve")
COMPILATION = Metric(
    "compilation_time_seconds", "gauge", "Compilation and first run of a program", _BUCKET
)
LOAD_TIME = Metric("model_load_time_seconds", "gauge", "Time to build the model and read weights")
LOAD_SIZE = Metric("model_load_size_bytes", "gauge", "Parameters and buffers of the rank")
KV_BLOCKS = Metric("kv_blocks", "gauge", "KV blocks of the rank, the null block included")

METRICS = (
    EXECUTIONS,
    SECONDS,
    TOKENS,
    PADDED_TOKENS,
    CONTEXT,
    PADDED_CONTEXT,
    TOKENS_PADDING,
    SEQS_PADDING,
    PREFIX_QUERIES,
    PREFIX_HITS,
    STARTUP,
    COMPILATION,
    LOAD_TIME,
    LOAD_SIZE,
    KV_BLOCKS,
)
"""Every metric of ours."""

WORKER_LABELS = ("model_name", "engine", "rank_id")
"""Labels of every series: served name, data-parallel replica, rank within it."""

_OF_A_RUN = (EXECUTIONS, SECONDS, TOKENS, PADDED_TOKENS, CONTEXT, PADDED_CONTEXT)


class MetricsObserver:
    """Turns what the engine tells into series."""

    def __init__(self, series: SeriesFiles) -> None:
        self._series = series
        # Series that exist from the start can be told from those that nobody counts.
        for metric in (TOKENS_PADDING, SEQS_PADDING, PREFIX_QUERIES, PREFIX_HITS):
            series.touch(metric)

    def compiled(self, name: str, seconds: float) -> None:
        """A program is ready."""
        self._series.set(COMPILATION, seconds, name)
        for metric in _OF_A_RUN:
            self._series.touch(metric, name)

    def executed(self, execution: Execution, seconds: float) -> None:
        """A program ran for requests."""
        amounts = (
            1,
            seconds,
            execution.tokens,
            execution.padded_tokens,
            execution.context,
            execution.padded_context,
        )
        for metric, amount in zip(_OF_A_RUN, amounts, strict=True):
            self._series.add(metric, amount, execution.name)
        padding = TOKENS_PADDING if execution.phase == "prefill" else SEQS_PADDING
        self._series.observe(padding, execution.padded_tokens - execution.tokens)
