function number(control) {
  return control && control.value !== "" ? Number(control.value) : null;
}

function isWithin(value, low, high) {
  return (low === null || value >= low) && (high === null || value <= high);
}

function applyFilter(filter) {
  const section = filter.closest("section");
  const control = (name) => filter.querySelector(`[name=${name}]`);
  const words = filter.querySelector("input[type=search]").value.toLowerCase();
  const kinds = [...filter.querySelectorAll("input:checked")].map((box) => box.value);
  const seat = control("seat").value;
  const outcome = control("outcome") ? control("outcome").value : "";
  const reward = [number(control("reward-from")), number(control("reward-to"))];
  const length = [number(control("length-from")), number(control("length-to"))];
  const hasReward = (one) => reward[0] === null && reward[1] === null
    || one.reward !== null && isWithin(one.reward, ...reward);
  const entries = [...section.querySelectorAll("details.game")];
  for (const entry of entries) {
    const facts = JSON.parse(entry.dataset.facts);
    const seats = seat === "" ? Object.values(facts.seats) : [facts.seats[seat]].filter((one) => one);
    const isAsked = seat !== "" || outcome !== "" || reward[0] !== null || reward[1] !== null;
    entry.hidden = !(kinds.every((kind) => facts.kinds.includes(kind)) && isWithin(facts.length, ...length)
      && (!isAsked || seats.some((one) => (outcome === "" || one.outcome === outcome) && hasReward(one)))
      && entry.textContent.toLowerCase().includes(words));
  }
  for (const group of section.querySelectorAll(".group")) {
    group.hidden = !group.querySelector("details.game:not([hidden])");
  }
  const shown = entries.filter((entry) => !entry.hidden).length;
  filter.querySelector(".shown").textContent = shown < entries.length ? shown + " of " + entries.length : "";
}

const UNLIKELY = -7;
const BLUE = "63,127,224", ORANGE = "217,114,46";
const answers = JSON.parse(document.getElementById("answers").textContent);
const largest = Math.max(...answers.map((one) => Math.abs(one.advantage || 0)), 1e-9);

function colourOf(answer, place, by) {
  if (by === "advantage" && answer.advantage === null) {
    return "transparent";
  }
  const share = by === "logprob" ? answer.logprobs[place] / UNLIKELY : Math.abs(answer.advantage) / largest;
  const colour = by === "logprob" || answer.advantage < 0 ? ORANGE : BLUE;
  return `rgba(${colour},${(0.75 * Math.min(1, Math.max(0, share))).toFixed(3)})`;
}

function figuresOf(answer, place) {
  const logprob = answer.logprobs[place];
  const parts = [JSON.stringify(answer.texts[place]), `log-prob ${logprob} (${(100 * Math.exp(logprob)).toPrecision(3)}%)`];
  if (answer.advantage !== null) {
    parts.push(`advantage of the answer ${answer.advantage.toPrecision(3)}`);
  }
  if (place < answer.thought) {
    parts.push("thought");
  }
  return `token ${place + 1}: ` + parts.join(", ");
}

function draw(element, by) {
  const answer = answers[element.dataset.answer];
  const spans = answer.texts.map((text, place) => {
    const span = document.createElement("span");
    span.textContent = text === "" ? "\u00b7" : text;
    span.style.background = colourOf(answer, place, by);
    span.dataset.place = place;
    return span;
  });
  element.replaceChildren();
  if (answer.thought) {
    const fold = document.createElement("details");
    fold.className = "fold";
    fold.append(Object.assign(document.createElement("summary"), {textContent: `Thought (${answer.thought} tokens)`}));
    fold.append(...spans.splice(0, answer.thought));
    element.append(fold);
  }
  element.append(...spans);
  if (answer.more) {
    element.append(` [${answer.more} more tokens]`);
  }
}

function drawOpen(section) {
  const by = section.querySelector("[name=colours]").value;
  for (const element of section.querySelectorAll("details.game[open] .by-token")) {
    if (by !== "" && element.dataset.by !== by) {
      draw(element, by);
      element.dataset.by = by;
    }
  }
}

function colourTokens(select) {
  const section = select.closest("section"), scale = section.querySelector(".scale");
  section.classList.toggle("colours", select.value !== "");
  scale.replaceChildren();
  if (select.value !== "") {
    const bar = document.createElement("i"), strong = (colour) => `rgba(${colour},0.75)`;
    const clear = "transparent";
    const isLogprob = select.value === "logprob";
    bar.style.background = isLogprob ? `linear-gradient(90deg,${clear},${strong(ORANGE)})`
      : `linear-gradient(90deg,${strong(ORANGE)},${clear},${strong(BLUE)})`;
    const ends = isLogprob ? ["0 (sure)", `${UNLIKELY} (0.1%)`] : [(-largest).toPrecision(2), "+" + largest.toPrecision(2)];
    scale.append(ends[0], bar, ends[1]);
  }
  drawOpen(section);
}

const figuresOfToken = Object.assign(document.createElement("div"), {className: "figures-of-token", hidden: true});
document.body.append(figuresOfToken);

function tellToken(event) {
  const span = event.target.closest(".by-token span");
  figuresOfToken.hidden = !span;
  if (span) {
    figuresOfToken.textContent = figuresOf(answers[span.closest(".by-token").dataset.answer], Number(span.dataset.place));
  }
}

for (const filter of document.querySelectorAll(".filter")) {
  filter.addEventListener("input", () => applyFilter(filter));
  const select = filter.querySelector("[name=colours]");
  if (select) {
    const section = filter.closest("section");
    select.addEventListener("change", () => colourTokens(select));
    section.addEventListener("toggle", () => drawOpen(section), true);
  }
}
for (const group of document.querySelectorAll(".beside")) {
  group.addEventListener("toggle", (event) => {
    if (event.target.parentElement === group) {
      [...group.children].forEach((entry) => { entry.open = event.target.open; });
    }
  }, true);
}
document.addEventListener("pointerover", tellToken);
document.addEventListener("click", tellToken);
