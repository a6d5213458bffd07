# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import gnome_user_docs

_PAGE = (
    '<page xmlns="http://projectmallard.org/1.0/"><info><desc>{}</desc>{}</info><p>{}</p></page>'
)


def test_paragraphs_of_the_same_structure_are_pairs():
    english = _PAGE.format("Turn it on.", "", "Press the <gui>big</gui>\n  button.")
    german = _PAGE.format("Schalten Sie es ein.", "", "Drücken Sie den <gui>großen</gui> Knopf.")
    assert gnome_user_docs.align(english, german) == [
        ("Turn it on.", "Schalten Sie es ein."),
        ("Press the big button.", "Drücken Sie den großen Knopf."),
    ]


def test_comments_of_authors_are_no_paragraphs():
    english = _PAGE.format("a", "<comment><p>Say more here.</p></comment>", "b")
    assert gnome_user_docs.align(english, _PAGE.format("c", "", "d")) == [("a", "c"), ("b", "d")]


def test_a_page_of_another_structure_has_no_pairs():
    english = _PAGE.format("a", "<p>One more.</p>", "b")
    assert gnome_user_docs.align(english, _PAGE.format("c", "", "d")) == []
