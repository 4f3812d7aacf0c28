"""Temporal in one process: real workflow classes, driven activation by activation.

`run.py` is one run of a workflow inside the SDK's own instance, `server.py` and `commands.py` what the server keeps and
decides, `worker.py` the process that attempts activities;
`driver.py` drives them step by step, for tests of faults;
`served.py` and `client.py` are for tests of workflows: workers on threads, and what programs ask meanwhile.
`tests/workflows/test_driver.py` compares it with the real server.
"""
