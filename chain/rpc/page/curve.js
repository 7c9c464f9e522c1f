// The loss curve: held-out losses by version, with the value under the pointer.
import {draw, make} from "./dom.js";

const LEFT = 40, RIGHT = 58, TOP = 12, BOTTOM = 26;
export const MICRO = 1e6;

export function curve(points, width) {
  // As wide as the place it stands in, so that letters keep their size.
  if (points.length < 2) return make("div", {class: "empty"}, points.length ? "One evaluation so far; the curve begins with the second." : "No evaluation is recorded yet.");
  const xs = points.map(point => point.version), ys = points.map(point => point.lossMicro / MICRO);
  const end = points.length - 1, [x0, x1] = [xs[0], xs[end]];
  const height = Math.min(285, Math.round(width * 0.62)), step = niceStep((Math.max(...ys) - Math.min(...ys)) / 4 || 0.1);
  const y0 = Math.floor(Math.min(...ys) / step) * step, y1 = Math.max(Math.ceil(Math.max(...ys) / step) * step, y0 + step);
  const x = value => LEFT + (width - LEFT - RIGHT) * (value - x0) / (x1 - x0 || 1);
  const y = value => height - BOTTOM - (height - TOP - BOTTOM) * (value - y0) / (y1 - y0);
  const svg = draw("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Held-out loss from ${ys[0].toFixed(3)} to ${ys[end].toFixed(3)}`});
  for (let line = y0; line <= y1 + step / 2; line += step) {
    svg.append(draw("line", {class: "gridline", x1: LEFT, x2: width - RIGHT, y1: y(line), y2: y(line)}),
      draw("text", {x: LEFT - 8, y: y(line) + 4, "text-anchor": "end"}, line.toFixed(step < 0.1 ? 2 : 1)));
  }
  const each = Math.max(1, Math.round(niceStep((x1 - x0) / 6 || 1)));
  for (let mark = Math.ceil(x0 / each) * each; mark <= x1; mark += each) svg.append(draw("text", {x: x(mark), y: height - 6, "text-anchor": "middle"}, mark));
  const path = points.map((_, index) => `${index ? "L" : "M"}${x(xs[index]).toFixed(1)} ${y(ys[index]).toFixed(1)}`).join("");
  svg.append(draw("path", {class: "area", d: `${path}L${x(x1)} ${height - BOTTOM}L${x(x0)} ${height - BOTTOM}Z`}), draw("path", {class: "curve", d: path}));
  if (points.length <= 40) for (const [index, each] of xs.entries()) svg.append(draw("circle", {class: "point", cx: x(each), cy: y(ys[index]), r: 3}));
  svg.append(draw("circle", {class: "point", cx: x(x1), cy: y(ys[end]), r: 4.5}), draw("text", {class: "label", x: x(x1) + 10, y: y(ys[end]) + 4}, ys[end].toFixed(3)));
  follow(svg, points, x, y, width, height);
  return svg;
}

function follow(svg, points, x, y, width, height) {
  const cross = draw("line", {class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden"}), spot = draw("circle", {class: "point", r: 4.5, visibility: "hidden"});
  const note = draw("text", {class: "label", visibility: "hidden"}), marks = [cross, spot, note];
  svg.append(...marks);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), pointer = (event.clientX - box.left) * width / box.width;
    const near = points.reduce((best, point) => Math.abs(x(point.version) - pointer) < Math.abs(x(best.version) - pointer) ? point : best);
    const [px, py] = [x(near.version), y(near.lossMicro / MICRO)], isRight = px > width / 2;
    for (const node of marks) node.setAttribute("visibility", "visible");
    cross.setAttribute("x1", px); cross.setAttribute("x2", px);
    spot.setAttribute("cx", px); spot.setAttribute("cy", py);
    note.textContent = `version ${near.version}: ${(near.lossMicro / MICRO).toFixed(4)}`;
    note.setAttribute("x", px + (isRight ? -8 : 8)); note.setAttribute("y", Math.max(TOP + 12, py - 12));
    note.setAttribute("text-anchor", isRight ? "end" : "start");
  });
  svg.addEventListener("pointerleave", () => { for (const node of marks) node.setAttribute("visibility", "hidden"); });
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}
