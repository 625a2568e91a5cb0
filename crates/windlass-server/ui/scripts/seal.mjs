// Records the hash of the sources beside the output, so that `cargo xtask tidy` finds stale output without
// Node. The hash covers each path and its bytes, in the order of the paths; xtask computes the same. A second file
// has the hashes of the output, as `sha256sum` writes them, so that output which was changed by hand is found too.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants } from "node:zlib";

const root = fileURLToPath(new URL("..", import.meta.url));
const files = [
  "index.html",
  "package.json",
  "package-lock.json",
  "tsconfig.json",
  "vite.config.ts",
  ...below("public"),
  ...below("src"),
].sort();
const hash = createHash("sha256");
for (const file of files) {
  const bytes = readFileSync(join(root, file));
  hash.update(`${file}\n${bytes.length}\n`);
  hash.update(bytes);
}
writeFileSync(join(root, "dist/sources.sha256"), `${hash.digest("hex")}\n`);

// The server sends these to browsers that read brotli.
for (const file of ["index.js", "index.css", "graph.worker.js"]) {
  const path = join(root, "dist/assets", file);
  const bytes = readFileSync(path);
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  };
  writeFileSync(`${path}.br`, brotliCompressSync(bytes, { params }));
}

const output = below("dist").filter((file) => !file.endsWith(".sha256"));
const lines = output.sort().map((file) => {
  const bytes = readFileSync(join(root, file));
  return `${createHash("sha256").update(bytes).digest("hex")}  ${file.slice("dist/".length)}\n`;
});
writeFileSync(join(root, "dist/output.sha256"), lines.join(""));

function below(folder) {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    return entry.isDirectory() ? below(path) : [path];
  });
}
