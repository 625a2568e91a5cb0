// Verifies a signed webhook with the package of npm: verify.cjs FILE SECRET...
const fs = require("fs");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");
const [file, ...secrets] = process.argv.slice(2);
const { headers, body } = JSON.parse(fs.readFileSync(file, "utf8"));
for (const secret of secrets) {
  new Webhook(secret).verify(body, headers);
  for (const changed of [body + " ", body.replace("1", "2")]) {
    let passes = true;
    try {
      new Webhook(secret).verify(changed, headers);
    } catch (error) {
      if (!(error instanceof WebhookVerificationError)) throw error;
      passes = false;
    }
    if (passes) throw new Error("a changed body passes");
  }
}
const folder = require("path").join(process.env.NODE_PATH, "standardwebhooks", "package.json");
const { version } = JSON.parse(fs.readFileSync(folder, "utf8"));
console.log(`npm standardwebhooks ${version}: ${secrets.length} secrets verify`);
