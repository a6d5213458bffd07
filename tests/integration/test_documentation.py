# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What README.md and the pages of docs/ say: code runs, commands and links exist, figures agree."""

import contextlib
import functools
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import documentation
import pytest
import ranks
import yaml
from documentation import DOCS, PAGES, README, ROOT

import tfdear
from tfdear.rendezvous import cluster

# Only ends a job that hangs.
DEADLINE = 240.0
QUICK_START = DOCS / "getting-started.md"
MOST_NOT_RUN = 27
# Programs of others that appear in blocks which are not run.
FOREIGN = {"build/top_k_standalone_test", "kubectl", "mpirun", "pip", "sbatch", "sudo", "torchrun"}
HARMLESS = {"ls", "wait"}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# What their commands do has tests of its own. The options of all commands are checked.
RUN_ELSEWHERE = tuple(
    f"docs/{name}.md"
    for name in (
        *("benchmarks", "compression", "configuration", "measurement", "nlp", "security"),
        *("simulator", "two-machines"),
    )
)


def every_block() -> list[documentation.Block]:
    return [block for page in PAGES for block in documentation.blocks_of(page)]


def is_script(block: documentation.Block) -> bool:
    """Whether a block is a file of shell commands, which nothing here runs."""
    return block.language == "bash" and block.title is not None


def quick_start() -> documentation.Block:
    (block,) = (b for b in documentation.blocks_of(QUICK_START) if b.title == "train.py")
    return block


def run(command, folder: pathlib.Path) -> str:
    """Runs a command as a user would, in a folder; it must succeed. Returns what it printed."""
    foreign = ("TFDEAR_", "SLURM_", "OMPI_", "TF_CONFIG", "OMP_", "TF_NUM_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    for name, first in (("PATH", pathlib.Path(sys.executable).parent), ("PYTHONPATH", ROOT)):
        environment[name] = os.pathsep.join(filter(None, [str(first), os.environ.get(name)]))
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        code = f"none after {DEADLINE:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    text = output.read_text(errors="replace")
    assert code == 0, f"exit code {code}\n{text[-6000:]}"
    return text


def script_of(fragments: list[documentation.Block]) -> str:
    """A script of the fragments of a page, which continue the quick start.

    A fragment that makes a strategy stands in for the line of the quick start that does. Errors
    name the lines of the page.
    """
    first = quick_start()
    lines = first.code.splitlines(keepends=True)
    (place,) = (k for k, line in enumerate(lines) if line.startswith("strategy = "))
    makers = [fragment for fragment in fragments if "tfdear.DearStrategy(" in fragment.code]
    assert len(makers) <= 1, "a process with several ranks has one strategy: one fragment makes it"
    rest = place + len(makers)
    parts = [
        (str(first.page), first.line, "".join(lines[:place])),
        *((str(b.page), b.line, b.code) for b in makers),
        (str(first.page), first.line + rest, "".join(lines[rest:])),
        *((str(b.page), b.line, b.code) for b in fragments if b not in makers),
    ]
    return (
        "names = {'__name__': '__main__'}\n"
        f"for page, line, code in {parts!r}:\n"
        "    exec(compile('\\n' * (line - 1) + code, page, 'exec'), names)\n"
        "print('rank', names['strategy'].rank, 'ran them all')\n"
    )


@pytest.mark.integration
@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=pytest.mark.long if name in RUN_ELSEWHERE else ())
        for page, name in zip(PAGES, NAMES, strict=True)
    ],
)
def test_blocks_run(page, tmp_path, monkeypatch):
    blocks = documentation.blocks_of(page)
    for name in ("benchmarks", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "train.py").write_text(quick_start().code)
    printed = ""
    with contextlib.ExitStack() as stack:
        for block in blocks:
            print(block)
            if block.title:
                (tmp_path / block.title).write_text(block.code)
            elif block.language != "bash" or block.reason:
                continue
            elif block.needs_root and os.geteuid() != 0:
                print("    was not run: nobody but root can")
            else:
                if "tfdear netlab up" in block.code:
                    down = [sys.executable, "-m", "tfdear", "netlab", "down"]
                    stack.callback(subprocess.run, down, check=False)
                printed += run(["bash", "-euo", "pipefail", "-c", block.code], tmp_path)
    fragments = [b for b in blocks if b.language == "python" and not (b.title or b.reason)]
    if fragments:
        (tmp_path / "fragments.py").write_text(script_of(fragments))
        # On two nodes. Their processes are forked, which takes most of a fresh one's start.
        monkeypatch.chdir(tmp_path)
        results = ranks.run_ranks(
            2, tmp_path / "fragments.py", lambda rank: {"TFDEAR_NODE_RANK": str(rank)}, DEADLINE
        )
        for rank, (code, text) in enumerate(results):
            assert code == 0 and f"rank {rank} ran them all" in text, text[-6000:]
    if page == QUICK_START:
        # With the launcher, in one process, on two nodes (its log is a file), with TF_CONFIG.
        losses = [float(x) for x in re.findall(r"^\d ranks, loss (\S+)$", printed, re.MULTILINE)]
        assert len(losses) == 4
        assert losses == pytest.approx([losses[0]] * 4, abs=1e-4)


