"""The command line: 0 yes, 1 no, 2 bad input; what goes to stdout is the answer and nothing else."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from extender.cli.output.printing import console, print_table
from tests.support.planning import spec_vectors
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_fleet,
    a_gang,
    a_node,
    a_pod,
    vector_objects,
)
from tests.support.service.workload_builders import a_job


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the program in this process; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    data = str(tmp_path / "data")

    def call(*words, stdin=""):
        done = run_command(*words, stdin=stdin, GANG_EXTENDER_DATA_DIR=data)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def write(tmp_path):
    def to_file(name, *objects, text=None):
        path = tmp_path / name
        path.write_text(text if text is not None else yaml.safe_dump_all(objects))
        return str(path)

    return to_file


TOP = {"verdict", "gangs"}
FIELDS = {
    "gang",
    "kind",
    "verdict",
    "wishes",
    "domains",
    "assignments",
    "unplaced",
    "victims",
    "reasons",
    "conflict",
    "help",
    "changes",
    "when_empty",
    "reasons_when_empty",
    "node_groups",
    "search",
    "workload",
    "groups",
    "steps",
}


def test_plan_prints_exactly_the_stated_fields(run, write):
    """The fields of the answer, of a root, of an assignment and of the search, and no others."""
    cluster = write("c.yaml", *a_fleet("2 racks x 2 nodes", gpu=2))
    code, out, err = run(
        "plan",
        "--cluster",
        cluster,
        "-f",
        write("g.yaml", *a_gang("g", pods=4, topo=RACK)),
        "-o",
        "json",
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert set(answer) == TOP
    (root,) = answer["gangs"]
    assert set(root) == FIELDS
    assert (answer["verdict"], root["verdict"], root["gang"], root["kind"]) == (
        "placed",
        "placed",
        "default/g",
        "PodGroup",
    )
    assert set(root["search"]) == {"nodes", "exhausted"}
    assert all(set(a) == {"pod", "group", "node"} for a in root["assignments"])
    assert [a["pod"] for a in root["assignments"]] == [f"default/g-{n}" for n in range(4)]
    assert root["domains"] in ({"g": {RACK: "r0"}}, {"g": {RACK: "r1"}})


def test_a_gang_that_does_not_fit_is_a_no(run, write):
    """Exit 1 with the verdict, the conflict and its fields; still on stdout, and nothing on stderr."""
    cluster = write("c.yaml", a_node("n0", gpu=1))
    gang = write("g.yaml", *a_gang("g", pods=2))
    code, out, err = run("plan", "--cluster", cluster, "-f", gang, "-o", "json")
    assert (code, err) == (1, "")
    (root,) = json.loads(out)["gangs"]
    assert root["verdict"] == "impossible"
    assert root["search"]["exhausted"]
    assert root["unplaced"] == ["default/g-0", "default/g-1"]
    assert all(set(c) == {"kind", "object", "message"} for c in root["conflict"])
    assert root["reasons"]
    code, out, _ = run("plan", "--cluster", cluster, "-f", gang)
    assert code == 1
    assert "PodGroup default/g: impossible" in out


def test_plan_reads_stdin(run, write):
    """`-` is the standard input, for either kind of file."""
    cluster, gang = a_fleet("1 nodes", gpu=2), a_gang("g", pods=2)
    code, out, _ = run(
        "plan",
        "--cluster",
        write("c.yaml", *cluster),
        "-f",
        "-",
        "-o",
        "json",
        stdin=yaml.safe_dump_all(gang),
    )
    assert (code, json.loads(out)["verdict"]) == (0, "placed")
    code, out, _ = run(
        "plan",
        "--cluster",
        "-",
        "-f",
        write("g.yaml", *gang),
        "-o",
        "yaml",
        stdin=yaml.safe_dump_all(cluster),
    )
    assert (code, yaml.safe_load(out)["verdict"]) == (0, "placed")


def test_the_worst_verdict_stands_on_top(run, write):
    """One gang placed and one waiting is waiting, exit 1."""
    waiting = a_gang("late", pods=1, minimum=3)
    code, out, _ = run(
        "plan",
        "--cluster",
        write("c.yaml", *a_fleet("1 nodes")),
        "-f",
        write("g.yaml", *a_gang("g", pods=2), *waiting),
        "-o",
        "json",
    )
    answer = json.loads(out)
    assert (code, answer["verdict"]) == (1, "waiting")
    assert [r["verdict"] for r in answer["gangs"]] == ["placed", "waiting"]


BAD = [
    ("missing file", {"text": None}, ["absent.yaml"]),
    ("broken yaml", {"text": "a: [1"}, ["g.yaml"]),
    (
        "unknown kind",
        {"text": "apiVersion: v1\nkind: Gadget\nmetadata: {name: x}\n"},
        ["g.yaml", "Gadget"],
    ),
    ("bad quantity", {"objects": [a_pod("p", requests={GPU: "lots"})]}, ["default/p", "lots"]),
    ("missing class", {"objects": [a_pod("p", priorityClassName="vip")]}, ["default/p", "vip"]),
    ("bad minimum", {"objects": a_gang("g", pods=1, minimum=-3)}, ["default/g", "-3"]),
]


@pytest.mark.parametrize(("given_", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_names_file_object_and_value(run, write, given_, words):
    """Exit 2, a message with the file or object and the value, and nothing on stdout."""
    cluster = write("c.yaml", *a_fleet("1 nodes"))
    if "objects" in given_:
        gang = write("g.yaml", *given_["objects"])
    else:
        gang = "absent.yaml" if given_["text"] is None else write("g.yaml", text=given_["text"])
    code, out, err = run("plan", "--cluster", cluster, "-f", gang, "-o", "json")
    assert (code, out) == (2, ""), err
    assert err.startswith("gang-extender: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "words",
    [
        ("plan",), ("plan", "--cluster"), ("plan", "--nonsense"), ("nonsense",), ("decision", "replay"),
        ("decision", "replay", "0"), ("db", "nonsense"), ("events", "--limit", "0"), ("plan", "--cluster", "c", "-o", "xml"),
        ("history", "a/b/c"), ("explain", "/x"), ("events", "--since", "yesterdy"),
        ("serve", "--listen", "8888", "--cluster", "."), ("serve", "--lease-duration-s", "0", "--cluster", "."),
        ("verify", "--database-url", "mysql://x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_usage_is_exit_2(run, words):
    """A message on stderr, nothing on stdout, no traceback."""
    code, out, err = run(*words)
    assert (code, out) == (2, ""), err
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("gangs",), ("explain", "g")], ids=" ".join)
def test_no_service_is_exit_2(run, words):
    """The message names the address and what to do."""
    code, out, err = run(*words, "--server", "http://127.0.0.1:9")
    assert (code, out) == (2, "")
    assert "http://127.0.0.1:9" in err
    assert "serve" in err


@pytest.fixture
def some_server():
    """A server that is not ours: it answers 200 with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_program_on_the_port_is_exit_2(run, some_server):
    """A 200 that is not ours is a wrong --server, not a traceback."""
    code, out, err = run("gangs", "--server", some_server)
    assert (code, out) == (2, "")
    assert some_server in err


