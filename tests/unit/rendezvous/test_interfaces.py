# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""TFDEAR_INTERFACE names an interface of this machine, or an error says which there are."""

import pytest

from tfdear.rendezvous import interfaces


def test_a_name_stands_for_the_address_of_that_interface():
    assert interfaces.chosen_address({}) is None
    assert interfaces.chosen_address({"TFDEAR_INTERFACE": ""}) is None
    assert interfaces.chosen_address({"TFDEAR_INTERFACE": "lo"}) == "127.0.0.1"


def test_without_an_address_of_ipv4_one_of_ipv6_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(interfaces, "_of_ipv4", lambda name: None)
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe80000000000000000000000000ff01 02 40 20 80     lo\n"
        "fd000000000000000000000000000002 02 40 00 80     lo\n"
    )
    monkeypatch.setattr(interfaces, "_ADDRESSES_OF_IPV6", table)
    assert interfaces.chosen_address({"TFDEAR_INTERFACE": "lo"}) == "fd00::2"
    table.write_text("")
    with pytest.raises(ValueError, match="has no address"):
        interfaces.chosen_address({"TFDEAR_INTERFACE": "lo"})


def test_an_unknown_name_is_an_error_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"TFDEAR_INTERFACE='none0': \S+ has no such.*\blo\b"):
        interfaces.chosen_address({"TFDEAR_INTERFACE": "none0"})
