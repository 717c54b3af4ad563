"""Where engines find `perform`: what a unit of work does depends on nothing but study and unit."""

from sinkscope.study.units import perform

__all__ = ["perform"]