def test_the_error_page_of_another_program_is_not_printed(run, write, some_server):
    """It answers 501 to POST, with a page of HTML."""
    pod = write("pod.yaml", a_pod("p"))
    code, out, err = run("plan", "-f", pod, "--server", some_server)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "answered 501, not as gang-extender does" in err
    assert some_server in err


def test_brackets_in_a_text_are_printed_as_they_are(capsys):
    """A field such as metadata.annotations[KEY] is no markup."""
    text = "metadata.annotations[example.com/key]: '[/red]' is not a number"
    print_table(("reason",), [(text,)], empty="")
    console().print(text)
    assert capsys.readouterr().out.count(text) == 2


def test_a_folder_that_cannot_be_used_is_not_a_port(run, write):
    """A data directory that cannot be made is named; the port has nothing to do with it."""
    manifests = write("c.yaml", *a_fleet("1 nodes"))
    code, out, err = run(
        "serve", "--cluster", manifests, "--data-dir", "/dev/null/x", "--listen", "127.0.0.1:0"
    )
    assert code == 2
    assert out == ""
    assert "/dev/null" in err
    assert "cannot listen" not in err


def test_version_and_help(run):
    """--version and --help are answers: exit 0 on stdout."""
    code, out, err = run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("gang-extender ")
    code, out, _ = run("--help")
    assert code == 0
    for command in (
        "serve",
        "plan",
        "gangs",
        "explain",
        "history",
        "events",
        "decision",
        "verify",
        "db",
    ):
        assert command in out


