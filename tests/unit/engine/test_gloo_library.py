# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Without Gloo, or the library that needs it, only `backend="gloo"` is refused."""

import ctypes

import pytest
import tensorflow as tf

from tfdear import errors
from tfdear.engine import build_check, gloo_library

PATH = build_check.library_path(tf.__version__).with_name("_tfdear_gloo.so")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in place of that of the libraries."""
    monkeypatch.setattr(build_check, "library_path", lambda version: tmp_path / "_tfdear_ops.so")
    gloo_library.load.cache_clear()
    yield tmp_path
    gloo_library.load.cache_clear()


def test_a_build_without_it_says_how_to_get_it(folder):
    with pytest.raises(ImportError, match='no backend "gloo"') as raised:
        gloo_library.load()
    for words in ('"tcp" needs no other library', "libgloo-dev", "make install TF="):
        assert words in str(raised.value)


def test_a_missing_system_library_is_named_with_the_command_that_installs_it(folder):
    needed = PATH.read_bytes()
    assert needed.count(b"libgloo.so.0\0") == 1
    (folder / PATH.name).write_bytes(needed.replace(b"libgloo.so.0\0", b"libgl__.so.0\0"))
    with pytest.raises(ImportError, match=r"libgl__\.so\.0") as raised:
        gloo_library.load()
    assert "apt-get install -y --no-install-recommends libgloo0" in str(raised.value)


def test_what_gloo_refuses_is_an_error_with_its_kind():
    with pytest.raises(errors.TfdearError, match="cannot listen on '0.0.0.0'") as raised:
        gloo_library.create(0, 2, "0.0.0.0", 1.0, 1)
    assert raised.value.kind == "invalid_argument"
    assert gloo_library.load().tfdear_gloo_create.restype is ctypes.c_int
