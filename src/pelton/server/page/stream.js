// Requests to the server, and the events of a streamed answer.

/** What went wrong, in words for the reader. `status` is the HTTP status, 0 where there was none. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** GET, or POST if there is a body. Throws ServerError, or what `signal` throws when it aborts. */
export async function request(path, { key, body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    const method = body ? "POST" : "GET";
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (!response.ok) throw new ServerError(await refusal(response), response.status);
  return response;
}

async function refusal(response) {
  let message;
  try {
    message = (await response.json()).error?.message;
  } catch {
    // Not JSON: a proxy in between may have answered.
  }
  message ??= `The server answered with status ${response.status} ${response.statusText}`.trimEnd() + ".";
  const seconds = response.headers.get("Retry-After");
  return seconds ? `${message} (Try again in ${seconds} s.)` : message;
}

/** The chunks of a streamed answer, as objects. Throws ServerError for an error event and for an end without [DONE]. */
export async function* chunks(response, signal) {
  for await (const line of lines(response.body, signal)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The server failed.", Number(chunk.error.code) || 0);
    yield chunk;
  }
  throw new ServerError("The connection ended before the answer did.");
}

async function* lines(body, signal) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ServerError("The connection to the server was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
