"""One attention call: its output, and what every key received; caught in any model, watched or changed."""
