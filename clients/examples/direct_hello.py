#!/usr/bin/env python3
"""Says what it was asked. In the configuration:

[[location]]
prefix = "/hello/"
direct = ["clients/examples/direct_hello.py"]   # or pipe = […]: the response goes through the server
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import headway_direct


def answer(request):
    body = request.read()
    method, uri = request.variables["REQUEST_METHOD"], request.variables["REQUEST_URI"]
    text = f"{method} {uri} with {len(body)} bytes\n".encode()
    request.response(200, [("Content-Type", "text/plain")], text)


headway_direct.serve(answer)
