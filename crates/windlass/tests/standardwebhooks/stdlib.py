"""Verifies a signed webhook with nothing but Python's standard library: stdlib.py FILE SECRET

An implementation of Standard Webhooks beside ours: HMAC-SHA256 over "id.timestamp.body" with the decoded secret,
compared with each signature of version 1 that the header lists; the time within five minutes.
"""
import base64, hashlib, hmac, json, sys, time

signed = json.load(open(sys.argv[1], encoding="utf-8"))
headers, body = signed["headers"], base64.b64decode(signed["body"])
key = base64.b64decode(sys.argv[2].removeprefix("whsec_"), validate=True)
at = headers["webhook-timestamp"]
if abs(time.time() - int(at)) > 300:
    sys.exit("the time is too far away")
text = b".".join([headers["webhook-id"].encode(), at.encode(), body])
expect = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest())
given = [one.split(",", 1) for one in headers["webhook-signature"].split(" ")]
if not any(version == "v1" and hmac.compare_digest(expect, text.encode()) for version, text in given):
    sys.exit("no signature fits")
print("verified")
