"""One Spark session for all tests: starting it takes longer than most of them. A failed test takes it along."""

from collections.abc import Generator, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.shared_session import SharedSession, set_java_options, time_limit

_FAILED = pytest.StashKey[bool]()
# How much later pytest interrupts a test that goes on although its JVM was killed: it waits for something else.
_GRACE_SECONDS = 120


@pytest.fixture(autouse=True)
def java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for these tests: other tests of the same process start programs, too."""
    set_java_options(monkeypatch)


@pytest.fixture(scope="session")
def shared_session() -> Iterator[SharedSession]:
    shared = SharedSession()
    yield shared
    shared.stop()


@pytest.fixture
def spark(shared_session: SharedSession) -> SparkSession:
    return shared_session.get()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The limit of pytest-timeout is kept by killing the JVM; a failed test's session is not used again."""
    if "spark" not in getattr(item, "fixturenames", ()):
        return (yield)
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(seconds + _GRACE_SECONDS), append=False)
    told = f"it took longer than {seconds:g} seconds, and its JVM was killed"
    with time_limit(seconds, lambda: item.add_report_section("call", "time limit", told)):
        answer = yield
    if item.stash.get(_FAILED, False):
        SharedSession().discard()
    return answer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Take back the formatter that PySpark gives to every handler: it fails for exceptions that cannot be printed."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    for handler in () if plugin is None else (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter(plugin.formatter)
