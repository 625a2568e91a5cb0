"use strict";

// Renders ../openapi.json and sends requests to the API. Text from the document is only ever set as
// text, never as HTML.

const METHODS = ["get", "post", "put", "patch", "delete"];
let api = {};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// Paragraphs, with `code` in backticks.
function prose(text) {
  return (text ?? "").split(/\n\s*\n/).filter(Boolean).map((paragraph) => {
    const parts = paragraph.split("`");
    return element("p", {}, ...parts.map((part, at) => at % 2 ? element("code", {}, part) : part));
  });
}

function resolve(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? api.components?.schemas?.[name] ?? {} : schema ?? {};
}

function refName(schema) {
  return schema?.$ref?.split("/").pop();
}

function options(schema) {
  return schema.oneOf ?? schema.anyOf;
}

// The schema as text that reads like a type. `seen` holds the names on the way down, because types may
// contain themselves.
function outline(schema, indent = "", seen = []) {
  const name = refName(schema);
  if (name && seen.includes(name)) return name;
  const found = resolve(schema);
  const below = name ? [...seen, name] : seen;
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = options(found);
  if (choices) return choices.map((choice) => outline(choice, indent, below)).join(" | ");
  if (found.allOf) return found.allOf.map((part) => outline(part, indent, below)).join(" & ");
  const type = Array.isArray(found.type) ? found.type.join(" | ") : found.type;
  if (found.items) return `${outline(found.items, indent, below)}[]`;
  const fields = Object.entries(found.properties ?? {});
  if (!fields.length) {
    const values = found.additionalProperties;
    if (values && typeof values === "object") return `{ [name]: ${outline(values, indent, below)} }`;
    return (type ?? "any") + (found.format ? ` (${found.format})` : "");
  }
  const inner = `${indent}  `;
  const lines = fields.map(([field, value]) => {
    const mark = found.required?.includes(field) ? "" : "?";
    const about = (value.description ?? "").split("\n").filter(Boolean);
    const comments = about.map((line) => `${inner}// ${line}\n`).join("");
    return `${comments}${inner}${field}${mark}: ${outline(value, inner, below)}`;
  });
  return `{\n${lines.join("\n")}\n${indent}}`;
}

// The initial value: the example of the document, or the required fields of the schema.
function sample(schema, seen = []) {
  const name = refName(schema);
  if (name && seen.includes(name)) return null;
  const found = resolve(schema);
  const below = name ? [...seen, name] : seen;
  if (found.example !== undefined) return found.example;
  if (found.default !== undefined) return found.default;
  if (found.enum) return found.enum[0];
  if (found.const !== undefined) return found.const;
  const choice = options(found)?.find((one) => resolve(one).type !== "null");
  if (choice) return sample(choice, below);
  const type = [found.type].flat()[0];
  if (type === "array") return [];
  if (type === "string") return "";
  if (type === "integer" || type === "number") return 0;
  if (type === "boolean") return false;
  const fields = (found.required ?? []).filter((field) => found.properties?.[field]);
  return Object.fromEntries(fields.map((field) => [field, sample(found.properties[field], below)]));
}

function jsonOf(content) {
  const type = Object.keys(content ?? {})[0];
  return type ? { type, schema: content[type].schema, example: content[type].example } : undefined;
}

function parameterRow(parameter, inputs) {
  const input = element("input", { "aria-label": parameter.name, spellcheck: "false" });
  inputs.push({ parameter, input });
  const must = parameter.required ? "required" : "optional";
  return element("tr", {},
    element("td", {}, element("code", {}, parameter.name), element("div", {}, `${parameter.in}, ${must}`)),
    element("td", {}, element("code", {}, outline(parameter.schema)), ...prose(parameter.description)),
    element("td", {}, input));
}

function address(path, inputs) {
  let filled = path;
  const query = new URLSearchParams();
  for (const { parameter, input } of inputs) {
    if (parameter.in === "path") {
      filled = filled.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    } else if (parameter.in === "query" && input.value !== "") {
      query.append(parameter.name, input.value);
    }
  }
  const base = (api.servers?.[0]?.url ?? "").replace(/\/$/, "");
  const asked = query.toString();
  return base + filled + (asked ? `?${asked}` : "");
}

