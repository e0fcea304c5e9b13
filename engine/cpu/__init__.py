"""The CPU backend: workers play SMs and walk the same task table as the kernel."""

from engine.cpu.compiled import drop_outdated

drop_outdated()
