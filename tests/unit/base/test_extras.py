# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What only some commands need is asked for with the command that installs it."""

import sys

import pytest
from event_rows import dear_steps

from tfdear.commands import main as command_line
from tfdear.commands.doctor import facts
from tfdear.measure import clock, timeline

PLOT = f'matplotlib is not installed; run: {sys.executable} -m pip install "tfdear[plot]"'
SHARED = clock.ClockOffset(0.0, 0.0, "shared")


@pytest.fixture
def without(monkeypatch):
    """Makes packages as good as not installed."""

    def hide(package):
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_pictures_name_the_extra_that_draws(without, tmp_path, capsys):
    without("matplotlib")
    picture = str(tmp_path / "picture.png")
    assert command_line.main(["simulate", "resnet-50", "--workers", "4", "--plot", picture]) == 2
    assert capsys.readouterr().err == f"tfdear simulate: {PLOT}\n"
    path = tmp_path / "timeline.json"
    timeline.write(timeline.make(dear_steps(6), rank=0, host="node", offset=SHARED), path)
    assert command_line.main(["timeline", str(path), "-o", picture]) == 2
    assert capsys.readouterr().err == f"tfdear timeline: {PLOT}\n"


def test_facts_of_the_network_name_the_extra_of_the_doctor(without):
    without("psutil")
    with pytest.raises(ModuleNotFoundError, match=r'pip install "tfdear\[doctor\]"'):
        facts.describe_interfaces()
    assert "GiB free" in facts.describe_machine()
