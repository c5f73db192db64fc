// Turns what Prometheus answers into the data frames that Grafana's data source for Prometheus makes of it.
import { createDataFrame, DataFrameType, FieldType, type DataFrame } from "@grafana/data";

export interface Series {
  metric: Record<string, string>;
  value?: [number, string];
  values?: [number, string][];
}

export interface Target {
  refId: string;
  expr: string;
  format?: string;
  legendFormat?: string;
}

const numberOf = (text: string): number => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));
const pointsOf = (series: Series): [number, string][] => series.values ?? (series.value ? [series.value] : []);

export function framesOf(target: Target, answer: Series[], stepMs: number): DataFrame[] {
  if (target.format === "table") return answer.length ? [tableOf(target, answer)] : [];
  const frames = answer.map((series) => courseOf(target, series, stepMs));
  return target.format === "heatmap" && frames.length ? [bucketsOf(frames)] : frames;
}

function courseOf(target: Target, series: Series, stepMs: number): DataFrame {
  const name = legendOf(target, series.metric);
  const points = pointsOf(series);
  return createDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: "Time", type: FieldType.time, config: { interval: stepMs }, values: points.map(([time]) => time * 1000) },
      {
        name: "Value",
        type: FieldType.number,
        labels: series.metric,
        config: { displayNameFromDS: name },
        values: points.map(([, text]) => numberOf(text)),
      },
    ],
  });
}

function legendOf(target: Target, labels: Record<string, string>): string {
  const format = target.legendFormat ?? "";
  if (format) return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label: string) => labels[label] ?? "");
  return `{${Object.entries(labels).map(([label, value]) => `${label}="${value}"`).join(", ")}}`;
}

function tableOf(target: Target, answer: Series[]): DataFrame {
  const labels = [...new Set(answer.flatMap((series) => Object.keys(series.metric)))];
  const rows = answer.flatMap((series) => pointsOf(series).map((point) => ({ labels: series.metric, point })));
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: "Time", type: FieldType.time, config: {}, values: rows.map(({ point }) => point[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        config: { filterable: true },
        values: rows.map((row) => row.labels[label] ?? ""),
      })),
      { name: "Value", type: FieldType.number, config: {}, values: rows.map(({ point }) => numberOf(point[1])) },
    ],
  });
}

// Cumulative buckets, one frame per upper limit, become one frame with a row of cells per bucket.
function bucketsOf(frames: DataFrame[]): DataFrame {
  const limit = (frame: DataFrame): number => numberOf(frame.fields[1].labels?.le ?? "");
  const sorted = [...frames].sort((one, other) => limit(one) - limit(other));
  const times = [...new Set(sorted.flatMap((frame) => frame.fields[0].values as number[]))].sort((a, b) => a - b);
  const cumulative = sorted.map((frame) => {
    const known = new Map((frame.fields[0].values as number[]).map((time, at) => [time, frame.fields[1].values[at]]));
    return times.map((time) => known.get(time) as number | undefined);
  });
  return createDataFrame({
    refId: frames[0].refId,
    meta: { type: DataFrameType.HeatmapRows },
    fields: [
      { name: "Time", type: FieldType.time, config: { ...sorted[0].fields[0].config }, values: times },
      ...sorted.map((frame, at) => ({
        name: frame.fields[1].labels?.le ?? "",
        type: FieldType.number,
        config: {},
        values: cumulative[at].map((count, moment) => {
          const below = at ? cumulative[at - 1][moment] : 0;
          return count === undefined || below === undefined ? null : Math.max(0, count - below);
        }),
      })),
    ],
  });
}
