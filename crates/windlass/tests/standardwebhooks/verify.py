"""Verifies a signed webhook with the package of PyPI: verify.py FILE SECRET..."""
import json, sys
from importlib.metadata import version
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

signed = json.load(open(sys.argv[1], encoding="utf-8"))
headers, body = signed["headers"], signed["body"]
for secret in sys.argv[2:]:
    Webhook(secret).verify(body, headers)
    for changed in (body + " ", body.replace("1", "2", 1)):
        try:
            Webhook(secret).verify(changed, headers)
        except WebhookVerificationError:
            continue
        sys.exit("a changed body passes")
print(f"python standardwebhooks {version('standardwebhooks')}: {len(sys.argv) - 2} secrets verify")
