"""The training process: loop, evaluation, checkpoints, signals."""
