"""Tests that use `shell` run once with the sync and once with the async queue."""

from tests.contract.conftest import onlooker, pytest_generate_tests, pytest_pyfunc_call, shell, wiring

__all__ = ["onlooker", "pytest_generate_tests", "pytest_pyfunc_call", "shell", "wiring"]
