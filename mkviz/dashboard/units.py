"""Units: times and sizes in words."""


def duration(ns: float) -> str:
    """``840 ns``, ``12.3 µs``, ``1.92 ms``, ``3.10 s``: three digits."""
    value, unit = next(
        ((ns / size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if abs(ns) >= size), (ns, "ns")
    )
    digits = 0 if unit == "ns" or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def signed(ns: float) -> str:
    """``+12.3 µs``, ``−840 ns``: a change."""
    return f"{'−' if ns < 0 else '+'}{duration(abs(ns))}"


def size(count: int) -> str:
    """``16.0 KiB``: bytes in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def decimal(count: int, digits: int = 1) -> str:
    """``16.4 MB``: bytes in decimal units, as those of rates are."""
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= one:
            return f"{count / one:,.{digits}f} {unit}"
    return f"{count} B"


def percent(share: float) -> str:
    return f"{100 * share:z.1f} %"
