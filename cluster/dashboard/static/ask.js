// The box that sends a prompt over the OpenAI-compatible API and shows the answer as it comes.

export function listenToForm(form, answer, stop) {
  let running = null;
  stop.addEventListener("click", () => running?.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    stop.disabled = false;
    answer.classList.remove("failed");
    answer.textContent = "";
    try {
      await stream(form.prompt.value, Number(form.tokens.value), answer, mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        answer.classList.add("failed");
        answer.textContent = error.message;
      }
    }
    if (running === mine) {
      running = null;
      stop.disabled = true;
    }
  });
}

async function stream(prompt, maxTokens, answer, signal) {
  const model = document.getElementById("group").selectedOptions[0]?.text.split(" · ")[0] ?? "";
  const response = await fetch("/v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, prompt, max_tokens: maxTokens, stream: true }),
    signal,
  });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new Error(told?.error?.message ?? `the server answered with ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      answer.append(event.choices?.[0]?.text ?? "");
    }
  }
}
