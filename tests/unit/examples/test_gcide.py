# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import gcide

DICTIONARY = """
00-database-url
   A preface of whoever made this file,

   with an empty line.

Ab \\Ab\\ n. [See {Abb}.]
   1. First sense. [Obs.] --Somebody.
      [1913 Webster]

   2. Second,
      in two lines.
      [WordNet 1.5 +PJC]

Abb \\Abb\\ (&abreve;b), n.
   Another entry. [Webster 1913 Suppl.]
"""


def test_entries_are_in_one_line_each_without_preface_and_sources():
    assert gcide.parse_entries(DICTIONARY) == [
        r"Ab \Ab\ n. [See {Abb}.] 1. First sense. [Obs.] --Somebody. 2. Second, in two lines.",
        r"Abb \Abb\ (&abreve;b), n. Another entry.",
    ]


def test_a_text_without_headwords_has_no_entry():
    assert gcide.parse_entries("A preface.\n\nAnd nothing else.") == []
