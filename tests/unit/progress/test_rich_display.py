from __future__ import annotations

import io
import logging
import sys
import threading
from contextlib import redirect_stderr
from functools import wraps

import pytest
from progress_kit import Run

from dasktune.progress import PlainLines, Progress
from dasktune.progress.choose import open_display
from dasktune.progress.log_relay import relayed_logs

rich = pytest.importorskip("rich")
pytest.importorskip("rich.live")
pyte = pytest.importorskip("pyte")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    def screen(self, columns=80, lines=24):
        """Return the lines that a terminal shows now."""
        screen = pyte.Screen(columns, lines)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return [line.rstrip() for line in screen.display if line.strip()]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture
def live(terminal):
    return open_display("rich", terminal)


def on_terminal(test):
    """Let a test have its terminal as sys.stderr, which pytest changes before each test."""

    @wraps(test)
    def run(*, terminal, **fixtures):
        with redirect_stderr(terminal):
            try:
                test(terminal=terminal, **fixtures)
            finally:
                if "live" in fixtures:
                    fixtures["live"].close()

    return run


def progress(trial_counts, **more):
    best = trial_counts.best
    return Progress(
        counts=trial_counts.counts,
        total=40,
        metric=trial_counts.metric,
        best_value=trial_counts.best_value(best[1]) if best else None,
        best_trial_id=best[1] if best else "",
        **more,
    )


def show(display, progress, trial_counts):
    """Let a display show a picture, and wait until it is drawn."""
    display.show(progress, trial_counts)
    assert display.wait(60)


def running(count=3, metric="loss", **config):
    run = Run(metric=metric)
    for n in range(count):
        run.report(run.start({"lr": n / 8, **config}), 1, float(n), **{metric: float(n)})
    return run


@on_terminal
def test_a_bar_a_line_and_a_table_stay_in_place(live, terminal):
    run = running()
    for _ in range(3):
        show(live, progress(run.trial_counts), run.trial_counts)
    bar, line, head, *rows = terminal.screen()
    assert set(bar) <= {"━", "╸", "╺"}
    assert line.startswith("0/40 trials done · 3 running · 0 errors · best loss 0 (")
    assert head.split() == ["trial", "iter", "loss", "best", "time", "lr"]
    assert [row.split()[1] for row in rows] == [trial.trial_id for trial in run.trial_counts]


@on_terminal
def test_resources_have_a_line_of_their_own(live, terminal):
    run = running()
    show(live, progress(run.trial_counts, usage="2/4 CPUs, 0/1 GPU", workers=2), run.trial_counts)
    _, line, usage, head, *rows = terminal.screen()
    assert "worker" not in line
    assert usage == "Resources used: 2/4 CPUs, 0/1 GPU on 2 workers"
    assert head.split()[0] == "trial"
    assert len(rows) == 3


@on_terminal
def test_the_last_picture_stays_and_the_rest_stands_below(live, terminal):
    run = running()
    show(live, progress(run.trial_counts), run.trial_counts)
    live.end(progress(run.trial_counts), run.trial_counts, ["Best: it"])
    assert len(terminal.screen()) == 7
    assert terminal.screen()[-1] == "Best: it"
    assert sys.stderr is terminal


@on_terminal
def test_everything_fits_a_terminal_whatever_it_is_called(live, terminal):
    run = running(30, metric="validation/精度/" * 9, **{f"parameter_{n}": "x" * 90 for n in range(9)})
    show(live, progress(run.trial_counts), run.trial_counts)
    assert len(terminal.screen(80, 24)) == 13  # nothing was continued in a line of its own


@on_terminal
def test_a_low_terminal_shows_fewer_trials(monkeypatch, terminal):
    monkeypatch.setenv("LINES", "9")
    display = open_display("rich", terminal)
    run = running(30)
    show(display, progress(run.trial_counts), run.trial_counts)
    display.close()
    assert len(terminal.screen(80, 9)) == 8


@on_terminal
def test_names_are_no_markup_and_control_nothing(live, terminal):
    run = running(1, opt="[red]a[/red] :smile:", evil="\x1b]0;hacked\x07")
    show(live, progress(run.trial_counts), run.trial_counts)
    live.print_line("[bold]worker[/bold] :smile: says")
    assert live.wait(60)
    shown = "\n".join(terminal.screen(120))
    assert "[red]a[/red]" in shown
    assert "[bold]worker[/bold] :smile: says" in shown
    assert "hacked\x07" not in terminal.getvalue()


@on_terminal
def test_what_is_printed_or_logged_meanwhile_stands_above(live, terminal):
    handler = logging.StreamHandler(terminal)
    log = logging.getLogger("somebody")
    log.addHandler(handler)
    try:
        run = running()
        show(live, progress(run.trial_counts), run.trial_counts)
        sys.stderr.write("[b]printed[/b]\n")
        log.warning("logged")
        show(live, progress(run.trial_counts), run.trial_counts)
        screen = terminal.screen()
        assert screen[:2] == ["[b]printed[/b]", "logged"]
        assert len(screen) == 8
        live.close()
        assert handler.stream is terminal
    finally:
        log.removeHandler(handler)


