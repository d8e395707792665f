# SPDX-License-Identifier: Apache-2.0
"""Errors a user can act on. Each message names the field, the value and the way out."""

from __future__ import annotations


class TrnportError(Exception):
    """Base class of every error that trnport raises on purpose."""


class ConfigError(TrnportError, ValueError):
    """A setting is unknown, out of range or in conflict with another one."""


class UnsupportedConfigError(ConfigError):
    """A model's configuration asks for mathematics that this implementation lacks."""


class UnsupportedModelError(ConfigError):
    """No model is registered for an architecture."""


class CheckpointError(TrnportError):
    """A checkpoint is unreadable, or does not match the model it is loaded into."""


class RequestError(TrnportError, ValueError):
    """One request cannot be served; the engine and all other requests are unaffected."""


class CompilationError(TrnportError, RuntimeError):
    """A program could not be compiled, or failed when it ran for the first time."""


class UnseenSignatureError(TrnportError, RuntimeError):
    """A sealed compiler was asked for a program that warm-up never saw."""


class CapacityError(TrnportError, RuntimeError):
    """Memory or KV blocks do not suffice; the message says what would fit."""
