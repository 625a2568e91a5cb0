// Routes that a program brings (documents, definitions) have no types in the OpenAPI document.
import { useQuery } from "@tanstack/react-query";
import { compactJson, parseJson } from "../json";
import { ApiError, apiBase } from "./client";

/** The path below the API, with each part escaped. */
export function at(...parts: string[]): string {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

type Options = { method?: string; body?: unknown; headers?: Record<string, string>; signal?: AbortSignal };

export async function call<T>(path: string, options: Options = {}): Promise<T> {
  const { method = "GET", body, headers = {}, signal } = options;
  const response = await fetch(`${apiBase}${path}`, {
    method,
    credentials: "same-origin",
    signal,
    headers: body === undefined ? headers : { "content-type": "application/json", ...headers },
    // Numbers keep their digits. A text is sent as it was typed.
    body: body === undefined ? undefined : typeof body === "string" ? body : compactJson(body),
  });
  const text = await response.text();
  const value = text === "" ? undefined : read(text);
  if (response.ok) return value as T;
  if (response.status === 401) window.dispatchEvent(new Event("windlass:signed-out"));
  const failure = value as { code?: string; message?: string; details?: unknown } | undefined;
  const message = failure?.message ?? "the server gave no reason";
  throw new ApiError(response.status, failure?.code ?? `HTTP_${response.status}`, message, failure?.details);
}

function read(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

let paths: Promise<Record<string, unknown>> | undefined;

/** Whether this server has a route, from its OpenAPI document. An unknown route would be an error of the console. */
export function useRoute(path: string) {
  return useQuery({
    queryKey: ["route", path],
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: () => hasRoute(path),
  });
}

async function hasRoute(path: string): Promise<boolean> {
  paths ??= call<{ paths: Record<string, unknown> }>("/openapi.json").then((document) => document.paths);
  return path in (await paths);
}
