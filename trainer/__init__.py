"""The training engine: configuration, model, precision, memory format, loop, logs, checkpoints."""
