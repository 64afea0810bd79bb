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

if (figures.length) {
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
