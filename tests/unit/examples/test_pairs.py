# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import pairs


def test_what_is_usable():
    four, fifty = "one two three four", " ".join(["word"] * 50)
    given = [
        (four, "eins zwei drei vier"),
        (four, four),  # Not translated.
        ("one two three", "eins zwei drei vier"),
        (four, "eins zwei drei"),
        (fifty, "viele " + fifty),
        (fifty, "viele " + fifty[5:]),
        (four, "eins zwei drei vier"),  # Twice.
    ]
    assert pairs.usable(given) == [given[0], given[5]]
