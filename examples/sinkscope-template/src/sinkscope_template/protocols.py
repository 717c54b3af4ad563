from pathlib import Path

from sinkscope.extend import register_protocol

register_protocol(Path(__file__).with_name("two-way-authors.yaml"))
