"""For all Python tests: where CI is set, a skipped test is a failure, for there the tools are ours to install."""

from __future__ import annotations

import os

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn skips into a failing exit code under CI; -ra has named them."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter else 0
    if skipped and os.environ.get("CI") and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
