# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The order of tests."""

_TAKE_LONG = ("slow", "integration")


def pytest_collection_modifyitems(items):
    """Files that take long come first: one that came last would run alone on one of the cores."""
    long = {item.path for item in items if any(map(item.get_closest_marker, _TAKE_LONG))}
    items.sort(key=lambda item: item.path not in long)
