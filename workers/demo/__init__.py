"""`sexton demo`: trims and other jobs on a temporary stack, with killed workers, and a check of each promise."""

from workers.demo.demo_steps import run_demo
from workers.demo.promise_report import DemoReport

__all__ = ["DemoReport", "run_demo"]
