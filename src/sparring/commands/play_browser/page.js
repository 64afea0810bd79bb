// All text of games and models becomes textContent and nothing else.
const token = location.hash.slice(1);
const place = (id) => document.getElementById(id);
const POLL_MS = 500;
let shownTurn = 0;

function show(element, text) {
  element.textContent = text;
  element.hidden = text === "";
}

function made(kind, className, text) {
  return Object.assign(document.createElement(kind), {className, textContent: text});
}

async function ask(path, body) {
  const options = {method: body === undefined ? "GET" : "POST", headers: {Authorization: "Bearer " + token}};
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    show(place("problem"), "The server has stopped. Start it again: sparring play RUN --browser");
    return;
  }
  if (response.status === 401) {
    show(place("problem"), "This address has no valid token. Open the whole address that the command printed.");
    return;
  }
  draw(await (response.ok ? response : await fetch("/state", {headers: options.headers})).json());
}

function reveal(told) {
  const card = made("div", "card", "");
  card.append(made("b", "", told.who), " ", made("span", "mono", told.action));
  if (told.problem) {
    card.append(made("p", "bad text", told.problem));
  }
  if (told.said.trim() && told.said.trim() !== told.action) {
    card.append(made("div", "text", told.said.trim()));
  }
  if (told.thought) {
    const fold = made("details", "", "");
    fold.append(made("summary", "", "Thought"), made("div", "text mono", told.thought));
    card.append(fold);
  }
  return card;
}

function send(turn, text) {
  if (text.trim()) {
    place("answer").hidden = true;
    ask("/answer", {turn, text});
  }
}

function draw(table) {
  const began = table.title !== "" || table.outcome !== "";
  show(place("title"), table.title || "sparring play");
  show(place("problem"), table.problem);
  place("rules").hidden = !table.rules;
  place("rules").lastElementChild.textContent = table.rules;
  show(place("heard"), table.outcome ? "" : table.heard);
  show(place("mine"), table.mine.length && !table.outcome ? "You said: " + table.mine.join(" · ") : "");
  place("waiting").hidden = !began || table.asking || table.outcome !== "";
  place("answer").hidden = !table.asking;
  if (table.asking && table.turn !== shownTurn) {
    shownTurn = table.turn;
    const box = place("answer").querySelector("textarea");
    box.value = "";
    place("legal").replaceChildren(...(table.legal || []).map((move) => {
      const button = Object.assign(made("button", "", move), {type: "button"});
      button.addEventListener("click", () => send(table.turn, move));
      return button;
    }));
    box.focus();
  }
  place("end").hidden = table.outcome === "";
  place("outcome").textContent = table.outcome;
  place("revealed").replaceChildren(...table.revealed.map(reveal));
  place("new").hidden = began && table.outcome === "";
  if (began && !table.asking && table.outcome === "") {
    setTimeout(() => ask("/state"), POLL_MS);
  }
}

place("answer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(shownTurn, place("answer").querySelector("textarea").value);
});
place("new").addEventListener("click", () => {
  place("new").hidden = true;
  ask("/new", {});
});
ask("/state");