@on_terminal
def test_a_log_handler_that_waits_for_the_terminal_does_not_hold_up_the_first_picture(
    live, terminal, monkeypatch
):
    handler = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    held, gate = threading.Event(), threading.Event()

    def write():
        with handler.lock:
            held.set()
            gate.wait(60)

    writing = threading.Thread(target=write)
    writing.start()
    assert held.wait(60)
    run = running()
    showing = threading.Thread(target=live.show, args=(progress(run.trial_counts), run.trial_counts))
    showing.start()
    showing.join(30)
    was_held_up = showing.is_alive()
    gate.set()
    writing.join()
    showing.join()
    assert not was_held_up
    assert handler.stream is terminal


@on_terminal
def test_dasktune_s_own_warnings_stand_above_too(live, terminal):
    handler = logging.StreamHandler(terminal)
    log = logging.getLogger("dasktune")
    log.addHandler(handler)
    try:
        run = running()
        with relayed_logs(60):
            show(live, progress(run.trial_counts), run.trial_counts)
            log.warning("logged")
        show(live, progress(run.trial_counts), run.trial_counts)
        assert terminal.screen()[0] == "logged"
        assert len(terminal.screen()) == 7
        live.close()
        assert handler.stream is terminal
    finally:
        log.removeHandler(handler)


@on_terminal
def test_output_to_a_pipe_is_left_alone(live, terminal, monkeypatch):
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    run = running()
    show(live, progress(run.trial_counts), run.trial_counts)
    print("a result")
    assert output.getvalue() == "a result\n"


@on_terminal
def test_the_cursor_is_never_hidden_for_long(live, terminal):
    run = running()
    show(live, progress(run.trial_counts), run.trial_counts)
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


@on_terminal
def test_only_one_draws_at_a_time(live, terminal):
    second = open_display("rich", terminal)
    assert type(second) is PlainLines
    live.close()
    live.close()
    third = open_display("rich", terminal)
    assert type(third) is type(live)
    third.close()


@on_terminal
def test_ctrl_c_while_the_last_picture_is_waited_for_ends_the_display(live, terminal, monkeypatch):
    wait_for = threading.Condition.wait_for

    def interrupted(condition, predicate, timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait_for(condition, predicate, timeout)

    run = running()
    show(live, progress(run.trial_counts), run.trial_counts)
    assert sys.stderr is not terminal
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.close()
    assert sys.stderr is terminal
    after = open_display("rich", terminal)
    assert type(after) is type(live)
    after.close()


@on_terminal
def test_a_terminal_on_which_other_code_draws_gets_lines(terminal):
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=terminal, force_terminal=True), auto_refresh=False):
        assert type(open_display("rich", sys.stderr)) is PlainLines


@on_terminal
def test_nothing_is_drawn_before_there_is_something_to_draw(live, terminal):
    live.close()
    live.show(None, None)
    assert terminal.getvalue() == ""


@on_terminal
def test_a_thread_draws_and_not_the_caller(live, terminal, monkeypatch):
    threads = set()
    render = rich.console.Console.render

    def rendered(console, *arguments):
        threads.add(threading.current_thread().name)
        return render(console, *arguments)

    monkeypatch.setattr(rich.console.Console, "render", rendered)
    run = running()
    show(live, progress(run.trial_counts), run.trial_counts)
    live.print_line("a result")
    assert live.wait(60)
    assert threads == {"dasktune-drawing"}
    assert terminal.screen()[0] == "a result"


@on_terminal
def test_what_a_slow_drawing_does_not_keep_up_with_is_drawn_together_or_dropped(live, terminal, monkeypatch):
    gate, begun, pictures = threading.Event(), threading.Event(), []
    draw = rich.console.Console.print

    def drawn(console, *arguments, **options):
        begun.set()
        assert gate.wait(60)
        return draw(console, *arguments, **options)

    monkeypatch.setattr(rich.console.Console, "print", drawn)
    refresh = rich.live.Live.update
    monkeypatch.setattr(
        rich.live.Live,
        "update",
        lambda *arguments, **options: pictures.append(refresh(*arguments, **options)),
    )
    live.print_line("first")
    assert begun.wait(60)
    run = running()
    for number in range(10_003):
        live.print_line(f"line {number}")
        if number < 3:
            live.show(progress(run.trial_counts), run.trial_counts)
    gate.set()
    assert live.wait(60)
    shown = terminal.getvalue()
    assert "line 0" in shown
    assert "line 9999" in shown
    assert "line 10000" not in shown
    assert "[dasktune] 3 lines were not shown: there were too many at once" in shown
    assert len(pictures) == 1


@on_terminal
def test_a_drawing_that_fails_raises_at_the_next_line(live, terminal, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no drawing")

    monkeypatch.setattr(rich.console.Console, "print", fail)
    live.print_line("a")
    assert live.wait(60)
    with pytest.raises(RuntimeError, match="no drawing"):
        live.print_line("b")
