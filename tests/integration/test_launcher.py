# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear run` as a user meets it: real processes, real terminals, real signals."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid

import psutil
import pytest

import tfdear

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(tfdear.__file__).resolve().parents[1]
# Only ends tests that hang.
DEADLINE = 240.0
MARK = "TFDEAR_TEST_MARK"

# Begins every script: `rank`, and `touch` and `wait_for` to tell each other where they are.
PRELUDE = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["TFDEAR_RANK"])

def touch(name):
    pathlib.Path(name).touch()

def wait_for(name):
    end = time.monotonic() + 200
    while not pathlib.Path(name).exists():
        assert time.monotonic() < end, f"no {name}"
        time.sleep(0.01)

"""

# A process in the rank's group, one in a session of its own, and one that gave up its parents.
GRANDCHILDREN = """
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "300"], start_new_session=True)
subprocess.run("setsid sleep 300 > daemon.log 2>&1 &", shell=True)
touch(f"ready_{rank}")
"""


@pytest.fixture(autouse=True, scope="module")
def interrupts_arrive():
    """A shell that starts pytest in the background makes it and all it starts ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Runner:
    """Starts launchers in a folder, finds what they started, and ends what is left."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environment = dict(os.environ, PYTHONPATH=str(ROOT), **{MARK: self.mark})
        for name in list(self.environment):
            if name.startswith(("TFDEAR_RANK", "TF_CONFIG", "SLURM_", "OMP_", "TF_NUM_")):
                del self.environment[name]
        self._files = contextlib.ExitStack()

    def script(self, text, name="train.py"):
        (self.folder / name).write_text(PRELUDE + text)
        return name

    def start(self, *arguments, command=(sys.executable, "-m", "tfdear", "run"), **options):
        """Popen of `tfdear run`; stdout and stderr go to files unless given."""
        files = {
            name: self._files.enter_context((self.folder / name).open("wb"))
            for name in ("out", "err")
        }
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env=self.environment,
            # Whoever runs the tests may have been started with nohup, which is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            **{"stdin": subprocess.DEVNULL, "stdout": files["out"], "stderr": files["err"]}
            | options,
        )

    def run(self, *arguments):
        """Exit code, stdout and stderr of a launcher that ends by itself."""
        code = self.start(*arguments).wait(timeout=DEADLINE)
        return code, self.read("out"), self.read("err")

    def read(self, name):
        return (self.folder / name).read_bytes().decode(errors="surrogateescape")

    def processes(self):
        """Everything alive that was started here, the launcher included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def wait_for(self, *names):
        wait_until(lambda: all((self.folder / name).exists() for name in names), f"{names}")

    def close(self):
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._files.close()


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not in {DEADLINE} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def runner(tmp_path):
    runner = Runner(tmp_path)
    yield runner
    runner.close()


def test_every_rank_knows_its_place(runner):
    script = runner.script(
        "import json\n"
        "values = {n: v for n, v in os.environ.items() if n.startswith('TFDEAR_')}\n"
        "values |= {'arguments': sys.argv[1:], 'config': os.environ.get('TF_CONFIG')}\n"
        "pathlib.Path(f'place_{rank}').write_text(json.dumps(values))\n"
    )
    runner.environment["TF_CONFIG"] = '{"cluster": {}}'
    code, _, errors = runner.run("-n", "4", "--nodes", "2", script, "--nodes", "9", "--", "-x")
    assert code == 0, errors
    assert errors.count("TF_CONFIG") == 1
    places = [json.loads(runner.read(f"place_{rank}")) for rank in range(4)]
    assert [p["TFDEAR_RANK"] for p in places] == ["0", "1", "2", "3"]
    assert [p["TFDEAR_LOCAL_RANK"] for p in places] == ["0", "1", "0", "1"]
    assert [p["TFDEAR_NODE_RANK"] for p in places] == ["0", "0", "1", "1"]
    assert {p["TFDEAR_WORLD_SIZE"] for p in places} == {"4"}
    assert {p["TFDEAR_LOCAL_SIZE"] for p in places} == {"2"}
    (coordinator,) = {p["TFDEAR_COORDINATOR"] for p in places}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", coordinator)
    assert all(p["arguments"] == ["--nodes", "9", "--", "-x"] for p in places)
    assert all(p["config"] is None for p in places)


