// How the page speaks with its server: with the API key that it was given, and events as they come.

const KEY = "blockyard-api-key";
const AGAIN_MS = 2000;

export class KeyWanted extends Error {}

// Kept as long as this tab is open, and nowhere else.
export function useKey(text) {
  sessionStorage.setItem(KEY, text);
}

// A response that has begun well; whatever else the server says is thrown.
export async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? `the server answered with ${response.status}`;
  throw response.status === 401 ? new KeyWanted(message) : new Error(message);
}

// The data of server-sent events, each as text.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

// News of one group at a time, connected anew whenever they end.
export class News {
  constructor({ opened, came, lost, keyWanted }) {
    Object.assign(this, { opened, came, lost, keyWanted });
    this.running = null;
  }

  connect(group) {
    this.running?.abort();
    this.running = new AbortController();
    this.follow(group, this.running.signal);
  }

  async follow(group, signal) {
    while (!signal.aborted) {
      try {
        const response = await call(`news?group=${encodeURIComponent(group)}`, { signal });
        this.opened();
        for await (const text of events(response)) if (!signal.aborted) this.came(text);
      } catch (error) {
        if (error instanceof KeyWanted && !signal.aborted) return this.keyWanted(error.message);
      }
      if (signal.aborted) return;
      this.lost();
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}
