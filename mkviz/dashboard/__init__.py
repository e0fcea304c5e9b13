"""The dashboard: Panel pages over the protocols Source and Generator."""
