// Draws a board on one page: every panel in its place, with the answers of a Prometheus, by Grafana's components.
import { createTheme, dateTime, EventBusSrv, standardFieldConfigEditorRegistry, type TimeRange } from "@grafana/data";
import { initPluginTranslations } from "@grafana/i18n";
import { GlobalStyles, PanelChrome, PanelContextProvider, ThemeContext } from "@grafana/ui";
import { createRoot } from "react-dom/client";
import { framesOf, type Series, type Target } from "./frames";
import { Content, transformed, type Panel } from "./panels";
import { interpolation } from "./variables";

interface Placed extends Panel {
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: Target[];
}

// What dashboards/pictures.py writes beside the page: board.json.
interface Given {
  title: string;
  mode: "light" | "dark";
  width: number;
  head: number;
  row: number;
  begin: number;
  end: number;
  step: number;
  variables: { label: string; text: string }[];
  values: Record<string, string>;
  panels: Placed[];
  answers: Record<number, Record<string, Series[]>>;
}

const GAP = 8;

async function main() {
  await initPluginTranslations("grafana");
  standardFieldConfigEditorRegistry.setInit(() => []);
  const given: Given = await (await fetch("board.json")).json();
  const { width: pageWidth, head, row } = given;
  const theme = createTheme({ colors: { mode: given.mode } });
  const replaceVariables = interpolation(given.values);
  const [from, to] = [dateTime(given.begin * 1000), dateTime(given.end * 1000)];
  const timeRange: TimeRange = { from, to, raw: { from, to } };
  const context = { eventsScope: "board", eventBus: new EventBusSrv() };
  const drawn = await Promise.all(
    given.panels.map(async (panel) => {
      const answers = given.answers[panel.id] ?? {};
      const found = (panel.targets ?? []).flatMap((one) => framesOf(one, answers[one.refId] ?? [], given.step * 1000));
      return { panel, frames: await transformed(panel, found, replaceVariables) };
    }),
  );
  const bottom = Math.max(...given.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const page = (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PanelContextProvider value={context as never}>
        <main style={{ position: "relative", width: pageWidth, height: head + bottom * row }}>
          <h1>{given.title}</h1>
          <p className="variables">
            {given.variables.map(({ label, text }) => (
              <span key={label}>
                <b>{label}</b>
                {text}
              </span>
            ))}
          </p>
          {drawn.map(({ panel, frames }) => {
            const { x, y, w, h } = panel.gridPos;
            const column = (pageWidth - GAP) / 24;
            const size = { width: Math.round(w * column - GAP), height: h * row - GAP };
            const place = { left: Math.round(GAP + x * column), top: head + y * row };
            return (
              <div key={panel.id} style={{ position: "absolute", ...place, ...size }} data-panel={panel.title}>
                {panel.type === "row" ? (
                  <h2>{panel.title}</h2>
                ) : (
                  <PanelChrome title={panel.title} description={panel.description} {...size}>
                    {(width: number, height: number) => (
                      <Content {...{ panel, frames, width, height, theme, timeRange, replaceVariables }} />
                    )}
                  </PanelChrome>
                )}
              </div>
            );
          })}
        </main>
      </PanelContextProvider>
    </ThemeContext.Provider>
  );
  createRoot(document.body.appendChild(document.createElement("div"))).render(page);
  await quiet(500);
  document.documentElement.setAttribute("data-drawn", "yes");
}

// Waits until fonts are there and nothing on the page has changed for some milliseconds.
async function quiet(milliseconds: number) {
  await document.fonts.ready;
  await new Promise<void>((resolve) => {
    let timer = setTimeout(resolve, milliseconds);
    new MutationObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(resolve, milliseconds);
    }).observe(document.body, { attributes: true, childList: true, subtree: true });
  });
}

window.addEventListener("error", (event) => document.documentElement.setAttribute("data-error", event.message));
main().catch((error) => document.documentElement.setAttribute("data-error", String(error?.stack ?? error)));
