// Every type of panel that the boards use, drawn by the component of @grafana/ui that Grafana draws it with.
import {
  cacheFieldDisplayNames,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  standardTransformers,
  VizOrientation,
  type DataFrame,
  type DataTransformerConfig,
  type FieldDisplay,
  type GrafanaTheme2,
  type InterpolateFunction,
  type TimeRange,
} from "@grafana/data";
import { BigValue, TimeSeries, VizRepeater } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import { lastValueFrom, of } from "rxjs";
import { applied, sourceOf, type Fielded } from "./fields";
import { Heatmap } from "./heatmap";

export interface Panel extends Fielded {
  id: number;
  title: string;
  description: string;
  options: any;
  transformations?: DataTransformerConfig[];
}

export interface Drawn {
  panel: Panel;
  frames: DataFrame[];
  width: number;
  height: number;
  theme: GrafanaTheme2;
  timeRange: TimeRange;
  replaceVariables: InterpolateFunction;
}

export async function transformed(panel: Panel, frames: DataFrame[], replace: InterpolateFunction): Promise<DataFrame[]> {
  let made = frames;
  for (const { id, options } of panel.transformations ?? []) {
    const found = Object.values(standardTransformers).find((transformer) => transformer.id === id);
    if (!found) throw new Error(`${panel.title}: no transformation is named ${id}`);
    const step = found as { operator: (options: any, context: any) => any; defaultOptions?: object };
    const pipe = step.operator({ ...step.defaultOptions, ...options }, { interpolate: replace });
    made = (await lastValueFrom(of(made).pipe(pipe))) as DataFrame[];
  }
  return made;
}

export function Content(drawn: Drawn) {
  const { panel, frames } = drawn;
  if (panel.type === "stat") return <Stat {...drawn} />;
  if (!frames.some((frame) => frame.length)) return <p className="empty">{panel.fieldConfig.defaults.noValue}</p>;
  if (panel.type === "timeseries") return <Course {...drawn} />;
  if (panel.type === "table") return <Rows {...drawn} />;
  if (panel.type === "heatmap") return <Heatmap {...drawn} />;
  throw new Error(`${panel.title}: nothing here draws panels of type ${panel.type}`);
}

function Course({ panel, frames, width, height, theme, timeRange, replaceVariables }: Drawn) {
  const legend = { calcs: [], ...panel.options.legend };
  const shown = applied(panel, frames.map(finite), theme, replaceVariables);
  return <TimeSeries {...{ width, height, legend, timeRange }} frames={shown} timeZone="utc" />;
}

// Grafana's panel leaves gaps where a number is not finite.
function finite(frame: DataFrame): DataFrame {
  const gap = (value: number) => (Number.isFinite(value) ? value : null);
  return { ...frame, fields: frame.fields.map((field) => ({ ...field, values: field.values.map(gap) })) };
}

function Stat({ panel, frames, width, height, theme, replaceVariables }: Drawn) {
  const { colorMode, graphMode, justifyMode, textMode, reduceOptions, orientation, text, wideLayout } = panel.options;
  const fieldConfig = sourceOf(panel);
  const data = applied(panel, frames, theme, replaceVariables);
  const sparkline = graphMode !== "none";
  const values = () =>
    getFieldDisplayValues({ fieldConfig, reduceOptions, replaceVariables, theme, data, sparkline, timeZone: "utc" });
  return (
    <VizRepeater<FieldDisplay, ReturnType<typeof getDisplayValueAlignmentFactors>>
      {...{ width, height }}
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      source={data}
      renderCounter={1}
      autoGrid
      itemSpacing={3}
      orientation={orientation ?? VizOrientation.Auto}
      renderValue={({ value, alignmentFactors, count, ...size }) => (
        <BigValue
          {...{ colorMode, graphMode, justifyMode, textMode, text, theme, alignmentFactors, count }}
          value={value.display}
          sparkline={value.sparkline}
          disableWideLayout={wideLayout === false}
          width={size.width}
          height={size.height}
        />
      )}
    />
  );
}

function Rows({ panel, frames, width, height, theme, timeRange, replaceVariables }: Drawn) {
  const shown = applied(panel, frames, theme, replaceVariables);
  cacheFieldDisplayNames(shown);
  const [data] = shown;
  const { cellHeight, sortBy, showHeader } = panel.options;
  return (
    <TableNG
      {...{ width, height, data, timeRange, cellHeight }}
      noHeader={showHeader === false}
      initialSortBy={sortBy}
      fieldConfig={sourceOf(panel)}
      structureRev={1}
      getActions={() => []}
    />
  );
}
