# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import splits


def test_the_same_text_is_always_on_the_same_side():
    texts = [f"sentence {number}" for number in range(5000)]
    training, held_out = splits.split(texts, 4.0)
    assert sorted(training + held_out) == sorted(texts)
    assert 150 < len(held_out) < 250
    assert splits.split(reversed(texts), 4.0)[1] == held_out[::-1]
    # As it was when the figures were measured, on every machine.
    assert held_out[:3] == ["sentence 33", "sentence 59", "sentence 60"]


def test_the_key_decides():
    pairs = [("a source", str(number)) for number in range(100)]
    training, held_out = splits.split(pairs, 50.0, key=lambda pair: pair[0])
    assert sorted(map(len, (training, held_out))) == [0, 100]