async function send(method, path, inputs, body, output) {
  const headers = {};
  const token = document.getElementById("token").value;
  if (token) headers.authorization = `Bearer ${token}`;
  for (const { parameter, input } of inputs) {
    if (parameter.in === "header" && input.value !== "") headers[parameter.name] = input.value;
  }
  if (body) headers["content-type"] = body.type;
  const url = address(path, inputs);
  output.textContent = `${method.toUpperCase()} ${url}\n`;
  try {
    const answer = await fetch(url, { method: method.toUpperCase(), headers, body: body?.text.value });
    output.textContent += `${answer.status} ${answer.statusText}\n\n`;
    await show(answer, output);
  } catch (error) {
    output.textContent += `The request failed: ${error.message}`;
  }
}

// Shows streams as they arrive, and other responses when they are complete.
async function show(answer, output) {
  const type = answer.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    const text = await answer.text();
    try {
      output.textContent += JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      output.textContent += text;
    }
    return;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    output.textContent += part.value;
  }
}

function requestBody(operation) {
  const content = jsonOf(operation.requestBody?.content);
  if (!content) return undefined;
  const text = element("textarea", { "aria-label": "request body", spellcheck: "false" });
  text.value = JSON.stringify(content.example ?? sample(content.schema), null, 2);
  return { type: content.type, schema: content.schema, text };
}

function responses(operation) {
  return Object.entries(operation.responses ?? {}).map(([status, response]) => {
    const content = jsonOf(response.content);
    return element("tr", {},
      element("td", {}, element("code", {}, status)),
      element("td", {}, ...prose(response.description),
        content?.schema ? element("pre", {}, outline(content.schema)) : null));
  });
}

function operationBody(method, path, operation) {
  const inputs = [];
  const rows = (operation.parameters ?? []).map((parameter) => parameterRow(parameter, inputs));
  const body = requestBody(operation);
  const output = element("pre", { hidden: "" });
  const button = element("button", {
    onclick: () => {
      output.hidden = false;
      send(method, path, inputs, body, output);
    },
  }, "Send");
  return [
    ...prose(operation.description),
    rows.length ? element("h3", {}, "Parameters") : null,
    rows.length ? element("table", {}, ...rows) : null,
    body ? element("h3", {}, "Request body") : null,
    body ? element("pre", {}, outline(body.schema)) : null,
    body?.text,
    button, output,
    element("h3", {}, "Responses"),
    element("table", {}, ...responses(operation)),
  ].filter((part) => part != null);
}

function operationDetails(method, path, operation) {
  const details = element("details", {},
    element("summary", {},
      element("span", { class: `method ${method}` }, method.toUpperCase()),
      element("span", { class: "path" }, path),
      element("span", { class: "hint" }, operation.summary ?? "")));
  details.dataset.text = `${method} ${path} ${operation.summary ?? ""}`.toLowerCase();
  // The page has many operations, so each is rendered when it is opened for the first time.
  details.addEventListener("toggle", () => details.append(...operationBody(method, path, operation)),
    { once: true });
  return details;
}

function groups() {
  const found = new Map();
  for (const [path, item] of Object.entries(api.paths ?? {})) {
    for (const method of METHODS.filter((one) => item[one])) {
      const group = item[method].tags?.[0] ?? path.split("/")[1] ?? "";
      if (!found.has(group)) found.set(group, []);
      found.get(group).push(operationDetails(method, path, item[method]));
    }
  }
  return found;
}

function draw() {
  document.getElementById("version").textContent = api.info?.version ?? "";
  document.getElementById("about").textContent = api.info?.description ?? "";
  const sections = [...groups()].map(([name, operations]) =>
    element("section", {}, element("h2", {}, name), ...operations));
  document.getElementById("operations").replaceChildren(...sections);
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const section of sections) {
      const operations = [...section.querySelectorAll("details")];
      for (const one of operations) one.hidden = !one.dataset.text.includes(wanted);
      section.hidden = operations.every((one) => one.hidden);
    }
  });
}

fetch("../openapi.json")
  .then((answer) => {
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    return answer.json();
  })
  .then((document) => {
    api = document;
    draw();
  })
  .catch((error) => {
    const message = `openapi.json cannot be loaded: ${error.message}`;
    document.getElementById("operations").replaceChildren(element("p", {}, message));
  });
