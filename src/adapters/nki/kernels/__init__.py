# SPDX-License-Identifier: Apache-2.0
"""Our kernels for NeuronCores, one file per operator.

They use instructions, creation and views only, and the rules of trn2: a stationary operand has
one free dimension, nothing is divided, no operand is broadcast by itself. Row counts, widths and
head counts are free; the limits that remain are data, in :mod:`trnport.adapters.nki.limits`.
Not yet run on hardware.
"""
