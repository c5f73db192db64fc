// A heatmap of buckets. Grafana's own is not in its packages: axes, scales and colours here are theirs, the cells ours.
import { type DataFrame, getValueFormat, formattedValueToString, type GrafanaTheme2 } from "@grafana/data";
import { AxisPlacement, ScaleDirection, ScaleOrientation } from "@grafana/schema";
import { UPlotChart, UPlotConfigBuilder } from "@grafana/ui";
import { interpolateOranges } from "d3-scale-chromatic";
import { useMemo } from "react";
import type uPlot from "uplot";
import type { Drawn } from "./panels";

export function Heatmap({ panel, frames, width, height, theme, timeRange }: Drawn) {
  const [frame] = frames;
  const { config, data } = useMemo(() => {
    const range = () => [timeRange.from.valueOf(), timeRange.to.valueOf()] as [number, number];
    return { config: configOf(frame, panel.options, theme, range), data: facetsOf(frame) };
  }, [frame]);
  return <UPlotChart {...{ config, width, height }} data={data as never} />;
}

function facetsOf(frame: DataFrame): (number | null)[][] {
  return [frame.fields[0].values, ...frame.fields.slice(1).map((field) => field.values)];
}

function configOf(frame: DataFrame, options: any, theme: GrafanaTheme2, range: () => [number, number]) {
  const buckets = frame.fields.slice(1);
  const { unit } = options.yAxis;
  const builder = new UPlotConfigBuilder("utc");
  const time = { scaleKey: "x", isTime: true, orientation: ScaleOrientation.Horizontal };
  builder.addScale({ ...time, direction: ScaleDirection.Right, range });
  builder.addAxis({ scaleKey: "x", isTime: true, placement: AxisPlacement.Bottom, theme, timeZone: "utc" });
  const up = { scaleKey: "y", orientation: ScaleOrientation.Vertical, direction: ScaleDirection.Up };
  builder.addScale({ ...up, isTime: false, range: [0, buckets.length] });
  const name = (at: number) => {
    const limit = buckets[at - 1]?.name;
    return limit === undefined ? "" : limit === "+Inf" ? "+Inf" : formattedValueToString(getValueFormat(unit)(Number(limit)));
  };
  builder.addAxis({
    scaleKey: "y",
    placement: AxisPlacement.Left,
    theme,
    splits: () => buckets.map((_, at) => at + 1),
    values: (_, splits) => splits.map((at, place) => (place % Math.ceil(buckets.length / 8) ? "" : name(at))),
  });
  for (const field of buckets) {
    builder.addSeries({ scaleKey: "y", theme, pathBuilder: () => null, show: true, fieldName: field.name } as never);
  }
  builder.addHook("draw", (plot) => drawCells(plot, buckets.map((field) => field.values), options, theme.isDark));
  return builder;
}

// Grafana reverses this scheme in its dark theme, where few are dark and many bright, as if it were set.
function drawCells(plot: uPlot, rows: (number | null)[][], options: any, isDark: boolean) {
  const { exponent, steps } = options.color;
  const reverse = options.color.reverse || isDark;
  const counts = rows.flat().filter((count): count is number => count !== null && count > options.filterValues.le);
  const most = Math.max(...counts);
  const times = plot.data[0] as number[];
  const width = plot.valToPos(times[1] ?? times[0], "x", true) - plot.valToPos(times[0], "x", true);
  const { ctx } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  rows.forEach((row, at) => {
    const [bottom, top] = [plot.valToPos(at, "y", true), plot.valToPos(at + 1, "y", true)];
    row.forEach((count, moment) => {
      if (count === null || !(count > options.filterValues.le)) return;
      const share = Math.round((count / most) ** exponent * steps) / steps;
      ctx.fillStyle = interpolateOranges(reverse ? 1 - share : share);
      const left = plot.valToPos(times[moment], "x", true) - width;
      const gap = width > 4 * options.cellGap ? options.cellGap : 0;
      ctx.fillRect(left, top, width - gap, bottom - top - options.cellGap);
    });
  });
  ctx.restore();
}
