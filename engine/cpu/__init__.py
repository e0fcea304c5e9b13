"""The CPU backend: workers play SMs and walk the same task table as the kernel."""