def test_most_blocks_run():
    blocks = every_block()
    code = [block for block in blocks if block.language != "text"]
    not_run = [block for block in code if block.reason]
    files = [b for b in code if b.language in ("dockerfile", "yaml") or is_script(b)]
    assert all(block.reason for block in files), "they are only read"
    print(f"{len(code)} blocks of code, {len(not_run)} of them are not run:")
    for block in not_run:
        print(f"    {block}: {block.reason}")
    assert len(not_run) <= MOST_NOT_RUN
    assert all(len(block.reason.split()) >= 3 for block in not_run), "give a reason"
    assert len(code) - len(not_run) >= 35


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_of_a_page_are_used_by_its_commands(page):
    blocks = documentation.blocks_of(page)
    shell = [block for block in blocks if block.language == "bash" and not is_script(block)]
    commands = " ".join(block.code for block in shell)
    for block in blocks:
        if not block.title:
            continue
        if block.language == "python":
            compile(block.code, str(block), "exec")
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.code))
        elif block.language == "bash":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
        if block.language in ("bash", "python", "json") and not block.reason:
            assert block.title in commands, f"{block}: no command of the page uses {block.title}"


@functools.cache
def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "tfdear", *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@functools.cache
def targets_of_the_makefile() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_options(words: list[str], known: str) -> None:
    for word in words:
        option = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", option):
            names = {option, option.replace("--no-", "--[no-]")}
            assert any(re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", known) for n in names), (
                f"there is no option {option}"
            )


def check_command(words: list[str]) -> None:
    """Fails if a command names an option, a target or a file that does not exist."""
    program, *words = words
    if program in ("python", "pytest"):
        if program == "python" and words[:1] == ["-m"]:
            return
        files = [word for word in words if word.startswith(("benchmarks/", "examples/", "tests/"))]
        for file in files:
            assert (ROOT / file).exists(), f"there is no {file}"
        if program == "python" and files:
            check_options(words, (ROOT / files[0]).read_text())
    elif program == "tfdear":
        if not words:
            return
        chosen, words = words[:1], words[1:]
        if words and chosen[0] in ("benchmark", "netlab"):
            chosen.append(words.pop(0))
        if words and chosen == ["benchmark", "embeddings"]:
            chosen.append(words.pop(0))
        if chosen[0] in ("run", "trace") or chosen == ["netlab", "run"]:
            # What follows the script is the script's.
            end = [k for k, word in enumerate(words) if word.endswith(".py")]
            words = words[: end[0]] if end else words
        if chosen[:1] == ["netlab"] and "--" in words:
            words = words[: words.index("--")]
        check_options(words, help_of(*chosen))
    elif program == "make":
        for word in words:
            assert "=" in word or word in targets_of_the_makefile(), f"there is no target {word}"
    elif program == "bazel":
        assert words[0] in ("build", "test")
    else:
        assert program in FOREIGN | HARMLESS, f"what is {program}?"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_have_the_options_that_are_written(page):
    for block in documentation.blocks_of(page):
        if block.language == "bash" and not block.title:
            for words in documentation.commands_in(block.code):
                with named(f"{block}: {' '.join(words)}"):
                    check_command(words)
    for words in documentation.commands_in_prose(page):
        with named(f"{page.name}: {' '.join(words)}"):
            check_command(words)


@contextlib.contextmanager
def named(where: str):
    try:
        yield
    except (AssertionError, subprocess.CalledProcessError) as error:
        raise AssertionError(f"{where}: {error}") from error


def test_places_in_the_job_are_understood():
    found = []
    for block in every_block():
        for text in re.findall(r"TF_CONFIG='(\{.*\})'", block.code):
            if "'$" not in text:  # The shell makes it of two parts, and runs it.
                found.append(cluster.discover(environ={"TF_CONFIG": text}))
    assert {(place.rank, place.world_size) for place in found} == {(0, 2), (1, 2)}
    two_machines = [place for place in found if "alpha" in place.coordinator]
    assert [place.coordinator for place in two_machines] == ["alpha:12345"] * 2


