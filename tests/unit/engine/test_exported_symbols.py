# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The libraries show the functions that Python calls by name, and nothing else.

Whatever else they showed, templates of the standard library among it, another library of the
process could take for its own.
"""

import pathlib
import re
import subprocess

import pytest

import tfdear
from tfdear.benchmarks import engine_parts
from tfdear.engine import library as _ops

PACKAGE = pathlib.Path(tfdear.__file__).parent
CUSTOM_OPS = pathlib.Path(__file__).resolve().parents[3] / "custom_ops"
MOST_SYMBOLS = 100  # Templates would be thousands.


def exported(library):
    """The names of the symbols that other libraries can see."""
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", library]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def declared(*patterns):
    """The names of the functions with TFDEAR_EXPORT in these files."""
    text = "".join(path.read_text() for pattern in patterns for path in CUSTOM_OPS.glob(pattern))
    return re.findall(r"TFDEAR_EXPORT [\w* ]+?\b(tfdear_\w+)\(", text)


@pytest.mark.parametrize(
    ("library", "sources"),
    [
        (_ops.library_path(), ("api/*.h",)),
        (_ops.library_path().with_name("_tfdear_gloo.so"), ("api/gloo/*.h",)),
        # It has the engine, too.
        (engine_parts.PATH, ("benchmarks/*.cc", "api/*.h")),
    ],
)
def test_a_library_exports_its_c_functions_only(library, sources):
    names = exported(library)
    assert sorted(names) == sorted(declared(*sources))
    assert 0 < len(names) < MOST_SYMBOLS


def test_python_calls_every_function_of_the_library():
    called = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [name for name in exported(_ops.library_path()) if name not in called] == []
