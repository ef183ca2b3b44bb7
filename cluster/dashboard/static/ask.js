// The box that sends a prompt over the OpenAI-compatible API and shows the answer as it comes.

import { call, events } from "./server.js";

// A model with a chat template is asked as a person would ask it, others to go on with a text.
const FORMS = {
  chat: {
    path: "/v1/chat/completions",
    hint: "Asked as a chat.",
    body: (prompt) => ({ messages: [{ role: "user", content: prompt }] }),
    text: ({ delta }) => (delta?.reasoning_content ?? "") + (delta?.content ?? ""),
  },
  text: {
    path: "/v1/completions",
    hint: "This model has no chat template: it goes on with the text.",
    body: (prompt) => ({ prompt }),
    text: (choice) => choice.text ?? "",
  },
};

export class Ask {
  constructor(form, answer, stop, hint) {
    Object.assign(this, { form, answer, stop, hint });
    this.model = "";
    this.asked = FORMS.text;
    this.running = null;
    stop.addEventListener("click", () => this.running?.abort());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
  }

  show(group) {
    this.model = group.model;
    this.asked = group.chats ? FORMS.chat : FORMS.text;
    if (this.hint.textContent !== this.asked.hint) this.hint.textContent = this.asked.hint;
  }

  async ask() {
    this.running?.abort();
    const mine = (this.running = new AbortController());
    this.stop.disabled = false;
    this.answer.classList.remove("failed");
    this.answer.textContent = "";
    try {
      await this.stream(mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        this.answer.classList.add("failed");
        this.answer.textContent = error.message;
      }
    }
    if (this.running === mine) {
      this.running = null;
      this.stop.disabled = true;
    }
  }

  async stream(signal) {
    const { path, body, text } = this.asked;
    const { prompt, tokens } = this.form;
    const asked = { model: this.model, ...body(prompt.value), max_tokens: Number(tokens.value), stream: true };
    const headers = { "content-type": "application/json" };
    const response = await call(path, { method: "POST", headers, body: JSON.stringify(asked), signal });
    for await (const data of events(response)) {
      if (data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices ?? []) this.answer.append(text(choice));
    }
  }
}
