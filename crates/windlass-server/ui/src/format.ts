// Times, durations and counts as text.

export type Zone = "local" | "utc";

export function formatTime(at: string, zone: Zone): string {
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return at;
  if (zone === "utc") return `${time.toISOString().slice(0, 19).replace("T", " ")}Z`;
  const two = (n: number) => String(n).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export function formatDuration(ms: number): string {
  if (!Number.isFinite(ms)) return "";
  if (ms < 0) return `-${formatDuration(-ms)}`;
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(s % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

export function formatAgo(at: string, now: number): string {
  const ms = now - new Date(at).getTime();
  if (Math.abs(ms) < 1500) return "now";
  return ms > 0 ? `${formatDuration(ms)} ago` : `in ${formatDuration(-ms)}`;
}

export function formatCount(count: { count: number; more: boolean } | undefined): string {
  if (!count) return "–";
  return `${count.count.toLocaleString("en")}${count.more ? "+" : ""}`;
}

/** One word for a shell. */
export function shellQuote(text: string): string {
  return /^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A sentence of the server with its times as the reader wants them. */
export function withTimes(text: string, zone: Zone): string {
  return text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (at) => formatTime(at, zone));
}
