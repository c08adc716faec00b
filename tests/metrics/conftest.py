"""Tests of the adapters that ask for a shell run once for each, as those of the contract do."""

from tests.contract.conftest import onlooker, pytest_pyfunc_call, shell, wiring

__all__ = ["onlooker", "pytest_pyfunc_call", "shell", "wiring"]
