const figures = JSON.parse(document.getElementById("figures").textContent);

function axis(style, options) {
  return Object.assign({
    gridcolor: style.getPropertyValue("--line"), zerolinecolor: style.getPropertyValue("--line"),
    linecolor: style.getPropertyValue("--line"), automargin: true,
  }, options);
}

function drawAll() {
  const style = getComputedStyle(document.documentElement);
  for (const figure of figures) {
    const layout = Object.assign({
      height: 280, margin: {l: 48, r: 12, t: 8, b: 40}, hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: {color: style.getPropertyValue("--text"), size: 12},
      hoverlabel: {bgcolor: style.getPropertyValue("--card"), bordercolor: style.getPropertyValue("--line")},
      legend: {orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom"},
    }, figure.layout);
    layout.xaxis = axis(style, figure.layout.xaxis);
    layout.yaxis = axis(style, figure.layout.yaxis);
    Plotly.react(figure.id, figure.traces, layout, {displayModeBar: false, responsive: true});
  }
}

function applyFilter(filter) {
  const section = filter.closest("section");
  const entries = [...section.querySelectorAll("details.game")];
  const words = filter.querySelector("input[type=search]").value.toLowerCase();
  const tags = [...filter.querySelectorAll("input:checked"), ...filter.querySelectorAll("select")]
    .map((control) => control.value).filter((value) => value);
  for (const entry of entries) {
    const own = entry.dataset.tags.split(" ");
    entry.hidden = !(tags.every((tag) => own.includes(tag)) && entry.textContent.toLowerCase().includes(words));
  }
  for (const group of section.querySelectorAll(".group")) {
    group.hidden = !group.querySelector("details.game:not([hidden])");
  }
  const shown = entries.filter((entry) => !entry.hidden).length;
  filter.querySelector(".shown").textContent = shown < entries.length ? shown + " of " + entries.length : "";
}

for (const filter of document.querySelectorAll(".filter")) {
  filter.addEventListener("input", () => applyFilter(filter));
}
if (figures.length) {
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
