# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The names that Python and the library must number alike."""

import ctypes
import pathlib
import re

import pytest

from tfdear.base import names
from tfdear.benchmarks import engine_parts
from tfdear.engine import c_api

_CUSTOM_OPS = pathlib.Path(__file__).resolve().parents[3] / "custom_ops"


def as_the_library_says(tables):
    return "\n".join(" ".join([word, *table]) for word, table in tables.items())


def test_the_library_numbers_them_alike():
    assert names.difference(c_api.load().tfdear_names().decode()) is None


@pytest.mark.parametrize("word", names.tables())
def test_every_difference_is_found(word):
    tables = names.tables()
    for change in (
        lambda table: (*table[:-1], "another"),
        lambda table: table[:-1],
        lambda table: (*table, "another"),
        lambda table: (table[1], table[0], *table[2:]),
    ):
        changed = tables | {word: change(tables[word])}
        assert word in names.difference(as_the_library_says(changed))
    assert word in names.difference(
        as_the_library_says({other: table for other, table in tables.items() if other != word})
    )
    assert names.difference(as_the_library_says(tables)) is None


def test_the_first_difference_is_named():
    tables = names.tables()
    tables["lane"] = ("control", "gradients", *tables["lane"][2:])
    assert (
        names.difference(as_the_library_says(tables))
        == "lane 0 is 'control' in the library and 'gradients' in Python"
    )
    tables = names.tables() | {"colour": ("blue",)}
    assert (
        names.difference(as_the_library_says(tables))
        == "colour 0 is 'blue' in the library and None in Python"
    )


def test_a_library_with_other_names_is_refused(monkeypatch):
    monkeypatch.setattr(names, "STATUS_CODES", (*names.STATUS_CODES[:-1], "another"))
    monkeypatch.setattr(c_api, "_library", None)
    with pytest.raises(ImportError, match="status_code 7 is 'resource_exhausted' in the lib"):
        c_api.load()


def functions_of(*patterns):
    """Of every function that these files export for Python: result, name and arguments, as in C."""
    declaration = re.compile(r"TFDEAR_EXPORT\s+([a-z][\w ]*?[ *]+)(tfdear_\w+)\(([^()]*)\)")
    for path in sorted(p for pattern in patterns for p in _CUSTOM_OPS.glob(pattern)):
        for result, name, arguments in declaration.findall(path.read_text()):
            yield result.strip(), name, [a.strip() for a in arguments.split(",") if a.strip()]


def fits(ctype, c):
    if "*" in c:
        return ctype in (ctypes.c_char_p, ctypes.c_void_p) or hasattr(ctype, "contents")
    if c.split()[0] == "tfdear_connector":
        return ctype is c_api.CONNECTOR
    types = {"int": "c_int", "int64_t": "c_int64", "double": "c_double", "void": None}
    expected = types[c.split()[0]]
    return ctype is (None if expected is None else getattr(ctypes, expected))


@pytest.mark.parametrize(
    ("patterns", "signatures"),
    [
        (("api/*.h", "tensorflow_server/*.h"), c_api.SIGNATURES),
        (("benchmarks/*.cc",), engine_parts.SIGNATURES),
    ],
    ids=("library", "benchmarks"),
)
def test_every_function_of_a_library_has_its_types(patterns, signatures):
    declared = list(functions_of(*patterns))
    assert {name for _, name, _ in declared} == set(signatures)
    for result, name, arguments in declared:
        own_result, *own_arguments = signatures[name]
        assert fits(own_result, result), name
        assert len(own_arguments) == len(arguments), name
        for ctype, argument in zip(own_arguments, arguments, strict=True):
            assert fits(ctype, argument), (name, argument)
