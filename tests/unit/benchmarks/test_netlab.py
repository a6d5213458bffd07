# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Labs of network namespaces: made, found again, used, and removed without a trace."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from tfdear.benchmarks import lab as netlab

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
_SECONDS = 60

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")


@pytest.fixture
def lab_name():
    """A name that no other run uses; what is left of the lab is removed."""
    name = f"test{os.getpid()}"
    yield name
    for left in (name, f"{name}b"):
        if left in netlab.labs():
            netlab.down(left)


def tfdear(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tfdear", *arguments],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )


def python(script: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "text, bits", [("1gbit", 1e9), ("2.5Gbit", 2.5e9), ("100mbit", 1e8), ("8000bit", 8e3)]
)
def test_rates(text, bits):
    assert netlab.parse_rate(text) == bits


@pytest.mark.parametrize(
    "bits, nbytes", [(1e10, 262144), (1e9, 262144), (4e8, 105000), (1e7, 32768)]
)
def test_slow_links_save_up_little(bits, nbytes):
    assert netlab.burst_bytes(bits) == nbytes


@pytest.mark.parametrize("text", ["", "1", "fast", "1gbps", "-1gbit", "1 gbit", "gbit"])
def test_wrong_rates_are_refused(text):
    with pytest.raises(netlab.LabError, match="1gbit"):
        netlab.parse_rate(text)


@needs_root
@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "lab-1", "7", "x" * 40, "-a"])
def test_wrong_names_are_refused(name):
    with pytest.raises(netlab.LabError, match="name of a lab"):
        netlab.up(1, name=name)


@needs_root
@pytest.mark.parametrize("nodes", [0, -1, 251])
def test_wrong_numbers_of_nodes_are_refused(nodes, lab_name):
    with pytest.raises(netlab.LabError, match="nodes"):
        netlab.up(nodes, name=lab_name)
    assert lab_name not in namespaces()


@needs_root
def test_without_root_it_says_so():
    done = python("""
        import os
        from tfdear.benchmarks import lab as netlab
        os.seteuid(65534)
        netlab.up(1, name="never")
    """)
    assert done.returncode == 1
    assert "needs root" in done.stderr


@needs_root
def test_without_tools_it_names_them():
    done = python(
        """
        from tfdear.benchmarks import lab as netlab
        netlab.up(1, name="never")
        """,
        PATH="/nonexistent",
    )
    assert done.returncode == 1
    assert "ip, tc, unshare" in done.stderr
    assert "iproute2 and util-linux" in done.stderr


@needs_root
def test_a_lab_survives_its_maker_and_goes_without_a_trace(lab_name):
    made = tfdear("netlab", "up", "--nodes", "3", "--rate", "50mbit", "--name", lab_name)
    assert made.returncode == 0, made.stderr
    found = netlab.find(lab_name)
    assert len(found.nodes) == 3
    assert found.bits_per_second == 50e6
    again = tfdear("netlab", "up", "--name", lab_name)
    assert again.returncode == 2
    assert "already" in again.stderr
    where = tfdear(
        "netlab", "exec", "--name", lab_name, "2", "--", "sh", "-c", "hostname; cat /etc/hosts"
    )
    assert where.stdout.splitlines()[0] == f"{lab_name}-node2"
    assert f"{found.nodes[0].address} {lab_name}-node0" in where.stdout
    sleeper = subprocess.Popen(found.nodes[1].command(["sleep", "600"]))
    try:
        assert tfdear("netlab", "down", "--name", lab_name).returncode == 0
        assert sleeper.wait(10) != 0
    finally:
        sleeper.kill()
        sleeper.wait(10)
    assert lab_name not in namespaces()
    assert not list(pathlib.Path("/etc").glob(f"netns/*{lab_name}*"))
    gone = tfdear("netlab", "down", "--name", lab_name)
    assert gone.returncode == 2
    assert "no lab" in gone.stderr


