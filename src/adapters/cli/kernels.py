# SPDX-License-Identifier: Apache-2.0
"""``trnport kernels``: which sets of kernels there are, and how two of them compare."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from structlog.testing import capture_logs
from torch import Tensor

from trnport import bootstrap
from trnport.adapters.cli import estimates
from trnport.adapters.cli.kernel_examples import example, parse_sizes
from trnport.adapters.cli.kernel_truth import compared, truth
from trnport.adapters.cli.text import bullets, section
from trnport.core.errors import ConfigError
from trnport.core.kernel_calls import invoke
from trnport.core.kernels import operator_names

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def run_kernels(arguments: argparse.Namespace) -> int:
    """List or compare; returns the exit status."""
    if arguments.action == "list":
        return _list(arguments)
    comparison = compare(
        arguments.operator,
        a=arguments.a,
        b=arguments.b,
        shape=arguments.shape,
        dtype=arguments.dtype,
        seed=arguments.seed,
        target=arguments.target,
        lnc=arguments.lnc,
    )
    print(
        json.dumps(attrs.asdict(comparison), indent=2)
        if arguments.json
        else "\n".join(_render(comparison)).rstrip()
    )
    return 0


# --- list -------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    sets = bootstrap.KERNEL_SETS
    sets.check(arguments.kernels)
    chosen = sets.providers(arguments.kernels)
    have, problems = {}, {}
    for name in sets.origins():
        try:
            have[name] = sets.operators(name)
        except ConfigError as error:
            have[name], problems[name] = (), str(error)
    if arguments.json:
        rows = {
            operator: {
                "sets": [name for name in have if operator in have[name]],
                "runs": chosen[operator],
                "nki_limits": estimates.nki_limits(operator),
            }
            for operator in operator_names()
        }
        print(
            json.dumps({"sets": sets.origins(), "operators": rows, "problems": problems}, indent=2)
        )
        return 0
    lines = [
        *section("Sets of kernels", sets.origins().items()),
        *section(
            f"Operators, and what kernels={arguments.kernels!r} runs",
            _operators(have, chosen),
        ),
        *section("Limits of nki; past them a call falls back to torch_cpu", _limits()),
        *bullets("Problems", list(problems.values())),
    ]
    print("\n".join(lines).rstrip())
    return 0


def _operators(
    have: Mapping[str, tuple[str, ...]], chosen: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    yield ("operator", *have, "runs")
    for operator in operator_names():
        marks = ("yes" if operator in have[name] else "-" for name in have)
        yield (operator, *marks, chosen[operator])


def _limits() -> Iterator[tuple[str, str, str]]:
    for operator in operator_names():
        for size, most, why in estimates.nki_limits(operator):
            yield operator, f"{size} <= {most}", why


# --- compare ----------------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """What one set did.

    Attributes:
        name: As the set calls itself.
        largest_error: Largest difference from fp64, of all results.
        rms_error: Root mean square of the differences.
        relative_error: Largest error over the largest magnitude of the truth.
        equal_indices: Part of the indices that agree; None where there are none.
        seconds: Wall time here, on the host.
        coverage: What ran on a kernel, and why the rest did not; empty for sets that do not say.
        cost: Counts of each launch and its bound; empty without NKI kernels.
    """

    name: str
    largest_error: float
    rms_error: float
    relative_error: float
    equal_indices: float | None
    seconds: float
    coverage: dict[str, Any]
    cost: list[dict[str, Any]]


@attrs.frozen
class Comparison:
    """Two sets, one operator, the same inputs."""

    operator: str
    sizes: dict[str, int]
    dtype: str
    seed: int
    target: str
    lnc: int
    a: Outcome
    b: Outcome
    largest_difference: float


def compare(
    operator: str,
    *,
    a: str = "torch_cpu",
    b: str = "nki",
    shape: str = "",
    dtype: str = "bf16",
    seed: int = 0,
    target: str = "trn2",
    lnc: int = 1,
) -> Comparison:
    """Run an operator of two sets on the same random inputs.

    Args:
        operator: Name of an operator.
        a: Spelling of a set, as in ``neuron_config``.
        b: The other.
        shape: Sizes that differ from the defaults, such as "batch=3,context=37".
        dtype: "bf16" or "fp32".
        seed: Of the inputs.
        target: What NKI kernels are simulated for.
        lnc: Physical cores of a logical one.

    Raises:
        ConfigError: No such operator, set or size.
    """
    sizes = parse_sizes(operator, shape)
    for spelling in (a, b):
        bootstrap.KERNEL_SETS.check(spelling)
    inputs = example(operator, sizes, DTYPES[dtype], seed)
    wanted = truth(operator, inputs)
    outcomes, results = [], []
    for spelling in (a, b):
        kernels = bootstrap.kernels(spelling, target=target, lnc=lnc)
        outcome, found = _run(kernels, operator, inputs, wanted, target)
        outcomes.append(outcome)
        results.append(found)
    apart = max(_error(x, y)[0] for x, y in zip(*results, strict=True) if x.is_floating_point())
    first, second = outcomes
    return Comparison(
        operator=operator,
        sizes=sizes,
        dtype=dtype,
        seed=seed,
        target=target,
        lnc=lnc,
        a=first,
        b=second,
        largest_difference=apart,
    )


def _run(
    kernels: Any,
    operator: str,
    inputs: Mapping[str, Any],
    wanted: tuple[Tensor, ...],
    target: str,
) -> tuple[Outcome, tuple[Tensor, ...]]:
    own = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
    # A fallback is logged, by default to stdout; the coverage below says the same.
    with capture_logs(), estimates.nki_launches(target) as launches:
        started = time.perf_counter()
        results = invoke(kernels, operator, own)
        seconds = time.perf_counter() - started
    found = compared(operator, own, results)
    _check_shapes(kernels.name, operator, found, wanted)
    errors = [_error(x, y) for x, y in zip(found, wanted, strict=True) if y.is_floating_point()]
    indices = [
        (x == y).double().mean().item()
        for x, y in zip(found, wanted, strict=True)
        if not y.is_floating_point()
    ]
    size = max(y.abs().max().item() for y in wanted if y.is_floating_point())
    largest = max(error for error, _ in errors)
    outcome = Outcome(
        name=kernels.name,
        largest_error=largest,
        rms_error=max(error for _, error in errors),
        relative_error=largest / size if size else largest,
        equal_indices=indices[0] if indices else None,
        seconds=seconds,
        coverage=estimates.kernel_coverage(kernels, operator),
        cost=list(launches),
    )
    return outcome, found


def _check_shapes(
    name: str, operator: str, found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]
) -> None:
    got = [tuple(x.shape) for x in found]
    want = [tuple(x.shape) for x in wanted]
    if got != want:
        raise ConfigError(f"{operator} of {name!r} returns shapes {got} where {want} belong")


def _error(found: Tensor, wanted: Tensor) -> tuple[float, float]:
    difference = found.double() - wanted.double()
    return difference.abs().max().item(), difference.square().mean().sqrt().item()


def _render(comparison: Comparison) -> Iterator[str]:
    sizes = ", ".join(f"{name}={size}" for name, size in comparison.sizes.items())
    yield f"{comparison.operator}: {sizes}; {comparison.dtype}, seed {comparison.seed}"
    yield ""
    yield from section("Error against fp64", _errors(comparison))
    for outcome in (comparison.a, comparison.b):
        yield from section(f"Coverage of {outcome.name}", _coverage(outcome))
        if outcome.cost:
            machine = f"{comparison.target}, lnc {comparison.lnc}"
            yield from section(
                f"Cost of {outcome.name} on {machine}: ESTIMATE, not yet run on hardware",
                _cost(outcome),
            )


def _errors(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    yield "set", "largest", "root mean square", "largest, relative", "indices", "seconds here"
    for outcome in (comparison.a, comparison.b):
        same = outcome.equal_indices
        yield (
            outcome.name,
            f"{outcome.largest_error:.2e}",
            f"{outcome.rms_error:.2e}",
            f"{outcome.relative_error:.2e}",
            "-" if same is None else f"{same:.1%} equal",
            f"{outcome.seconds:.3f}",
        )
    yield "a against b", f"{comparison.largest_difference:.2e}", "", "", "", ""


def _coverage(outcome: Outcome) -> Iterator[tuple[str, str]]:
    if not outcome.coverage:
        yield "not told", "the set does not say what ran where"
        return
    for set_name, calls in outcome.coverage.items():
        if set_name != "fallback":
            yield f"on a kernel of {set_name}", f"{calls} call(s)"
    for reason, calls in outcome.coverage.get("fallback", {}).items():
        yield "fell back", f"{calls} call(s): {reason}"


def _cost(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for launch in outcome.cost:
        yield "kernel", launch["kernel"]
        yield "bound", f"{launch['bound_seconds'] * 1e6:.2f} us, by {launch['bound_by']}"
        for number, core in enumerate(launch["cores"]):
            cycles = ", ".join(f"{name} {count:.0f}" for name, count in core["cycles"].items())
            moved = ", ".join(f"{pair} {size}" for pair, size in core["moved"].items())
            yield f"core {number} bytes", moved
            runs = f"{core['descriptors']}, shortest {core['shortest_run']} bytes"
            yield f"core {number} runs", runs
            yield f"core {number} cycles", cycles
            yield f"core {number} MACs", f"{core['macs']} of {core['array_macs']} of the array"
            peaks = f"SBUF {core['sbuf_peak']}, PSUM {core['psum_peak']}"
            yield f"core {number} bytes per partition", peaks