@pytest.mark.parametrize(
    ("group", "commands"),
    [("db", ("migrate", "project", "prune")), ("decision", ("replay",))],
    ids=["db", "decision"],
)
def test_a_group_of_commands_lists_them(run, group, commands):
    """`--help` is an answer; without a command the same text is bad usage."""
    code, out, err = run(group, "--help")
    assert (code, err) == (0, "")
    assert f"gang-extender {group} [OPTIONS] COMMAND" in out
    listed = out.partition("Commands:")[2]
    rows = (line for line in listed.splitlines() if line[2:3].strip())  # not those that go on
    assert tuple(line.split()[0] for line in rows) == commands
    assert "..." not in listed  # each sentence is whole
    code, bare, err = run(group)
    assert (code, bare, err) == (2, "", out)


@pytest.mark.parametrize("name", ["migrate", "project", "prune", "replay"])
def test_a_command_of_a_group_is_not_a_command_by_itself(run, name):
    code, out, err = run(name)
    assert (code, out) == (2, "")
    whole = "decision replay" if name == "replay" else f"db {name}"
    assert err == f"gang-extender: no such command: {name}; did you mean `gang-extender {whole}`?\n"


WRONG = [
    (("events", "--limit", "0"), "--limit: '0' is below 1, the smallest value; see `gang-extender events --help`"),
    (("report", "pending", "--limit", "20000"), "--limit: '20000' is above 10000, the largest value; see `gang-extender report --help`"),
    (("db", "prune", "--days", "many"), "--days: 'many' is not a whole number; see `gang-extender db prune --help`"),
    (("decision", "replay", "x"), "position: 'x' is not a whole number; see `gang-extender decision replay --help`"),
    (("gangs", "-o", "csv"), "--output: 'csv' is not one of 'table', 'wide', 'name', 'json', 'yaml'; see `gang-extender gangs --help`"),
    (("gangs", "--colour"), "no such option: --colour; see `gang-extender gangs --help`"),
    (("explain",), "missing argument 'name'; see `gang-extender explain --help`"),
    (("explian",), "no such command: explian; did you mean `gang-extender plan` or `gang-extender explain` or `gang-extender decision replay`?"),
    (("db", "migrat"), "no such command: db migrat; did you mean `gang-extender db migrate`?"),
    (("trees", ""), "got unexpected extra argument ''; see `gang-extender trees --help`"),
    (("", "trees"), "no such command: ''; there are serve, plan, make-room, drain, moves, simulate, gangs, explain, trees, history, events, preemptions, state, report, status, decision replay, config, certs, proxy, verify, keys, db migrate, db project, db prune"),
    (("db", ""), "no such command: db ''; there are db migrate, db project, db prune"),
    (("plan\n",), "no such command: 'plan\\n'; did you mean `gang-extender plan` or `gang-extender explain`?"),
    (("db", "why"), "no such command: db why; there are db migrate, db project, db prune"),
    (("gangs", "--server", "127.0.0.1:8888"), "--server: '127.0.0.1:8888' is not a URL, for example http://127.0.0.1:8888"),
    (("events", "--follow", "--server", "ftp://x"), "--server: 'ftp://x' is not a URL, for example http://127.0.0.1:8888"),
    (("plan", "--server", "http://127.0.0.1:9", "--search-budget", "200001"), "--search-budget: 200001 is above 200000, the maximum with --server"),
    (("events", "--since", "2026-11-02T00:00:00Z", "--until", "2026-11-01T00:00:00Z"), "--since: 2026-11-02T00:00:00Z is not before --until, 2026-11-01T00:00:00Z; the span is empty"),
    (("report", "pending", "--since", "2026-11-02T00:00:00Z", "--until", "2026-11-01T00:00:00Z"), "--since: 2026-11-02T00:00:00Z is not before --until, 2026-11-01T00:00:00Z; the span is empty"),
    (("state", "--domain", "rack"), "--domain: 'rack' is not KEY=VALUE, for example topology.kubernetes.io/rack=r7"),
    (("verify", "--database-url", "nonsense"), "--database-url: cannot be read as a URL; expected postgresql://user@host/database"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_is_wrong_is_one_sentence(run, words, sentence):
    """The option, its value, and what would help; nothing else is printed."""
    assert run(*words) == (2, "", f"gang-extender: {sentence}\n")


def test_a_database_that_does_not_answer_is_named_without_its_password(run):
    code, out, err = run(
        "db", "migrate", "--database-url", "postgresql://me:secret@127.0.0.1:9/gang"
    )
    assert (code, out) == (2, "")
    assert err.startswith("gang-extender: the database does not answer: me@127.0.0.1:9/gang: ")
    assert err.endswith("; see --database-url\n")
    assert "secret" not in err


def test_nothing_to_plan_names_what_would_add_something(run, write):
    cluster = write("c.yaml", *a_fleet("1 nodes"))
    code, out, _ = run("plan", "--cluster", cluster)
    assert (code, "the cluster has no group and no pending pod; -f FILE names some." in out) == (
        2,
        True,
    )
    code, out, _ = run("plan", "--cluster", cluster, "-f", write("n.yaml", a_node("n9")))
    assert code == 2
    assert (
        "the files of -f have no group, no pending pod and no workload that needs pods; --all-pending adds"
        in out
    )


@pytest.mark.parametrize("options", [(), ("--copies", "2"), ("--max-copies",)])
def test_nothing_to_plan_is_no_success(run, write, options):
    """A Job that needs no pods: exit 2 in every form of the output, and the Job is named."""
    cluster = write("c.yaml", *a_fleet("1 nodes"))
    job = write("j.yaml", a_job("none", parallelism=0))
    for output in ("json", "yaml", "table", "markdown"):
        code, out, err = run("plan", "--cluster", cluster, "-f", job, "-o", output, *options)
        assert code == 2, output
        assert "Job/default/none: needs no pods as it is, so nothing of it is planned" in err
        assert "placed" not in out.casefold()
        assert "nothing" in out.casefold()


PREEMPT = spec_vectors.of_kind("preempt")


@pytest.mark.parametrize("vector", PREEMPT, ids=[v["id"] for v in PREEMPT])
def test_plan_prints_the_victims_that_vectors_want(run, write, vector):
    """Every `preempt` vector as manifests: `victims` as wanted, and none with --no-preemption."""
    path = write("v.yaml", *vector_objects(vector))
    code, out, _ = run("plan", "--cluster", path, "-o", "json")
    (root,) = json.loads(out)["gangs"]
    best = [name.lower() for name in vector.get("best", [])]
    units = [v["unit"].rpartition("/")[2] for v in root["victims"]]
    if vector.get("any"):
        assert len(units) == len(best)
    else:
        assert units == best
    placed = bool(best) or vector["kep"] == "not-triggered"
    assert (code, root["verdict"]) == ((0, "placed") if placed else (1, "impossible"))
    assert all(set(v) == {"unit", "pods"} for v in root["victims"])
    assert all(v["unit"].count("/") == 2 and v["pods"] for v in root["victims"])
    code, out, _ = run("plan", "--cluster", path, "-o", "json", "--no-preemption")
    (alone,) = json.loads(out)["gangs"]
    assert alone["victims"] == []
    assert (code, alone["verdict"]) == ((1, "impossible") if best else (code, root["verdict"]))
    code, out, _ = run("plan", "--cluster", path)
    assert all(f"evicts {v['unit']}" in out for v in root["victims"])


def test_plan_has_the_reason_why_evicting_does_not_help(run, write):
    """P08: the reasons have how many pods could be placed by evicting every unit."""
    path = write("v.yaml", *vector_objects(spec_vectors.by_id("P08")))
    _, out, _ = run("plan", "--cluster", path, "-o", "json")
    (root,) = json.loads(out)["gangs"]
    text = "evicting Pod/default/a, the only lower-priority unit, yields 1 of 2 pods"
    assert text in root["reasons"]
