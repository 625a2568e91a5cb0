// JSON whose numbers keep their digits: a number that JavaScript would change stays as its text.
import { LosslessNumber, parse as parseLossless, stringify as stringifyLossless } from "lossless-json";

export function parseJson(text: string): unknown {
  return parseLossless(text, null, {
    parseNumber: (digits) =>
      String(Number(digits)) === digits ? Number(digits) : new LosslessNumber(digits),
  });
}

export function formatJson(value: unknown): string {
  return stringifyLossless(value, null, 2) ?? "";
}

export function compactJson(value: unknown): string {
  return stringifyLossless(value) ?? "";
}

export function isNumber(value: unknown): value is number | LosslessNumber {
  return typeof value === "number" || value instanceof LosslessNumber;
}
