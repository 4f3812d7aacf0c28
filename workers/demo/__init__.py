"""`sexton demo`: the main job on a throw-away stack, with a worker killed half way, and what each promise did."""

from workers.demo.report import DemoReport
from workers.demo.run import run_demo

__all__ = ["DemoReport", "run_demo"]
