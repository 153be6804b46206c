// The page's wiring: settings, requests, and what follows from their answers.

import { ConversationView } from "./conversation.js";
import { startFigures } from "./figures.js";
import { ServerError, chunks, request } from "./stream.js";

const KEY_NAME = "pelton-api-key";
const COMPLETION_MAX_TOKENS = 256; // the API's own default, 16, is too little to read
const METRICS_TIMEOUT_MS = 5000;

const byId = (id) => document.getElementById(id);
const view = new ConversationView(byId("conversation"), byId("welcome"));
const prompt = byId("prompt");
const settings = byId("settings");

let key = sessionStorage.getItem(KEY_NAME) ?? "";
let model = null; // of /v1/models
let turns = []; // messages that were answered
let running = null; // AbortController of the answer under way
let afterKey = null; // what to do again once there is a key

const isChat = () => settings.elements.mode.value === "chat";

function showMode() {
  byId("system-field").hidden = !isChat();
  byId("mode-note").hidden = isChat();
  byId("prompt-label").textContent = isChat() ? "Message" : "Text to continue";
  prompt.placeholder = isChat() ? "Write a message" : "Write a text for the model to continue";
  byId("max-tokens").placeholder = isChat() ? "No limit" : String(COMPLETION_MAX_TOKENS);
  byId("welcome-hint").textContent = isChat()
    ? "Your conversation stays in this tab and ends when you close it."
    : "The model continues your text as it stands.";
}

function showRunning() {
  byId("send").hidden = running !== null;
  byId("stop").hidden = running === null;
}

/** Fields of a request from the settings; those left empty are left to the server. */
function samplingFields() {
  const names = { temperature: "temperature", "top-p": "top_p", "max-tokens": "max_tokens", seed: "seed" };
  const fields = {};
  for (const [id, name] of Object.entries(names)) {
    if (byId(id).value !== "") fields[name] = byId(id).valueAsNumber;
  }
  return fields;
}

function requestFor(text, history) {
  const common = { model: model?.id, stream: true, stream_options: { include_usage: true } };
  if (!isChat()) {
    return ["v1/completions", { ...common, prompt: text, max_tokens: COMPLETION_MAX_TOKENS, ...samplingFields() }];
  }
  const system = byId("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...history, { role: "user", content: text }];
  return ["v1/chat/completions", { ...common, messages, ...samplingFields() }];
}

/** Asks for an answer to `text` and shows it. What failed, or was stopped before it began, does not count as said. */
async function answer(text) {
  const history = turns; // a new conversation has a list of its own
  const message = view.addAnswer();
  const controller = new AbortController();
  const state = { text: "", finishReason: null, usage: null, start: performance.now(), first: 0, last: 0 };
  running = controller;
  showRunning();
  try {
    const [path, body] = requestFor(text, history);
    const response = await request(path, { key, body, signal: controller.signal });
    await receive(response, controller.signal, state, message);
  } catch (error) {
    if (controller.signal.aborted) state.finishReason = "stopped";
    else {
      state.finishReason = "failed";
      showFailure(message, error, text);
    }
  } finally {
    message.busy = false;
    message.setText(state.text);
    if (running === controller) running = null;
    showRunning();
  }
  if (state.text && state.finishReason !== "failed") {
    history.push({ role: "user", content: text }, { role: "assistant", content: state.text });
    byId("announcement").textContent = state.text;
  }
  const note = noteOf(state);
  if (note) message.addNote(note);
  view.follow();
}

async function receive(response, signal, state, message) {
  let drawing = false;
  for await (const chunk of chunks(response, signal)) {
    if (chunk.usage) state.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    state.finishReason = choice.finish_reason ?? state.finishReason;
    const news = choice.delta ? choice.delta.content : choice.text;
    if (!news && !choice.delta?.reasoning) continue;
    state.last = performance.now();
    state.first ||= state.last;
    if (!news) {
      if (!state.text) message.setText("Thinking ...");
      continue;
    }
    state.text += news;
    if (drawing) continue;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      message.setText(state.text);
      view.follow();
    });
  }
}

