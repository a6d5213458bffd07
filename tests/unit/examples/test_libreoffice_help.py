# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import libreoffice_help

ENGLISH = """<html><body><p>No id.</p>
<h1 id="hd_1">Key <b>bindings</b></h1>
<p id="par_1">Press <span class="emph"><span hidden="true" class="MAC">Command</span><span
hidden="true" id="default_1">Ctrl</span></span>+D<br>to
fill.<p id="par_2">Only in English</p></body></html>"""
GERMAN = """<html><body><p id="par_1">Drücken Sie <i>Strg</i>+D&nbsp;zum Füllen.</p>
<p id="par_3">Nur auf Deutsch</p><h1 id="hd_1">Tasten</h1></body></html>"""


def test_paragraphs_with_the_same_id_are_pairs():
    assert libreoffice_help.align(ENGLISH, GERMAN) == [
        ("Key bindings", "Tasten"),
        ("Press Ctrl+D to fill.", "Drücken Sie Strg+D zum Füllen."),
    ]


def test_files_are_paired_by_name(tmp_path):
    for package, language, text in (("en", "en-US", "A word"), ("de", "de", "Ein Wort")):
        folder = tmp_path / package / "usr/share/libreoffice/help" / language / "text"
        folder.mkdir(parents=True)
        (folder / "both.html").write_text(f'<p id="a">{text}</p>')
        (folder / f"{language}.html").write_text(f'<p id="a">{text} alone</p>')
    pairs = libreoffice_help.read_pairs(tmp_path / "en", tmp_path / "de")
    assert pairs == [("A word", "Ein Wort")]
