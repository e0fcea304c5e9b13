"""The CUDA backend: one persistent kernel walks the task table (device code in ``cuda/``)."""
