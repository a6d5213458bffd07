# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import html_text


def test_paragraphs_and_headings_in_their_order():
    page = "<p>One<p id=b>Two <i>three</i></p>outside<table><td>cell</td></table><h2>Four</h2>"
    assert html_text.read_paragraphs(page) == [("", "One"), ("b", "Two three"), ("", "Four")]


def test_silent_elements_are_left_out_with_all_that_is_in_them():
    page = '<p>a <s class="x y">b <i>c</i></s><code>d<b>e</b></code> f</p>'
    assert html_text.read_paragraphs(page, {"y"}, {"code"}) == [("", "a f")]


def test_ends_that_are_missing_or_too_many():
    page = "<p>a <b><i>b</b> c</i></u> d"
    assert html_text.read_paragraphs(page) == [("", "a b c d")]
