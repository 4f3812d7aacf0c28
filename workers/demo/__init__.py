"""`sexton demo`: the main job on a temporary stack, with a worker killed half way, and a check of each promise."""

from workers.demo.report import DemoReport
from workers.demo.run import run_demo

__all__ = ["DemoReport", "run_demo"]