def test_modules_and_programs_run_too(runner):
    (runner.folder / "package").mkdir()
    runner.script("print('module', sys.argv[1:])", name="package/job.py")
    code, output, _ = runner.run("-n", "1", "-m", "package.job", "-n", "7")
    assert (code, output) == (0, "module ['-n', '7']\n")
    code, output, _ = runner.run("-n", "2", "--", "sh", "-c", "echo $0 $TFDEAR_RANK", "x")
    assert (code, sorted(output.splitlines())) == (0, ["[rank 1] x 1", "x 0"])


def test_names_may_have_spaces(runner):
    (runner.folder / "my folder").mkdir()
    runner.script("print(sys.argv[1:])", name="my folder/my script.py")
    (runner.folder / "my folder" / "__main__.py").write_text("print('the folder')\n")
    script = "my folder/my script.py"
    code, output, errors = runner.run("-n", "2", "--log-dir", "my logs", script, "a b", "")
    assert (code, output) == (0, "['a b', '']\n"), errors
    assert runner.read("my logs/rank_1.log") == "['a b', '']\n"
    assert runner.run("-n", "1", "my folder")[:2] == (0, "the folder\n")


def test_more_ranks_than_the_machine_can_start_are_refused(runner):
    limit = f"ulimit -n 40; exec {sys.executable} -m tfdear run -n 64 -- sleep 100"
    result = subprocess.run(
        ["sh", "-c", limit],
        cwd=runner.folder,
        env=runner.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert result.returncode == 2
    assert re.fullmatch(
        r"tfdear run: rank \d+ of 64 could not be started: Too many open files\. Start fewer .*\n",
        result.stderr,
    ), result.stderr
    wait_until(lambda: not runner.processes(), "the end of the ranks that were started")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["-n", "2", "missing.py"], "no script missing.py"),
        (["-n", "2", "a folder"], "there is no a folder in"),
        (["-n", "2", "-m", "missing_module"], "no module 'missing_module'"),
        (["-n", "3", "--nodes", "2", "train.py"], "3 ranks cannot be spread"),
        (["-n", "2", "--show", "x", "train.py"], "--show must be"),
        (["-n", "2", "--log-dir", "train.py/logs", "train.py"], "train.py/logs cannot be made"),
        (["-n", "2"], "name the script"),
        (["train.py"], "-n"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(runner, arguments, words):
    runner.script("touch('started')")
    code, output, errors = runner.run(*arguments)
    assert (code, output) == (2, "")
    assert words in errors
    assert not (runner.folder / "started").exists()


def test_a_missing_interpreter_is_named(runner):
    program = runner.folder / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    code, _, errors = runner.run("-n", "2", "./program")
    assert code == 127
    assert "could not be started: No such file" in errors and "./program" in errors


def test_rank_0_passes_byte_for_byte_and_the_others_are_prefixed(runner):
    script = runner.script(
        "if rank == 0:\n"
        "    sys.stdout.buffer.write(bytes(range(256)) + b'\\r1/2\\r2/2')\n"
        "    sys.stderr.buffer.write(b'\\xfferror')\n"
        "    touch('said')\n"
        "else:\n"
        "    wait_for('said')\n"
        "    time.sleep(0.5)\n"
        "    print('10%\\r20%\\nlast', end='')\n"
        "    print('problem', file=sys.stderr)\n"
    )
    code = runner.start("-n", "2", script).wait(timeout=DEADLINE)
    assert code == 0
    live = bytes(range(256)) + b"\r1/2\r2/2"
    # The line break keeps the lines of rank 1 apart from the unfinished one of rank 0.
    assert (runner.folder / "out").read_bytes() == live + b"\n[rank 1] 20%\n[rank 1] last\n"
    assert (runner.folder / "err").read_bytes() == b"\xfferror\n[rank 1] problem\n"


def test_no_prefix(runner):
    code, output, _ = runner.run("-n", "2", "--no-prefix", runner.script("print('same')"))
    assert (code, output) == (0, "same\nsame\n")


def run_on_terminal(runner, *arguments, typed=None):
    """Exit code and output of a launcher whose controlling terminal is 97 columns wide."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(runner.folder)
            os.execve(
                sys.executable,
                [sys.executable, "-m", "tfdear", "run", *arguments],
                runner.environment,
            )
        finally:
            os._exit(99)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    (runner.folder / "resized").touch()
    output = b""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break
        if typed is not None and typed[0] in output:
            os.write(terminal, typed[1])
            typed = None
    else:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), output


def test_rank_0_has_a_terminal(runner):
    script = runner.script(
        "wait_for('resized')\n"
        "if rank == 0:\n"
        "    end = time.monotonic() + 20\n"
        "    while os.get_terminal_size(1).columns != 97 and time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), end=' ')\n"
        "print(os.get_terminal_size(1) if rank == 0 else '')\n"
        "print('a\\rb', end='\\n' if rank else '')\n"
    )
    code, output = run_on_terminal(runner, "-n", "2", script)
    assert code == 0
    assert b"True True os.terminal_size(columns=97, lines=31)\r\n" in output
    assert b"[rank 1] False False \r\n" in output
    # Only the real terminal makes "\r\n" of "\n", once.
    assert b"a\rb" in output and b"\r\r\n" not in output


def test_the_progress_bar_of_keras_stays_whole(runner):
    script = runner.script(
        "if rank == 0:\n"
        "    import keras\n"
        "    print('begin')\n"
        "    bar = keras.utils.Progbar(3, interval=0)\n"
        "    for i in range(1, 4):\n"
        "        bar.update(i, [('loss', i)])\n"
        "    print('end')\n"
    )
    code, output = run_on_terminal(runner, "-n", "2", script)
    assert code == 0, output.decode(errors="replace")
    bar = output.partition(b"begin\r\n")[2].partition(b"end\r\n")[0]
    # Drawn again and again on one line, which ends once.
    for step in (b"1/3", b"2/3", b"3/3"):
        assert step in bar
    assert bar.replace(b"\r\n", b"").count(b"\r") >= 2
    assert bar.count(b"\n") == 1


def test_control_c_on_a_terminal_ends_all(runner):
    script = runner.script(
        "try:\n"
        "    print(f'ready{rank}' if rank == 0 else '')\n"
        "    time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    touch(f'interrupted_{rank}')\n"
        "    raise\n"
    )
    code, output = run_on_terminal(runner, "-n", "2", script, typed=(b"ready0", b"\x03"))
    assert code == 130, output
    assert b"SIGINT" in output
    assert (runner.folder / "interrupted_0").exists()
    assert not runner.processes()


@pytest.mark.parametrize(
    "failure, code, words",
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("raise ValueError('no good')", 1, "exited with code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
    ],
)
def test_the_first_failure_ends_all_and_gives_the_exit_code(runner, failure, code, words):
    script = runner.script(
        f"{GRANDCHILDREN}\n"
        "if rank == 1:\n"
        "    for other in (0, 2):\n"
        "        wait_for(f'ready_{other}')\n"
        f"    {failure}\n"
        "time.sleep(300)\n"
    )
    result, _, errors = runner.run("-n", "3", "--grace", "0.2", script)
    assert result == code, errors
    assert re.search(rf"rank 1 \(pid \d+\) failed first: it {words}", errors)
    assert "rank 0 was killed by SIGTERM" in errors and "rank 2 was killed by SIGTERM" in errors
    assert not runner.processes()


def test_the_others_may_say_themselves_what_happened(runner):
    script = runner.script(
        "if rank == 1:\n"
        "    print('the root cause')\n"
        "    touch('failed')\n"
        "    sys.exit(5)\n"
        "wait_for('failed')\n"
        "time.sleep(0.3)\n"
        "sys.exit(f'rank {rank} lost rank 1')\n"
    )
    code, output, errors = runner.run("-n", "3", script)
    assert code == 5
    assert "rank 0 lost rank 1" in errors and "[rank 2] rank 2 lost rank 1" in errors
    assert re.search(r"rank 1 \(pid \d+\) failed first: it exited with code 5", errors)
    assert re.search(r"rank 2 exited with code 1, \d+\.\d s later", errors)
    # The cause, which the errors of the others have moved up, once more at the end.
    assert "    the root cause" in errors.partition("the last that rank 1 printed")[2]
    assert "SIGTERM" not in errors


KERAS_JOB = """
import keras
import numpy as np
import tfdear

strategy = tfdear.DearStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="the_layer")])
    model.compile("sgd", "mse")
