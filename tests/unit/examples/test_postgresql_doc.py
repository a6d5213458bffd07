# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import postgresql_doc

PAGE = """<html><body><div class="navheader"><table><tr><th>Up</th></tr></table></div>
<h2 class="title">1. Limits<a class="indexterm">limits</a></h2>
<p>A <code>row</code> has
 at most 8 kB: <pre>SELECT 1;</pre></p><table><td>1,600</td></table><p> </p><p>More.</p>"""


def test_headings_and_paragraphs_without_code_and_tables():
    assert postgresql_doc.parse_page(PAGE) == ["1. Limits", "A row has at most 8 kB:", "More."]
