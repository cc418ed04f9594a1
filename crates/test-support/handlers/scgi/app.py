"""A WSGI application for an SCGI server: what php/ does, as far as SCGI differs.

/environment   one variable a line, an empty line, the body
/echo          the body, with its length
/parts         a response of unknown length, in parts
/redirect      a redirect
/none          204
/broken        an exception before any output
"""


def application(environ, start_response):
    path = environ.get("PATH_INFO") or environ.get("REQUEST_URI", "").partition("?")[0]
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    text = [("Content-Type", "text/plain")]
    if path == "/environment":
        start_response("200 OK", text)
        names = sorted(name for name, value in environ.items() if isinstance(value, str))
        return [f"{name}={environ[name]}\n".encode("latin-1") for name in names] + [b"\n", body]
    if path == "/echo":
        start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
        return [body]
    if path == "/parts":
        start_response("200 OK", text)
        return (f"part {part}\n".encode() for part in range(5))
    if path == "/redirect":
        start_response("302 Found", [("Location", "/elsewhere")])
        return []
    if path == "/none":
        start_response("204 No Content", [])
        return []
    if path == "/broken":
        raise RuntimeError("broken on purpose")
    start_response("404 Not Found", text)
    return [b"unknown\n"]
