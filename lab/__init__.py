"""How the zoo was made, and what was measured once; it imports sinkscope, and nothing in sinkscope imports it."""