@needs_root
def test_a_connection_takes_one_path_of_a_bundle(lab_name):
    made = tfdear("netlab", "up", "--rate", "100mbit", "--paths", "4", "--name", lab_name)
    assert "in 4 paths" in made.stdout, made.stderr
    lab = netlab.find(lab_name)
    assert (lab.bits_per_second, lab.paths) == (100e6, 4)
    # One after another, to ports whose two bits above the lowest are 00, 00, 01 and 10, from ports
    # where they are 00.
    sizes = {7000: 100_000, 7001: 200_000, 7002: 400_000, 7004: 800_000}
    receive = f"""
        import socket
        listeners = [socket.create_server(("", port)) for port in {list(sizes)}]
        print("listening", flush=True)
        for listener in listeners:
            accepted, _ = listener.accept()
            print(len(accepted.makefile("rb").read()))
    """
    send = f"""
        import socket
        for i, (port, size) in enumerate({sizes}.items()):
            target, source = ("{lab.nodes[0].hostname}", port), ("", 7104 + 8 * i)
            with socket.create_connection(target, 20, source) as connection:
                connection.sendall(bytes(size))
    """
    listener = subprocess.Popen(
        lab.nodes[0].command([sys.executable, "-c", textwrap.dedent(receive)]),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert listener.stdout.readline() == "listening\n"
        command = lab.nodes[1].command([sys.executable, "-c", textwrap.dedent(send)])
        assert subprocess.run(command, timeout=_SECONDS).returncode == 0
        assert listener.communicate(timeout=_SECONDS)[0].split() == list(map(str, sizes.values()))
    finally:
        listener.kill()
        listener.wait(10)
    shown = subprocess.run(
        ["tc", "-n", lab.nodes[1].namespace, "-s", "class", "show", "dev", lab.nodes[1].device],
        capture_output=True,
        text=True,
    ).stdout
    sent = [int(number) for number in re.findall(r"Sent (\d+) bytes", shown)]
    for path, least in enumerate([300_000, 400_000, 800_000, 0]):
        assert least <= sent[path] < least + 60_000, (path, sent)


@needs_root
@pytest.mark.parametrize("paths, rate", [(0, "1gbit"), (3, "1gbit"), (32, "1gbit"), (2, None)])
def test_wrong_bundles_are_refused(paths, rate, lab_name):
    with pytest.raises(netlab.LabError, match="bundle"):
        netlab.up(2, rate, lab_name, paths)


@needs_root
def test_what_nodes_send_is_counted_and_uses_the_same_congestion_control(lab_name):
    payload = 1 << 20
    lab = netlab.up(2, rate=None, name=lab_name)
    assert lab.rate is None and netlab.find(lab_name) == lab
    server, client = lab.nodes
    receive = """
        import socket
        listener = socket.create_server(("", 7000))
        print("listening", flush=True)
        connection, _ = listener.accept()
        print(len(connection.makefile("rb").read()))
    """
    send = f"""
        import socket
        connection = socket.create_connection(("{server.hostname}", 7000), 20)
        connection.sendall(bytes({payload}))
        name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        print(name.rstrip(bytes(1)).decode())
    """
    listener = subprocess.Popen(
        server.command([sys.executable, "-c", textwrap.dedent(receive)]),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert listener.stdout.readline() == "listening\n"
        before = client.bytes_sent()
        sent = subprocess.run(
            client.command([sys.executable, "-c", textwrap.dedent(send)]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        received = int(listener.communicate(timeout=_SECONDS)[0])
    finally:
        listener.kill()
        listener.wait(10)
    assert (sent.stdout.strip(), received) == ("cubic", payload), sent.stderr
    assert payload < client.bytes_sent() - before < 1.1 * payload
    assert server.bytes_received() > payload


@needs_root
def test_two_labs_do_not_meet(lab_name):
    first = netlab.up(1, rate=None, name=lab_name)
    second = netlab.up(2, rate=None, name=f"{lab_name}b")
    # The same address in both, and nobody at the address that only the second has.
    assert first.nodes[0].address == second.nodes[0].address
    assert set(netlab.labs()) >= {first.name, second.name}
    connect = f"""
        import socket, sys
        try:
            socket.create_connection(("{second.nodes[1].address}", 1), 1)
        except ConnectionRefusedError:
            sys.exit("there is somebody")
        except OSError:
            print("nobody there")
    """
    for lab, answer in ((first, "nobody there\n"), (second, "")):
        reached = subprocess.run(
            lab.nodes[0].command([sys.executable, "-c", textwrap.dedent(connect)]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert reached.stdout == answer, reached.stderr
    netlab.down(first.name)
    assert netlab.find(second.name) == second


@needs_root
def test_what_fails_half_way_leaves_nothing(lab_name):
    # A namespace stands where the second node's must go.
    obstacle = f"tfdear-{lab_name}-1"
    subprocess.run(["ip", "netns", "add", obstacle], check=True)
    try:
        with pytest.raises(netlab.LabError, match="File exists"):
            netlab.up(2, name=lab_name)
        assert lab_name not in namespaces()
    finally:
        subprocess.run(["ip", "netns", "del", obstacle], capture_output=True)


@needs_root
def test_a_job_has_one_rank_per_node(lab_name, tmp_path):
    netlab.up(2, rate=None, name=lab_name)
    script = tmp_path / "rank.py"
    script.write_text(
        "import json, os, socket\n"
        f"path = os.path.join({str(tmp_path)!r}, os.environ['TFDEAR_RANK'])\n"
        "known = {k: v for k, v in os.environ.items() if k.startswith('TFDEAR_')}\n"
        "json.dump([socket.gethostname(), known], open(path, 'w'))\n"
    )
    done = tfdear("netlab", "run", "--name", lab_name, "--", str(script))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        hostname, known = json.loads((tmp_path / str(rank)).read_text())
        assert hostname == f"{lab_name}-node{rank}"
        assert known["TFDEAR_WORLD_SIZE"] == "2"
        assert known["TFDEAR_NODE_RANK"] == str(rank)
    script.write_text("import os, sys, time\n")
    with open(script, "a") as file:
        file.write("if os.environ['TFDEAR_RANK'] == '1': sys.exit(7)\ntime.sleep(1)\n")
    assert tfdear("netlab", "run", "--name", lab_name, "--", str(script)).returncode == 7
