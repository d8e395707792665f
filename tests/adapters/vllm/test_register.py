# SPDX-License-Identifier: Apache-2.0
"""Registration: where the platform is active, what it costs, and that it tells why."""

import logging
import subprocess
import sys
import textwrap

import pytest

from trnport.adapters.vllm.activation import Machine, decide, is_supported_version
from trnport.adapters.vllm.env import Environment, read_environment
from trnport.core.errors import ConfigError

pytest.importorskip("vllm")

pytestmark = pytest.mark.vllm


def machine(version="0.33.0", device=False, kernels=True) -> Machine:
    return Machine(vllm_version=version, has_neuron_device=device, vllm_has_kernels=kernels)


@pytest.mark.parametrize(
    ("environment", "on", "active", "reason"),
    [
        (Environment(), machine(device=True), True, "/dev/neuron"),
        (Environment(device="cpu"), machine(), True, "TRNPORT_DEVICE=cpu"),
        (Environment(device="neuron"), machine(), True, "TRNPORT_DEVICE=neuron"),
        (Environment(), machine(kernels=False), True, "without a device"),
        (Environment(), machine(), False, "set TRNPORT_DEVICE=cpu"),
        (Environment(device="cpu"), machine(version="0.34.0"), False, "needs vLLM 0.33.x"),
    ],
)
def test_decision_and_reason(environment, on, active, reason):
    decision = decide(environment, on)
    assert decision.active is active
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.33.0", True),
        ("0.33.1.dev3+g12", True),
        ("0.33.0+empty", True),
        ("0.33", True),
        ("0.34.0", False),
        ("0.330.1", False),
        ("1.0.33", False),
    ],
)
def test_version_gate(version, supported):
    assert is_supported_version(version) is supported


def test_an_invalid_device_activates_the_platform_so_that_its_message_is_seen(monkeypatch):
    monkeypatch.setenv("TRNPORT_DEVICE", "gpu")
    assert decide(machine=machine()).active
    with pytest.raises(ConfigError, match=r"TRNPORT_DEVICE='gpu'.*cpu, neuron"):
        read_environment()


@pytest.mark.parametrize("value", ["4", ""])
def test_kv_cache_space_is_whole_gibibytes(value):
    expected = 4 if value else None
    assert read_environment({"VLLM_CPU_KVCACHE_SPACE": value}).kv_cache_gib == expected


@pytest.mark.parametrize("value", ["4GB", "-1", "1.5", "²"])
def test_kv_cache_space_refuses_anything_else(value):
    with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE"):
        read_environment({"VLLM_CPU_KVCACHE_SPACE": value})


def run(code: str, **environment: str) -> str:
    """Run code in a fresh interpreter and return what it wrote."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_importing_the_entry_point_imports_nothing_heavy():
    run(
        """
        import sys
        import trnport.adapters.vllm
        heavy = {"torch", "vllm", "transformers", "safetensors"} & set(sys.modules)
        assert not heavy, heavy
        """
    )


def test_registering_twice_is_the_same_and_starts_no_engine():
    run(
        """
        import sys
        import trnport.adapters.vllm as plugin
        assert plugin.register() == plugin.register() == plugin.PLATFORM
        assert "vllm.v1.engine" not in sys.modules and "transformers" not in sys.modules
        """,
        TRNPORT_DEVICE="cpu",
    )


def test_vllm_picks_the_platform_and_our_model_classes():
    run(
        """
        from vllm.platforms import current_platform
        assert type(current_platform).__name__ == "NeuronPlatform", current_platform
        assert current_platform.is_cpu() and current_platform.is_out_of_tree()
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        import trnport.adapters.vllm as plugin
        plugin.register_models()
        from vllm.model_executor.models.registry import ModelRegistry
        model = ModelRegistry.models["LlamaForCausalLM"]
        info = model.inspect_model_cls()
        assert info.is_text_generation_model and not info.is_pooling_model
        assert not info.supports_multimodal and not info.supports_lora and not info.supports_pp
        assert model.load_model_cls().__module__.startswith("trnport")
        """,
        TRNPORT_DEVICE="cpu",
    )


@pytest.mark.slow
def test_other_platforms_keep_their_models():
    run(
        """
        import vllm.platforms
        from vllm.platforms.interface import UnspecifiedPlatform
        NeuronPlatform = type("NeuronPlatform", (UnspecifiedPlatform,), {})  # somebody else's
        vllm.platforms.current_platform = NeuronPlatform()
        import trnport.adapters.vllm as plugin
        plugin.register_models()
        from vllm.model_executor.models.registry import ModelRegistry
        assert ModelRegistry.models["LlamaForCausalLM"].module_name.startswith("vllm.")
        """
    )


def test_stepping_aside_is_logged():
    output = run(
        """
        import vllm  # configures logging
        from trnport.adapters.vllm import activation
        import trnport.adapters.vllm as plugin
        activation._vllm_has_kernels = lambda: True
        activation.neuron_device_exists = lambda: False
        assert plugin.register() is None
        """,
        TRNPORT_DEVICE="",
    )
    assert "trnport is installed but not active: there is no Neuron device" in output


def test_an_error_while_deciding_is_logged(monkeypatch):
    """vLLM drops it, and would serve on another device without a word."""
    import trnport.adapters.vllm as plugin
    from trnport.adapters.vllm import activation

    def fail():
        raise OSError("no metadata of vllm")

    records = []
    handler = logging.Handler()
    handler.emit = records.append
    ours = logging.getLogger("vllm.trnport")
    monkeypatch.setattr(ours, "handlers", [handler])
    monkeypatch.setattr(activation, "decide", fail)
    with pytest.raises(OSError, match="no metadata"):
        plugin.register()
    (record,) = records
    assert record.levelname == "ERROR"
    assert "vLLM goes on without it" in record.getMessage()
    assert record.exc_info[0] is OSError
