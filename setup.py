# SPDX-License-Identifier: Apache-2.0
"""List the packages: src/ is `trnport`, which pyproject.toml alone cannot express."""

from setuptools import find_packages, setup

setup(packages=["trnport", *(f"trnport.{name}" for name in find_packages("src"))])
