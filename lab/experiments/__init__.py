"""Experiments that were run once: each is one command, and its results stand in lab/results."""
