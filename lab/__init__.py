"""How the zoo was made, and what was measured once. It imports sinkscope, and nothing in sinkscope imports it."""
