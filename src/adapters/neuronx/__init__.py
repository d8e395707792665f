# SPDX-License-Identifier: Apache-2.0
"""A Compiler for Neuron devices. Not yet run on hardware."""
