// What the conversation shows. All text goes in as text: nothing that a model writes is ever read as HTML.

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** Cuts text at fences (```), into [text, isCode] pairs without the empty lines beside fences. */
function pieces(text) {
  const parts = text.split(/^ {0,3}```[^`\n]*(?:\n|$(?![^]))/m);
  return parts
    .map((part, i) => {
      const isCode = i % 2 === 1;
      let piece = part;
      if (i > 0 && !isCode) piece = piece.replace(/^\n+/, "");
      if (i < parts.length - 1) piece = piece.replace(/\n+$/, "");
      return [piece, isCode];
    })
    .filter(([piece]) => piece !== "");
}

/** One message. An answer is `busy` until `finish`. */
class Message {
  constructor(list, author, className) {
    this.list = list;
    this.article = element("article", `message ${className}`);
    this.content = element("div", "content");
    this.article.append(element("h3", "visually-hidden", author), this.content);
    list.append(this.article);
  }

  /** Shows `text` whole, keeping those pieces of an earlier call that have not changed. */
  setText(text) {
    const wanted = pieces(text);
    wanted.forEach(([piece, isCode], i) => {
      const tag = isCode ? "PRE" : "P";
      let node = this.content.children[i];
      if (node?.tagName !== tag) {
        const made = element(tag);
        if (isCode) {
          made.tabIndex = 0; // it may scroll sideways
          made.setAttribute("aria-label", "Code");
        }
        if (node) node.replaceWith(made);
        else this.content.append(made);
        node = made;
      }
      if (node.textContent !== piece) node.textContent = piece;
    });
    while (this.content.children.length > wanted.length) this.content.lastChild.remove();
  }

  set busy(value) {
    this.article.setAttribute("aria-busy", String(value));
  }

  /** A line of figures, or of what else there is to say, under the text. */
  addNote(text) {
    this.article.append(element("p", "note", text));
  }

  /** `buttons` are [label, what it does] pairs. */
  addError(text, buttons, hint = "") {
    const box = element("div", "error");
    box.setAttribute("role", "alert");
    box.append(element("p", "", text.charAt(0).toUpperCase() + text.slice(1)));
    if (hint) box.append(element("p", "", hint));
    const row = element("div", "row");
    for (const [label, action] of buttons) {
      const button = element("button", "quiet", label);
      button.type = "button";
      button.addEventListener("click", action);
      row.append(button);
    }
    box.append(row);
    this.article.append(box);
  }

  remove() {
    this.article.remove();
  }
}

export class ConversationView {
  constructor(list, welcome) {
    this.list = list;
    this.welcome = welcome;
    this.atEnd = true;
    list.addEventListener("scroll", () => {
      this.atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    });
    new ResizeObserver(() => this.follow()).observe(list);
  }

  addQuestion(text) {
    this.welcome.hidden = true;
    for (const row of this.list.querySelectorAll(".error .row")) row.remove(); // trying again is for the last question
    const message = new Message(this.list, "You", "question");
    message.content.append(element("p", "", text));
    this.atEnd = true;
    this.follow();
  }

  addAnswer() {
    const message = new Message(this.list, "Model", "answer");
    message.busy = true;
    this.follow();
    return message;
  }

  /** Scrolls to the end, unless the reader has scrolled away from it. */
  follow() {
    if (this.atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  clear() {
    this.list.replaceChildren(this.welcome);
    this.welcome.hidden = false;
  }
}
