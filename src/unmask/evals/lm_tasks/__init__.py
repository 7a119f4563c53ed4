"""The benchmarks as lm-eval tasks: YAML files, and the functions that they name."""
