"""Runs a program that can have so many threads or descriptors: limited.py threads|files N PROGRAM ARGS..."""

import os, resource, sys
what, limit = sys.argv[1], int(sys.argv[2])
if what == "threads":
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.argv[3], sys.argv[3:])
