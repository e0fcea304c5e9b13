"""What all tests share: lines that a passed test has to say are printed at the end (``record_property("told", line)``)."""


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", [])
    told = [line for report in passed for name, line in report.user_properties if name == "told"]
    if told:
        terminalreporter.section("told by passed tests")
        for line in told:
            terminalreporter.write_line(line)
