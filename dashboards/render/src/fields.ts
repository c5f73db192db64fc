// Field options of the panels, applied by @grafana/data: units, limits, mappings, colours, links and overrides.
import {
  applyFieldOverrides,
  displayNameOverrideProcessor,
  FieldConfigOptionsRegistry,
  FieldColorModeId,
  FieldConfigProperty,
  identityOverrideProcessor,
  numberOverrideProcessor,
  type DataFrame,
  type FieldConfigPropertyItem,
  type FieldConfigSource,
  type GrafanaTheme2,
  type InterpolateFunction,
} from "@grafana/data";
import { AxisPlacement, GraphDrawStyle, LineInterpolation, VisibilityMode } from "@grafana/schema";

const PROCESSORS: Partial<Record<FieldConfigProperty, FieldConfigPropertyItem["process"]>> = {
  [FieldConfigProperty.Min]: numberOverrideProcessor,
  [FieldConfigProperty.Max]: numberOverrideProcessor,
  [FieldConfigProperty.Decimals]: numberOverrideProcessor,
  [FieldConfigProperty.DisplayName]: displayNameOverrideProcessor,
};

// What Grafana's panels fill in where the JSON is silent.
const DEFAULTS: Record<string, Partial<FieldConfigSource["defaults"]>> = {
  timeseries: {
    color: { mode: FieldColorModeId.PaletteClassic },
    custom: {
      drawStyle: GraphDrawStyle.Line,
      lineInterpolation: LineInterpolation.Linear,
      lineWidth: 1,
      fillOpacity: 0,
      pointSize: 5,
      showPoints: VisibilityMode.Auto,
      axisPlacement: AxisPlacement.Auto,
      axisGridShow: true,
      spanNulls: false,
      hideFrom: { tooltip: false, viz: false, legend: false },
    },
  },
  table: { custom: { align: "auto", cellOptions: { type: "auto" } } },
};

export interface Fielded {
  type: string;
  fieldConfig: FieldConfigSource;
}

export function sourceOf(panel: Fielded): FieldConfigSource {
  const filled = DEFAULTS[panel.type] ?? {};
  const { defaults, overrides } = panel.fieldConfig;
  // JSON has no infinity: Grafana reads null as the lowest threshold when it loads a panel, and nothing else.
  const steps = defaults.thresholds?.steps.map((step) => ({ ...step, value: step.value === null ? -Infinity : step.value }));
  return {
    defaults: {
      color: { mode: FieldColorModeId.Thresholds },
      thresholds: { mode: "absolute" as never, steps: [{ value: -Infinity, color: "green" }, { value: 80, color: "red" }] },
      ...filled,
      ...defaults,
      ...(defaults.thresholds && steps && { thresholds: { ...defaults.thresholds, steps } }),
      custom: { ...filled.custom, ...defaults.custom },
    },
    overrides: overrides ?? [],
  };
}

export function applied(
  panel: Fielded,
  data: DataFrame[],
  theme: GrafanaTheme2,
  replaceVariables: InterpolateFunction,
): DataFrame[] {
  const fieldConfig = sourceOf(panel);
  const fieldConfigRegistry = registryOf(fieldConfig);
  return applyFieldOverrides({ data, fieldConfig, fieldConfigRegistry, replaceVariables, theme, timeZone: "utc" });
}

function registryOf(source: FieldConfigSource): FieldConfigOptionsRegistry {
  const registry = new FieldConfigOptionsRegistry();
  for (const id of Object.values(FieldConfigProperty)) registry.register(item(id, id, PROCESSORS[id]));
  const rules = source.overrides.flatMap((rule) => rule.properties.map((property) => property.id));
  const custom = rules.filter((id) => id.startsWith("custom.")).map((id) => id.slice("custom.".length));
  for (const name of new Set([...Object.keys(source.defaults.custom ?? {}), ...custom])) {
    registry.register({ ...item(`custom.${name}`, name), isCustom: true });
  }
  return registry;
}

function item(id: string, path: string, process: FieldConfigPropertyItem["process"] = identityOverrideProcessor) {
  const empty = () => null;
  return { id, path, name: id, editor: empty, override: empty, process, shouldApply: () => true } as FieldConfigPropertyItem;
}
