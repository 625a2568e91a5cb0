// Opens every view of the dashboard in Chromium, on the example `showcase` with data of all models, at two widths
// and in both themes. A console error, a refused resource, a script that a user value starts, text that
// overflows the page or a finding of axe fails. With a folder as argument, it also writes screenshots there.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { startShowcase } from "./showcase.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = process.argv[2];
const problems = [];
const { origin, stop } = await startShowcase();

// Each view, and a text that it shows when its data is there.
const views = [
  ["overview", "", "Workflows"],
  ["runs", "runs", "hello-1"],
  ["runs-filtered", 'runs?status=["waiting"]', "order-1"],
  ["run", "runs/order/order-1", "approval"],
  ["run-step", "runs/hello/hello-1?step=compose", "Hello, Ada!"],
  ["run-people", "runs/expense/expense-1", "Open in the inbox"],
  ["graph", "runs/family/family-1?tab=graph", "greet"],
  ["graph-folded", "runs/fan-out/fan-1?tab=graph", "square-#"],
  ["graph-document", "runs/doc:invoice/i-2?tab=graph", "State submitted"],
  ["agent", "runs/ask/ask-1?tab=agent", "You said:"],
  ["ledger", "runs/hello/hello-1?tab=ledger", "workflow.completed"],
  ["corpus", "runs?workflow=broken", "broken-10"],
  ["data", "runs/hello/hello-xss?tab=data", "<img src=x"],
  ["logs", "runs/hello/hello-1?tab=logs", "greeting Ada"],
  ["inbox", "inbox", "train tickets"],
  ["batches", "batches", "ask/ask-1"],
  ["documents", "documents?type=invoice&id=i-2", "Audit"],
  ["definition", "definitions?type=invoice", "Budget owner"],
  ["definition-changes", "definitions?type=invoice&part=changes", "by the definition"],
  ["slot-editor", "definitions?type=invoice&part=editor", "The draft compiles"],
  ["definition-versions", "definitions?type=invoice&part=versions", "Version 1"],
  ["simulate", "definitions?type=invoice&part=simulate", "Scenario"],
  ["expressions", "definitions?type=invoice&part=expressions", "Try an expression"],
  ["health", "health", "invoice"],
  ["workers", "workers", "Drain"],
  ["dead-letters", "dead-letters", "the scale is broken"],
  ["schedules", "schedules", "nightly"],
  ["webhooks", "webhooks", "endpoint"],
  ["records", "records?collection=carts&id=cart-1", "12345678901234567890.1"],
  ["settings", "settings", "API keys"],
  ["not-found", "nothing/here", "There is no such page"],
];

async function check(browser, width, theme) {
  const context = await browser.newContext({
    viewport: { width, height: width > 800 ? 800 : 844 },
    colorScheme: theme,
    reducedMotion: "reduce",
    bypassCSP: false,
  });
  for (const [name, path, text] of views) {
    const at = `${name} at ${width} px, ${theme}`;
    const page = await context.newPage();
    const note = (what) => problems.push(`${at}: ${what}`);
    page.on("console", (message) => message.type() === "error" && note(`console: ${message.text()}`));
    page.on("pageerror", (error) => note(`error: ${error.message}`));
    await page.goto(`${origin}/ui/${path}`);
    await page
      .waitForFunction((wanted) => document.body.textContent.includes(wanted), text, { timeout: 20_000 })
      .catch(() => note(`does not show ${JSON.stringify(text)}`));
    if (name === "inbox") {
      await page.locator(".inbox a").first().click();
      await page.getByText("What it is about").waitFor();
    }
    if (await page.evaluate(() => window.__xss === 1)) note("a user value ran as a script");
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) note(`is ${over} px too wide`);
    // The policy of the page refuses scripts of others; the debugger may run them.
    await page.evaluate(axe);
    const found = await page.evaluate(async () => (await window.axe.run()).violations);
    for (const one of found) {
      note(
        `axe ${one.id}: ${one.help}: ${one.nodes
          .slice(0, 3)
          .map((node) => node.html.slice(0, 160))
          .join(" | ")}`,
      );
    }
    if (shots) await page.screenshot({ path: `${shots}/${name}-${width}-${theme}.png` });
    await page.close();
  }
  await context.close();
}

// The palette and the views by keyboard alone.
async function keyboard(browser) {
  const page = await browser.newPage();
  await page.goto(`${origin}/ui/`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.getByRole("heading", { name: "Schedules" }).waitFor();
  await page.keyboard.press("Control+k");
  await page.keyboard.type("hello-1");
  await page.getByRole("option", { name: /hello\/hello-1/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "hello/hello-1" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "detached" });
  await page.close();
}

let browser;
try {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox"],
  });
  await keyboard(browser);
  for (const width of [1280, 390]) for (const theme of ["light", "dark"]) await check(browser, width, theme);
} catch (error) {
  problems.push(String(error.stack ?? error));
} finally {
  await browser?.close();
  stop();
}
for (const problem of problems) console.error(problem);
console.log(problems.length === 0 ? "every view is in order" : `${problems.length} problems`);
process.exit(problems.length === 0 ? 0 : 1);
