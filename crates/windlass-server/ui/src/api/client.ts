// The HTTP API of the server that delivered this page. Types come from its OpenAPI document.
import createClient from "openapi-fetch";
import { compactJson, parseJson } from "../json";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

const meta = document.querySelector('meta[name="windlass-api"]')?.getAttribute("content") ?? "../api";
// Relative to the page's <base>, so that it works under any path.
export const apiBase = new URL(meta, document.baseURI).href.replace(/\/$/, "");
export const basePath = new URL(document.baseURI).pathname.replace(/\/$/, "");

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details?: unknown,
  ) {
    super(message);
  }
}

// openapi-fetch reads JSON with JSON.parse, which would change large numbers.
async function losslessFetch(request: Request): Promise<Response> {
  const response = await fetch(request);
  const text = await response.text();
  const lossless = new Response(response.status === 204 ? null : text, response);
  lossless.headers.set("content-length", String(text.length || 0));
  lossless.json = async () => (text === "" ? undefined : parseJson(text));
  return lossless;
}

export const api = createClient<paths>({
  baseUrl: apiBase,
  fetch: losslessFetch,
  // JSON.stringify would write a number with many digits as an object.
  bodySerializer: compactJson,
  credentials: "same-origin",
  querySerializer: { array: { style: "form", explode: true } },
});

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** The data of an answer, or an error with the code and the message of the server. */
export async function ok<T>(answer: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  const failure = error as { code?: string; message?: string } | undefined;
  if (response.status === 401) window.dispatchEvent(new Event("windlass:signed-out"));
  throw new ApiError(
    response.status,
    failure?.code ?? `HTTP_${response.status}`,
    failure?.message ?? "the server gave no reason",
  );
}
