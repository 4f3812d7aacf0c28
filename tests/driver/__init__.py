"""Temporal in one process, for tests of faults: real workflow classes, driven activation by activation.

`run.py` is one run of a workflow inside the SDK's own instance, `server.py` and `commands.py` what the server keeps and
decides, `worker.py` the process that attempts activities, `driver.py` who drives them.
`tests/workflows/test_driver.py` compares it with the real server.
"""
