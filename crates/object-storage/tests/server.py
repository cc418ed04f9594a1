"""A server that speaks S3, with one bucket: moto, behind a check of signatures and checksums, which botocore computes.

It prints its URL and its keys. For each line of its input it prints what the bucket has, from moto itself.
"""
import hashlib
import io
import json
import sys
import threading

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

ACCESS_KEY, SECRET_KEY, REGION = "headway", "between us", "us-east-1"
storage = s3_backends["123456789012"]["aws"]
storage.create_bucket("runs", REGION)
application = DomainDispatcherApplication(create_backend_app)


def header(environ, name):
    return environ.get("HTTP_" + name.upper().replace("-", "_"), environ.get(name.upper().replace("-", "_"), ""))


def signature(environ, names):
    """What it has to be for the request as it came, before anything in it is decoded."""
    headers = {name: header(environ, name) for name in names}
    url = f"http://{environ['HTTP_HOST']}{environ['RAW_URI']}"
    request = AWSRequest(method=environ["REQUEST_METHOD"], url=url, headers=headers)
    request.context["timestamp"] = header(environ, "x-amz-date")
    signer = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION)
    return signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)


def checked(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    authorization = dict(part.strip().split("=", 1) for part in header(environ, "authorization").split(" ", 1)[1].split(","))
    names = authorization["SignedHeaders"].split(";")
    wrong = None
    if authorization["Signature"] != signature(environ, names) or "host" not in names:
        wrong = "403 Forbidden", "SignatureDoesNotMatch"
    elif header(environ, "x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
        wrong = "400 Bad Request", "XAmzContentSHA256Mismatch"
    if wrong:
        start_response(wrong[0], [("Content-Type", "application/xml")])
        return [f"<Error><Code>{wrong[1]}</Code><Message>it is another one</Message></Error>".encode()]
    return application(environ, start_response)


class Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        pass


server = make_server("127.0.0.1", 0, checked, threaded=True, request_handler=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
print(json.dumps({"url": url, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY}), flush=True)

for _ in sys.stdin:
    bucket = storage.buckets["runs"]
    objects = {name: hashlib.sha256(found.value).hexdigest() for name, found in bucket.keys.items()}
    print(json.dumps({"objects": objects, "uploads": len(bucket.multiparts)}), flush=True)