function noteOf({ text, finishReason, usage, start, first, last }) {
  const parts = [];
  if (finishReason === "stopped") parts.push("Stopped");
  if (finishReason === "length") parts.push("Ended by the limit of tokens");
  if (finishReason === "abort") parts.push("Ended by the server");
  if (finishReason === "stop" && !text) parts.push("The model had nothing to say");
  if (usage) {
    const count = usage.completion_tokens;
    parts.push(`${count} ${count === 1 ? "token" : "tokens"}`);
    if (count > 1 && last > first) parts.push(`${(((count - 1) * 1000) / (last - first)).toFixed(1)} tok/s`);
    if (first) parts.push(`first after ${((first - start) / 1000).toFixed(2)} s`);
  }
  return parts.join(" · ");
}

function showFailure(message, error, text) {
  const again = () => {
    message.remove();
    answer(text);
  };
  const buttons = [["Try again", again]];
  if (!(error instanceof ServerError)) {
    message.addError(`The page failed: ${error.message}`, buttons);
    return;
  }
  if (error.status === 401) {
    afterKey = again;
    askForKey();
  }
  if (error.status === 404) loadModels();
  if (error.status === 400 && /no chat template/i.test(error.message)) {
    const plain = () => {
      settings.elements.mode.value = "completion";
      showMode();
      again();
    };
    buttons.unshift(["Use plain completion", plain]);
    message.addError(error.message, buttons, "Plain completion works without one: the model continues your text.");
    return;
  }
  message.addError(error.message, buttons);
}

function askForKey() {
  byId("key-label").textContent = key
    ? "The server does not accept this API key."
    : "This server asks for an API key.";
  byId("key-form").hidden = false;
  byId("key").focus();
}

async function loadModels() {
  let models;
  try {
    const response = await request("v1/models", { key });
    models = (await response.json()).data;
  } catch (error) {
    model = null;
    byId("model").textContent = error.status === 401 ? "API key needed" : error.message;
    if (error.status === 401) askForKey();
    return false;
  }
  const choice = byId("model-choice");
  choice.replaceChildren(...models.map((each) => new Option(each.id)));
  byId("model-field").hidden = models.length < 2;
  const show = () => {
    model = models[Math.max(0, choice.selectedIndex)];
    const length = model?.max_model_len;
    byId("model").textContent = model ? model.id + (length ? ` · ${length.toLocaleString("en")} tokens` : "") : "";
  };
  choice.onchange = show;
  show();
  return true;
}

async function readMetrics() {
  const response = await request("metrics", { key, signal: AbortSignal.timeout(METRICS_TIMEOUT_MS) });
  return response.text();
}

let wasReachable = true;
function onMetrics(error) {
  const isReachable = error === null || error.status > 0;
  const note = byId("figures-note");
  note.hidden = error === null;
  if (error) note.textContent = isReachable ? "This server gives no figures." : "The server cannot be reached.";
  if (isReachable && !wasReachable) loadModels(); // it may serve another model now
  wasReachable = isReachable;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value;
  if (running || !text.trim()) return;
  if (!settings.checkValidity()) {
    openPanel(true);
    settings.reportValidity();
    return;
  }
  prompt.value = "";
  prompt.focus();
  afterKey = null;
  view.addQuestion(text);
  answer(text);
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});

function stop() {
  running?.abort();
  prompt.focus();
}

byId("stop").addEventListener("click", stop);

byId("new-conversation").addEventListener("click", () => {
  stop();
  turns = [];
  afterKey = null;
  view.clear();
});

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  if (!(await loadModels())) return;
  sessionStorage.setItem(KEY_NAME, key);
  byId("key").value = "";
  byId("key-form").hidden = true;
  prompt.focus();
  const action = afterKey;
  afterKey = null;
  action?.();
});

/** Matters only where the window is too narrow to show the panel beside the conversation. */
function openPanel(open) {
  document.body.classList.toggle("panel-open", open);
  byId("panel-button").setAttribute("aria-expanded", String(open));
}

byId("panel-button").addEventListener("click", () => openPanel(!document.body.classList.contains("panel-open")));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) stop();
  else if (document.body.classList.contains("panel-open")) {
    openPanel(false);
    byId("panel-button").focus();
  }
});

settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("change", showMode);

showMode();
loadModels();
startFigures(byId("figures"), readMetrics, onMetrics);
