import time

import pytest

from unmask import sandbox

GOOD = ("def f(x):\n    return x + 1", ["assert f(1) == 2", "assert f(-1) == 0"])


def test_code_that_meets_every_test_passes():
    assert sandbox.run_tests(*GOOD) == sandbox.SandboxResult(passed=True, reason="passed")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(x):\n    return x", "failed: AssertionError"),
        ("def f(x:", "failed: SyntaxError"),
        ("import sys\nsys.exit(0)", "failed: SystemExit"),
        ("import os\nos._exit(0)", "crashed"),
        ("def f(x):\n    return f(x)", "failed: RecursionError"),
        ("x = [0] * 10**10", "failed: MemoryError"),
        ("print('passed')\nraise KeyError", "failed: KeyError"),
        ("import numpy", "failed: ModuleNotFoundError"),
        ("open('big', 'w').write('x' * 10**8)", "failed: OSError"),
    ],
)
def test_what_goes_wrong_is_said(code, reason):
    result = sandbox.run_tests(code, GOOD[1])
    assert not result.passed
    assert result.reason.startswith(reason)


def test_an_endless_loop_is_stopped_in_time():
    started = time.monotonic()
    assert sandbox.run_tests("while True:\n    pass", [], timeout_s=0.5).reason == "timeout"
    assert time.monotonic() - started < 5


def test_leaving_early_is_never_a_pass():
    assert not sandbox.run_tests(GOOD[0] + "\nimport os\nos._exit(0)", GOOD[1]).passed


def test_a_job_that_kills_the_interpreter_spoils_no_other_job():
    killer = ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass", [])
    results = sandbox.run_many([GOOD, killer, GOOD])
    assert [result.passed for result in results] == [True, False, True]


def test_jobs_do_not_see_each_other():
    results = sandbox.run_many([("import builtins\nbuiltins.left = 1", []), ("left", [])])
    assert [result.passed for result in results] == [True, False]


def test_no_jobs_give_no_results():
    assert sandbox.run_many([]) == []


def test_a_flood_of_output_is_harmless():
    assert sandbox.run_tests("for _ in range(10**5):\n    print('x' * 100)", ["assert True"], timeout_s=10.0).passed