def test_the_training_operator_starts_one_job():
    (block,) = (b for b in every_block() if b.title == "digits.yaml")
    manifest = yaml.safe_load(block.code)
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v1", "TFJob")
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    replicas = manifest["spec"]["tfReplicaSpecs"]
    # As the operator does: a service for every pod, on its port, in the job of its replica type.
    jobs = {
        kind.lower(): [
            f"{name}-{kind.lower()}-{index}.{namespace}.svc:2222"
            for index in range(spec["replicas"])
        ]
        for kind, spec in replicas.items()
    }
    ranks = []
    for job, tasks in jobs.items():
        for index in range(len(tasks)):
            config = {
                "cluster": jobs,
                "task": {"type": job, "index": index},
                "environment": "cloud",
            }
            place = cluster.discover(environ={"TF_CONFIG": json.dumps(config)})
            assert place.coordinator == "digits-worker-0.training.svc:2222"
            assert place.world_size == 4
            ranks.append(place.rank)
    assert ranks == [0, 1, 2, 3]
    documented = (DOCS / "configuration.md").read_text()
    for spec in replicas.values():
        (container,) = spec["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"  # The operator sets TF_CONFIG in no other.
        script = pathlib.PurePosixPath(container["command"][1])
        assert (ROOT / script.relative_to("/")).exists()
        for variable in container["env"]:
            if "valueFrom" in variable:  # The job's secret, which the page has kubectl make.
                reference = variable["valueFrom"]["secretKeyRef"]
                page = (DOCS / "kubernetes.md").read_text()
                assert f"create secret generic {reference['name']} " in page
                assert f"--from-literal={reference['key']}=" in page
            else:
                assert isinstance(variable["value"], str)
            assert not variable["name"].startswith("TFDEAR") or variable["name"] in documented


def test_options_of_the_batch_script_are_those_of_slurm():
    (block,) = (b for b in every_block() if b.title == "job.sh")
    options = re.findall(r"^#SBATCH --([\w-]+)=\S+$", block.code, re.MULTILINE)
    assert options == ["job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time"]
    assert re.search(r"^srun --cpus-per-task=\S+ python train.py$", block.code, re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page):
    for target in documentation.links_of(page):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), f"{page.name} links to {target}"
        if DOCS in page.parents:
            # The built pages have nothing else.
            assert other == DOCS or DOCS in other.parents, f"{target} is not in docs/"
        if anchor:
            assert anchor in documentation.anchors_of(other), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def files(entry):
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [file for part in parts for file in files(part)]

    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(files(settings["nav"])) == sorted(pages)
    index = (DOCS / "README.md").read_text()
    own = {page for page in pages if "/" not in page and page != "README.md"}
    assert own <= set(re.findall(r"\(([\w-]+\.md)\)", index))


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_figures_of_the_readme_are_those_of_the_results():
    training, one_machine, history = documentation.tables_of(README, "Evidence")[0]
    results = DOCS / "results.md"

    steps = documentation.tables_of(results, "Training: step time beside other frameworks")[0]
    step, ours = "step, s", "tfdear's step over this one"
    rows = {row["framework"].split(" ")[0]: row for row in steps}
    (link,) = re.findall(r"^ResNet-50, 94.2 MB .* link ([\d.]+) s:$", results.read_text(), re.M)
    expected = [rows["tfdear"][step], link]
    others = ("PyTorch", "Horovod", "MultiWorkerMirroredStrategy")
    expected += [f"{float(rows[name][ours]):.2f}" for name in others]
    assert re.findall(r"\d\.\d+", training["Result"]) == expected

    alone = documentation.tables_of(results, "Training on one machine")[0]
    rows = {row["framework"]: float(row["over alone"]) for row in alone}
    names = ("tfdear", "PyTorch DDP (Gloo)", "Horovod 0.28 (Gloo)")
    expected = [f"{rows[name]:.2f}" for name in names]
    assert re.findall(r"\d\.\d+", one_machine["Result"]) == expected

    own = documentation.tables_of(results, "Numbers that one process would give")[0]
    (losses,) = (row["Result"] for row in own if row["What"].startswith("Loss history"))
    assert losses.startswith(history["Result"].partition(";")[0])
    assert losses.endswith(history["Result"].partition(";")[2].strip())
    for row in (training, one_machine):
        assert "default settings" in row["What"]


def test_every_option_is_in_the_configuration():
    text = (DOCS / "configuration.md").read_text()
    arguments = [
        name
        for name, parameter in inspect.signature(tfdear.DearStrategy).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for name in arguments:
        assert f"| `{name}` |" in text
    used = {f"TFDEAR_{name.upper()}" for name in arguments if name != "cluster_resolver"}
    for folder in ("tfdear", "custom_ops"):
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in (".py", ".cc", ".bzl"):
                used |= set(re.findall(r"[\"'](TFDEAR_[A-Z_]*[A-Z])[\"'=]", source.read_text()))
    written = set(re.findall(r"`(TFDEAR_[A-Z_]+)`", text))
    assert used <= written
    for page in PAGES:
        assert set(re.findall(r"TFDEAR_[A-Z_]*[A-Z]", page.read_text())) <= written


def test_the_reference_has_every_public_name():
    pages = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (tfdear\.\S+)$", pages, re.MULTILINE))
    assert {"tfdear.DearStrategy", "tfdear.TfdearError"} <= shown
    modules = ("callbacks", "compression", "data", "fusion", "layers", "losses", "ops")
    for module in (*modules, "optimizers", "simulator", "trace"):
        for name in getattr(tfdear, module).__all__:
            value = getattr(getattr(tfdear, module), name)
            # `SyncEASGD` is another name of a class; constants have no docstring.
            if callable(value) and value.__name__ == name:
                assert f"tfdear.{module}.{name}" in shown
    members = set(re.findall(r"^        - (\w+)$", pages, re.MULTILINE))
    public = {name for name in vars(tfdear.DearStrategy) if not name.startswith("_")}
    assert members == public
