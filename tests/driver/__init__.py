"""Temporal in one process, for tests of faults: real workflow classes, driven activation by activation.

`run.py` is one run of a workflow inside the SDK's own instance, `server.py` what the server keeps and decides,
`worker.py` the process that attempts activities. `test_likeness.py` compares it with the real server.
"""
