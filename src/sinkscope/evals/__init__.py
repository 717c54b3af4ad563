"""Benchmarks: lm-evaluation-harness with any model under any intervention, GSM8K, HumanEval, our suite, Table 1."""
