"""Checkpoints: written, kept, removed, and gone on from under the same settings or others."""