model.summary()

class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and strategy.rank == 1:
            {}["the key"]

print(f"rank {strategy.rank} trains", flush=True)
model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, epochs=2, callbacks=[Stop()])
"""


@pytest.mark.multi_process
def test_keras_is_shown_once_and_the_cause_of_a_failure_at_the_end(runner):
    runner.environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    code, output, errors = runner.run("-n", "2", runner.script(KERAS_JOB))
    assert code == 1, errors
    assert output.count("the_layer") == output.count("Epoch 1/2") == 1
    # What the script itself prints is the script's business.
    assert "rank 0 trains" in output and "[rank 1] rank 1 trains" in output
    assert not re.search(r"^\[rank 1\] .*(absl|oneDNN|CUDA|cuda)", errors, re.M), errors
    summary = errors[errors.index("failed first") :]
    assert "exited with code 1 after" in summary and "s, with KeyError: 'the key'" in summary
    assert "rank 0 exited with code 1" in summary
    assert summary.rstrip().endswith("KeyError: 'the key'")


@pytest.mark.parametrize("seconds", [0.3, 2.5])
def test_a_rank_that_ends_because_of_another_did_not_fail_first(runner, seconds):
    script = runner.script(
        "if rank == 0:\n"
        "    print('tfdear: rank 0 ends: rank 1 failed', file=sys.stderr)\n"
        "    touch('ends')\n"
        "    sys.exit(1)\n"
        "wait_for('ends')\n"
        f"time.sleep({seconds})\n"
        "sys.exit(3)\n"
    )
    code, _, errors = runner.run("-n", "2", script)
    assert code == 3
    assert re.search(r"rank 1 \(pid \d+\) failed first: it exited with code 3", errors), errors
    assert "rank 0 exited with code 1" in errors


def test_a_rank_may_end_before_the_others(runner):
    script = runner.script(
        "if rank == 0:\n    sys.exit(0)\ntime.sleep(0.5)\ntouch(f'finished_{rank}')\n"
    )
    code, _, errors = runner.run("-n", "3", script)
    assert (code, errors) == (0, "")
    assert (runner.folder / "finished_1").exists() and (runner.folder / "finished_2").exists()


def test_a_rank_that_runs_long_after_the_others_is_named_and_left_alone(runner):
    script = runner.script(
        "if rank == 0:\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    wait_for('named')\n"
        "    print('finished')\n"
    )
    early = (
        "import sys\n"
        "from tfdear.commands import main\n"
        "from tfdear.launch import reminder\n"
        "reminder.FIRST_SECONDS = 0.3\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    launcher = runner.start("-n", "3", script, command=[sys.executable, "-c", early, "run"])
    words = "rank 0 still runs, "
    wait_until(lambda: runner.read("err").count(words) > 1, words)
    assert f": kill -USR1 {runner.read('pid')}. " in runner.read("err")
    (runner.folder / "named").touch()
    assert launcher.wait(timeout=DEADLINE) == 0
    assert runner.read("out") == "finished\n"
    # Of ranks 1 and 2 one may end much later than the other, and is named until then.
    assert runner.read("err").count("\n") == runner.read("err").count(" still run")


def test_what_a_finished_rank_leaves_behind_is_ended(runner):
    code, _, _ = runner.run("-n", "2", runner.script(GRANDCHILDREN))
    assert code == 0
    assert not runner.processes()


def test_a_rank_that_does_not_react_is_killed(runner):
    script = runner.script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "touch(f'ready_{rank}')\n"
        "if rank == 0:\n"
        "    wait_for('ready_1')\n"
        "    sys.exit(4)\n"
        "time.sleep(300)\n"
    )
    code, _, errors = runner.run("-n", "2", "--grace", "0", script)
    assert code == 4
    assert "rank 1 was killed by SIGKILL" in errors
    assert not runner.processes()


def test_a_stopped_rank_is_named(runner):
    script = runner.script(
        "if rank == 1:\n"
        "    touch('stopping')\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "wait_for('stopping')\n"
        "time.sleep(0.3)\n"
        "sys.exit(6)\n"
    )
    code, _, errors = runner.run("-n", "2", "--grace", "0", script)
    assert code == 6
    assert re.search(r"rank 1 was killed by SIG\w+ \(it was stopped before", errors)


def test_a_closed_terminal_that_is_told_twice_leaves_ranks_their_time(runner):
    script = runner.script(
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    touch(f'saved_{rank}')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGHUP, save)\n"
        "touch(f'ready_{rank}')\n"
        "time.sleep(300)\n"
    )
    launcher = runner.start("-n", "2", script)
    runner.wait_for("ready_0", "ready_1")
    for _ in range(2):  # By the shell, and by the kernel.
        launcher.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert launcher.wait(timeout=DEADLINE) == 129
    assert (runner.folder / "saved_0").exists() and (runner.folder / "saved_1").exists()


def test_streams_may_be_closed(runner):
    script = runner.script("touch(f'ran_{rank}')\nprint('lost')\nprint('too', file=sys.stderr)\n")
    for streams in (">&-", "2>&-", ">&- 2>&-"):
        command = f'exec "$0" -m tfdear run -n 2 {script} {streams}'
        launcher = runner.start(command=["/bin/sh", "-c", command, sys.executable])
        assert launcher.wait(timeout=DEADLINE) == 0, (streams, runner.read("err"))
        for rank in range(2):
            (runner.folder / f"ran_{rank}").unlink()


def test_many_descriptors_may_be_open(runner):
    held = (
        "import os, resource, sys\n"
        "from tfdear.commands import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    script = runner.script("print('rank', rank)\n")
    launcher = runner.start("-n", "2", script, command=[sys.executable, "-c", held, "run"])
    assert launcher.wait(timeout=DEADLINE) == 0, runner.read("err")
    assert "rank 0" in runner.read("out") and "rank 1" in runner.read("out")


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_ends_all(runner, number, code):
    launcher = runner.start("-n", "2", runner.script(f"{GRANDCHILDREN}\ntime.sleep(300)"))
    runner.wait_for("ready_0", "ready_1")
    launcher.send_signal(number)
    assert launcher.wait(timeout=DEADLINE) == code
    assert number.name in runner.read("err")
    assert not runner.processes()


def test_a_second_signal_kills_at_once(runner):
    script = runner.script(
        "signal.signal(signal.SIGINT, lambda *_: touch(f'ignored_{rank}'))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "touch(f'ready_{rank}')\n"
        "while True:\n"
        "    time.sleep(1)\n"
    )
    launcher = runner.start("-n", "2", script)
    runner.wait_for("ready_0", "ready_1")
    launcher.send_signal(signal.SIGINT)
    runner.wait_for("ignored_0", "ignored_1")
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=DEADLINE) == 130
    assert "killing all ranks" in runner.read("err")
    assert not runner.processes()


def test_ranks_die_with_the_launcher(runner):
    launcher = runner.start("-n", "2", runner.script(f"{GRANDCHILDREN}\ntime.sleep(300)"))
    runner.wait_for("ready_0", "ready_1")
    assert len(runner.processes()) >= 1 + 2 * (1 + 1 + 3)
    launcher.kill()
    assert launcher.wait(timeout=DEADLINE) == -signal.SIGKILL
    wait_until(lambda: not runner.processes(), "the end of all ranks")


def test_a_rank_does_not_outlive_its_guard(runner):
    script = runner.script("touch(f'ready_{rank}')\ntime.sleep(300)")
    launcher = runner.start("-n", "2", "--grace", "0", script)
    runner.wait_for("ready_0", "ready_1")
    guards = psutil.Process(launcher.pid).children()
    (rank_pid,) = [child.pid for child in guards[1].children()]
    guards[1].kill()
    assert launcher.wait(timeout=DEADLINE) == 128 + signal.SIGKILL
    assert "guard process was killed" in runner.read("err")
    wait_until(lambda: not psutil.pid_exists(rank_pid), "the end of the rank")
    assert not runner.processes()


def test_log_files(runner):
    script = runner.script(
        "print(f'out {rank}')\n"
        "print(f'error {rank}', file=sys.stderr)\n"
        "if rank == 2:\n"
        "    touch('failed')\n"
        "    sys.exit('a reason')\n"
        "wait_for('failed')\n"
    )
    code, output, errors = runner.run("-n", "3", "--log-dir", "a/logs", script)
    assert code == 1
    assert output == "out 0\n"
    assert "error 0" in errors and "error 1" not in errors
    assert sorted(runner.read("a/logs/rank_0.log").split("\n")) == ["", "error 0", "out 0"]
    assert runner.read("a/logs/rank_1.log") == "out 1\nerror 1\n"
    # The summary shows why, and where to read more.
    tail = errors.partition("the last that rank 2 printed (a/logs/rank_2.log)")[2]
    assert "    a reason" in tail


def test_shown_ranks_are_logged_too_and_hidden_ones_explain_their_failure(runner):
    script = runner.script("print(f'out {rank}')")
    code, output, _ = runner.run("-n", "3", "--log-dir", "logs", "--show", "1", script)
    assert (code, output) == (0, "[rank 1] out 1\n")
    assert [runner.read(f"logs/rank_{n}.log") for n in range(3)] == [
        "out 0\n",
        "out 1\n",
        "out 2\n",
    ]
    script = runner.script("print('hidden words')\nsys.exit(9 * rank)")
    code, output, errors = runner.run("-n", "2", "--show", "none", script)
    assert (code, output) == (9, "")
    assert "    hidden words" in errors


def test_output_that_nobody_reads_does_not_keep_a_job_alive(runner):
    launcher = runner.start(
        "-n", "2", runner.script("while True: print('x' * 999)"), stdout=subprocess.PIPE
    )
    assert b"x" * 900 in launcher.stdout.read(10_000)
    launcher.stdout.close()
    assert launcher.wait(timeout=DEADLINE) == 128 + signal.SIGPIPE
    assert not runner.processes()


def test_a_reader_who_waits_does_not_keep_a_signal_away(runner):
    script = runner.script("touch(f'ready_{rank}')\nwhile True: print('x' * 999)")
    launcher = runner.start("-n", "2", script, stdout=subprocess.PIPE)
    runner.wait_for("ready_0", "ready_1")
    time.sleep(0.5)  # Until the pipe is full.
    launcher.send_signal(signal.SIGTERM)
    # Only the exit code: what was printed is still in the pipe, or was dropped.
    assert launcher.wait(timeout=DEADLINE) == 143
    launcher.stdout.close()
    assert not runner.processes()


def test_no_output_is_lost(runner):
    script = runner.script("for i in range(20_000): print(f'{rank} {i} ' + 'ä' * (i % 50))")
    code, output, _ = runner.run("-n", "2", script)
    assert code == 0
    expected = [f"{i} " + "ä" * (i % 50) for i in range(20_000)]
    lines = output.encode(errors="surrogateescape").decode().split("\n")
    assert [line[2:] for line in lines if line.startswith("0 ")] == expected
    assert [line[11:] for line in lines if line.startswith("[rank 1] 1 ")] == expected
    assert len(lines) == 2 * 20_000 + 1


def test_the_command_line_starts_without_tensorflow():
    code = (
        "import sys, tfdear.commands.main, tfdear.launch.launcher\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & sys.modules.keys()\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=DEADLINE)
